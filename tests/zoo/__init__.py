"""A zoo of machines: each a description as data, from which all that it answers to ncclprobe follows.

scripts/write_captures.py writes them to tests/captures. What each shape was taken from stands in the descriptions'
`sources` and above each family of answers; what no source tells is said to be so there.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ncclprobe.engine.collect import collect
from ncclprobe.host import Question
from ncclprobe.host.capture import Recorder
from ncclprobe.model.errors import HostError, NotCaptured
from ncclprobe.model.registry import Collector, discover
from zoo import machines, nvidia, pci, system
from zoo.answers import Answers
from zoo.description import Machine

CAPTURES = Path(__file__).resolve().parents[1] / "captures"
_FAMILIES = (system.linux, pci.describe, nvidia.describe, system.rdma, system.network, system.software)

MACHINES: dict[str, Machine] = {m.name: m for m in machines.ALL}


def answers(machine: Machine, *changes: Callable[[Answers], None]) -> dict[Question, str | HostError]:
    """What ncclprobe's collectors ask of the machine, and what it answers after `changes`. Raises UndescribedError."""
    here = Answers()
    for family in _FAMILIES:
        family(machine, here)
    for change in changes:
        change(here)
    host = Recorder(here)
    collect(host, discover("ncclprobe.facts", Collector, {"machine"}))
    return {asked: said for asked, said in host.answers.items() if not isinstance(said, NotCaptured)}  # no samples


def capture(machine: Machine) -> str:
    """The text of its capture. Of a variant, only what is different; what only the other was asked, nobody asks it."""
    rows = list_rows(answers(machine))
    if machine.like:
        same = list_rows(answers(MACHINES[machine.like]))
        rows = [{"like": f"{machine.like}.jsonl"}, *(row for row in rows if row not in same)]
    header = {"capture": 1, "node": machine.name, "origin": "synthetic", "machine": machine.title}
    return lines([header | {"sources": machine.sources, "rows": len(rows)}, *rows])


def lines(rows: Iterable[Mapping[str, object]]) -> str:
    """Rows of a capture as its text."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def list_rows(found: Mapping[Question, str | HostError]) -> list[Mapping[str, object]]:
    """One row for each answer, in the order of a capture."""
    return [_row(question, said) for question, said in sorted(found.items(), key=lambda row: list(map(str, row[0])))]


def _row(question: Question, said: str | HostError) -> Mapping[str, object]:
    if isinstance(said, HostError):
        return {"ask": question, "refused": type(said).__name__, "why": str(said)}
    return {"ask": question, "said": said}
