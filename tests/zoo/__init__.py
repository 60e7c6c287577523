"""A zoo of machines: each a description as data, from which all that it answers to ncclprobe follows.

scripts/zoo writes them to tests/captures. What each shape was taken from stands in the descriptions' `sources` and
above each family of answers; what no source tells is said to be so there.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from ncclprobe import engine
from ncclprobe.errors import HostError
from ncclprobe.host import Question, Recorder
from ncclprobe.model import Collector
from ncclprobe.registry import discover
from zoo import clouds, desks, linux, network, nvidia, pci, rdma, servers, software
from zoo.answers import Answers
from zoo.description import Machine

CAPTURES = Path(__file__).resolve().parents[1] / "captures"
_FAMILIES = (linux, pci, nvidia, rdma, network, software)

MACHINES: dict[str, Machine] = {m.name: m for m in (*servers.ALL, *clouds.ALL, *desks.ALL)}


def answers(machine: Machine) -> dict[Question, str | HostError]:
    """What ncclprobe's collectors ask of the machine, and what it answers. Raises UndescribedError."""
    here = Answers()
    for family in _FAMILIES:
        family.describe(machine, here)
    host = Recorder(here)
    engine.collect(host, discover("ncclprobe.facts", Collector))
    return host.answers


def capture(machine: Machine) -> str:
    """The text of its capture. Of a variant, only what is different; what only the other was asked, nobody asks it."""
    found = answers(machine)
    rows = [_row(question, said) for question, said in sorted(found.items(), key=lambda row: list(map(str, row[0])))]
    if machine.like:
        same = [_row(question, said) for question, said in answers(MACHINES[machine.like]).items()]
        rows = [{"like": f"{machine.like}.jsonl"}, *(row for row in rows if row not in same)]
    header = {"capture": 1, "node": machine.name, "origin": "synthetic", "machine": machine.title}
    lines = [header | {"sources": machine.sources, "rows": len(rows)}, *rows]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _row(question: Question, said: str | HostError) -> Mapping[str, object]:
    if isinstance(said, HostError):
        return {"ask": question, "refused": type(said).__name__, "why": str(said)}
    return {"ask": question, "said": said}
