"""Every captured machine, replayed: what is learned of it, against what it was described as."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import zoo
from zoo.answers import Answers, UndescribedError
from zoo.description import Machine as Description

from ncclprobe.engine.collect import collect
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.nvidia_smi import ASK
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci, normal
from ncclprobe.facts.topo_matrix import Matrix
from ncclprobe.host import SAMPLE, Question
from ncclprobe.host.capture import Replay, load
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import Struct
from ncclprobe.nccl.paths import PathType, topology
from tests.each_row import each_row, some

T = TypeVar("T")
CAPTURES = sorted(zoo.CAPTURES.glob("*.jsonl"))
_BUILD, _GUESTS, _H100 = "build-vm", ("guest-rxe-root", "guest-rxe-nobody"), "h100-vm"
REAL = (_BUILD, *_GUESTS, _H100)
ASKED_SINCE: dict[Question, tuple[str, ...]] = {
    ("home",): (_BUILD, *_GUESTS), ASK: (_BUILD, *_GUESTS), ("read", "/sys/fs/cgroup/pids.max"): _GUESTS,
    ("read", "/sys/fs/cgroup/pids/pids.max"): (_BUILD,),
    ("bytes", "/sys/bus/pci/devices/0000:00:03.0/config"): (_BUILD,),
    ("bytes", "/sys/bus/pci/devices/0000:43:00.0/config"): _GUESTS,
    ("bytes", "/sys/bus/pci/devices/0000:44:00.0/config"): _GUESTS,
}  # fmt: skip
"""Questions that came after real machines were captured, and which of REAL they were not asked. A new one is of all."""

_MADE = "describe the answer in tests/zoo, and run scripts/write_captures.py"
_TAKEN = "a real machine, captured before; add the question to ASKED_SINCE of tests/test_zoo.py, for REAL"

every_description = each_row("machine", zoo.MACHINES.values(), ids=lambda machine: machine.name)
every_gpu_machine = each_row("machine", [m for m in zoo.MACHINES.values() if m.gpu], ids=lambda machine: machine.name)


class Listening:
    """A capture that notes what it was asked in vain."""

    def __init__(self, replay: Replay) -> None:
        self.replay, self.held = replay, frozenset(replay.answers)
        self.in_vain: set[Question] = set()

    def ask(self, *question: str | int) -> str:
        if question not in self.held and question[0] != SAMPLE:
            self.in_vain.add(question)
        return self.replay.ask(*question)


@cache
def replayed(path: Path) -> tuple[Snapshot, set[Question]]:
    """The facts of a capture, and the questions that it does not hold."""
    listening = Listening(load(path))
    facts = collect(listening, discover("ncclprobe.facts", Collector, {"machine"}))
    return Snapshot(listening.replay.node, facts), listening.in_vain


def learned(machine: Description, kind: type[T]) -> T:
    fact = replayed(zoo.CAPTURES / f"{machine.name}.jsonl")[0].facts[kind]
    assert isinstance(fact, kind), fact
    return fact


def absences(value: Any, where: str = "") -> Iterator[tuple[str, Absent]]:
    """Every Absent in a fact, at any depth."""
    if isinstance(value, Absent):
        yield where, value
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            yield from absences(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, Mapping | tuple | list):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from absences(item, f"{where}[{key}]")


@every_description
def test_the_committed_capture_is_what_the_generator_makes(machine: Description) -> None:
    """`scripts/write_captures.py` writes it again, which a collector that asks something new makes necessary."""
    committed = (zoo.CAPTURES / f"{machine.name}.jsonl").read_text(encoding="utf-8").splitlines()
    assert committed == zoo.capture(machine).splitlines()


def test_every_capture_says_whether_it_is_real_and_every_description_has_one() -> None:
    origins = {path.stem: json.loads(path.read_text(encoding="utf-8").partition("\n")[0]) for path in CAPTURES}
    assert {name for name, header in origins.items() if header["origin"] == "synthetic"} == set(zoo.MACHINES)
    assert {name for name, header in origins.items() if header["origin"] == "real"} == {*REAL}
    assert len({header["node"] for header in origins.values()}) == len(origins)


@each_row("path", CAPTURES, ids=lambda path: path.stem)
def test_every_collector_answers_or_says_why(path: Path) -> None:
    snapshot, in_vain = replayed(path)
    later = {question for question, machines in ASKED_SINCE.items() if path.stem in machines}
    new, asked = in_vain - later, later - in_vain
    assert not new, f"{path.stem} was not asked {sorted(new)}: {_MADE if path.stem not in REAL else _TAKEN}"
    assert not asked, f"ASKED_SINCE has what {path.stem} was asked, or is asked no more: {sorted(asked)}"
    for kind, fact in snapshot.facts.items():
        for where, absent in absences(fact, kind.__name__):
            assert absent.why
            # one machine alone measured nothing with others
            if not absent.why.startswith(f"this run did not try it ({SAMPLE} "):
                assert absent.refused not in ("ParseError", "NotCaptured"), f"{where}: {absent}"


@every_gpu_machine
def test_the_tree_gives_the_matrix_of_nvidia_smi_and_nccls_paths_agree_with_it(machine: Description) -> None:
    """spec: the words are from texts of such machines, the tree is described apart from them.

    NODE is NCCL's PHB, NVn is NVL; a second level of some switches, and a relay, bring GPUs nearer.
    """
    seen = distances(machine)
    assert {pair: seen.smi[pair] for pair in machine.words} == machine.words
    matrix = learned(machine, Matrix)
    assert {(one, other): word for one, row in matrix.links.items() for other, word in row.items()} == machine.words
    assert matrix.incomplete == ()
    nearer = {PathType.PXB: PathType.PIX, PathType.SYS: PathType.NVB}
    for (one, other), path in some(seen.paths.items()):
        word = machine.words[one, other]
        told = {"X": "LOC", "NODE": "PHB"}.get(word, "NVL" if word.startswith("NV") else word)
        assert path in (PathType[told], nearer.get(PathType[told]))


def distances(machine: Description) -> Any:
    tree, gpus, fabric = learned(machine, Pci), learned(machine, Gpus), learned(machine, Fabric)
    places = [normal(gpu.pci) for gpu in gpus.all]
    links = [row for row in learned(machine, NvLinks).gpus if not isinstance(row, Absent)]
    remotes = {
        place: [normal(str(link.remote_pci)) for link in row] for place, row in zip(places, links, strict=True) if row
    }
    nics = {device.name: str(device.pci) for device in fabric.devices}
    return topology(tree, {f"GPU{index}": place for index, place in enumerate(places)}, nics, remotes)


def test_a_question_that_nobody_described_is_an_error_of_the_description() -> None:
    for question in (("read", "/somewhere/else"), ("nvml", "nvmlDeviceGetCount"), ("unheard",)):
        with pytest.raises(UndescribedError):
            Answers().ask(*question)
