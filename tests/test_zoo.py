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

from ncclprobe.engine import diagnose
from ncclprobe.engine.collect import collect
from ncclprobe.engine.judge import conclude, judge
from ncclprobe.facts.cpu import Cpus, cpu_list
from ncclprobe.facts.driver import Driver
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nvidia_smi import ASK, Smi
from ncclprobe.facts.nvlink import NvLinks, NvlinkStatus
from ncclprobe.facts.nvml import Gpus, PeerAccess
from ncclprobe.facts.pci import Pci, normal
from ncclprobe.facts.plugins import Plugins
from ncclprobe.facts.process import Memlock
from ncclprobe.facts.software import Software
from ncclprobe.facts.topo_matrix import Matrix
from ncclprobe.host import SAMPLE, Question
from ncclprobe.host.capture import Replay, load
from ncclprobe.model.findings import Severity, Status
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import Struct
from ncclprobe.nccl.paths import PathType, topology
from tests.each_row import each_row, some

T = TypeVar("T")
CAPTURES = sorted(zoo.CAPTURES.glob("*.jsonl"))
SYNTHETIC = list(zoo.MACHINES.values())
WITH_GPUS = [machine for machine in SYNTHETIC if machine.gpu]
NOT_UNDERSTOOD = ("ParseError", "NotCaptured")
_BUILD, _GUESTS, _H100 = "build-vm", ("guest-rxe-root", "guest-rxe-nobody"), "h100-vm"
REAL = (_BUILD, *_GUESTS, _H100)
ASKED_SINCE: dict[Question, tuple[str, ...]] = {
    ("home",): (_BUILD, *_GUESTS),
    ASK: (_BUILD, *_GUESTS),
    ("read", "/sys/fs/cgroup/pids.max"): _GUESTS,
    ("read", "/sys/fs/cgroup/pids/pids.max"): (_BUILD,),
    ("bytes", "/sys/bus/pci/devices/0000:00:03.0/config"): (_BUILD,),
    ("bytes", "/sys/bus/pci/devices/0000:43:00.0/config"): _GUESTS,
    ("bytes", "/sys/bus/pci/devices/0000:44:00.0/config"): _GUESTS,
}
"""Questions that came after real machines were captured, and which of REAL they were not asked. A new one is of all."""

_MADE = "describe the answer in tests/zoo, and run scripts/write_captures.py"
_TAKEN = "a real machine, captured before; add the question to ASKED_SINCE of tests/test_zoo.py, for REAL"

every_capture = each_row("path", CAPTURES, ids=lambda path: path.stem)
every_description = each_row("machine", SYNTHETIC, ids=lambda machine: machine.name)
every_gpu_machine = each_row("machine", WITH_GPUS, ids=lambda machine: machine.name)


class Listening:
    """A capture that notes what it was asked in vain."""

    def __init__(self, replay: Replay, held: frozenset[Question]) -> None:
        self.replay, self.held = replay, held
        self.in_vain: list[Question] = []

    def ask(self, *question: str | int) -> str:
        if question not in self.held and question[0] != SAMPLE:
            self.in_vain.append(question)
        return self.replay.ask(*question)


@cache
def replayed(path: Path) -> tuple[Snapshot, tuple[Question, ...]]:
    """The facts of a capture, and the questions that it does not hold."""
    host = load(path)
    listening = Listening(host, frozenset(host.answers))
    return Snapshot(host.node, collect(listening, discover("ncclprobe.facts", Collector, {"machine"}))), tuple(
        listening.in_vain
    )


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
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from absences(item, f"{where}[{key}]")
    elif isinstance(value, tuple | list):
        for number, item in enumerate(value):
            yield from absences(item, f"{where}[{number}]")


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


@every_description
def test_every_description_names_its_sources(machine: Description) -> None:
    assert machine.sources
    assert all(machine.sources)


@every_capture
def test_every_collector_answers_or_says_why(path: Path) -> None:
    snapshot, in_vain = replayed(path)
    later = {question for question, machines in ASKED_SINCE.items() if path.stem in machines}
    new, asked = set(in_vain) - later, later - set(in_vain)
    assert not new, f"{path.stem} was not asked {sorted(new)}: {_MADE if path.stem not in REAL else _TAKEN}"
    assert not asked, f"ASKED_SINCE has what {path.stem} was asked, or is asked no more: {sorted(asked)}"
    for kind, fact in snapshot.facts.items():
        for where, absent in absences(fact, kind.__name__):
            assert absent.why
            if absent.why.startswith(f"this run did not try it ({SAMPLE} "):
                continue  # one machine alone measured nothing with others
            assert absent.refused not in NOT_UNDERSTOOD, f"{where}: {absent}"


@every_capture
def test_a_healthy_machine_has_no_finding_above_a_note(path: Path) -> None:
    snapshot, _ = replayed(path)
    backend = "nccl" if isinstance(snapshot.facts[Gpus], Gpus) else "gloo"
    verdicts = judge([snapshot], diagnose.every_check(diagnose.MACHINE), Job(backend))
    found = {
        (v.id, finding.message) for v in verdicts for finding in v.findings if finding.severity is not Severity.NOTE
    }
    assert found == set()
    assert conclude(verdicts)[0] is Status.PASS, [(v.id, v.why) for v in verdicts]


@every_gpu_machine
def test_gpus_are_those_described(machine: Description) -> None:
    gpus, model = learned(machine, Gpus), machine.gpu
    assert model
    assert [gpu.name for gpu in gpus.all] == [model.name] * machine.gpus
    assert not any(gpu.lost for gpu in gpus.all)
    assert {gpu.memory_bytes for gpu in gpus.all} == {model.memory_gib << 30}
    assert (gpus.driver, learned(machine, Driver).version) == (machine.software.driver,) * 2
    assert (learned(machine, Driver).flavour == "open") is machine.software.open_driver
    assert learned(machine, Smi).gpus == machine.gpus


@every_gpu_machine
def test_gpus_idle_at_generation_1_and_full_width(machine: Description) -> None:
    gpus, model = learned(machine, Gpus), machine.gpu
    devices = learned(machine, Pci).of("gpu")
    assert model
    assert len(devices) == machine.gpus
    if not model.pcie:  # chip to chip
        assert all(isinstance(gpu.pcie_width, Absent) for gpu in gpus.all)
        return
    assert {(gpu.pcie_generation, gpu.pcie_width, gpu.pcie_max_generation) for gpu in gpus.all} == {(1, 16, model.pcie)}
    links = [device.link for device in devices if not isinstance(device.link, Absent)]
    assert len(links) == machine.gpus
    assert {(link.speed_gtps, link.width, link.max_width) for link in links} == {(2.5, 16, 16)}
    assert {link.max_speed_gtps for link in links} == {{3: 8.0, 4: 16.0, 5: 32.0}[model.pcie]}


@every_gpu_machine
def test_nvlinks_are_those_described(machine: Description) -> None:
    found, model = learned(machine, NvLinks), machine.gpu
    assert model
    seen = [links for links in found.gpus if not isinstance(links, Absent)]
    assert [len(links) for links in seen] == [len(row) for row in machine.remotes or [()] * machine.gpus]
    every = [link for links in seen for link in links]
    assert {link.state for link in every} <= {"active"}
    assert {link.speed_MBps for link in every} <= {model.link_mbps}
    assert {link.version for link in every} <= {model.link_version}
    for errors in ("replays", "recoveries", "effective_errors"):
        assert {getattr(link, errors) for link in every if not isinstance(getattr(link, errors), Absent)} <= {0}
    printed = {index: list(links.links) for index, links in learned(machine, NvlinkStatus).gpus.items()}
    assert printed == {index: list(range(len(row))) for index, row in enumerate(machine.remotes)}


@every_gpu_machine
def test_peers_are_refused_only_where_the_description_says_so(machine: Description) -> None:
    access = learned(machine, PeerAccess)
    for (one, other), status in access.read.items():
        joined = machine.words[f"GPU{one}", f"GPU{other}"].startswith("NV")
        assert status == ("OK" if joined else machine.p2p)
        assert access.nvlink[one, other] == ("OK" if joined else "NS")
    assert len(access.read) == machine.gpus * (machine.gpus - 1)


@every_description
def test_rdma_ports_are_those_described(machine: Description) -> None:
    ports = {port.device: port for port in learned(machine, Fabric).ports}
    cards = {nic.rdma: nic for nic in machine.nics if nic.rdma}
    assert ports.keys() == cards.keys()
    for name, port in ports.items():
        nic = cards[name]
        assert (port.state, port.physical, port.link_layer) == ("ACTIVE", "LinkUp", nic.layer)
        assert not isinstance(port.rate, Absent)
        assert nic.rate.startswith(f"{port.rate.gbps:g} Gb/sec ({port.rate.lanes}X")
        assert port.gids
    assert all(device.opens is True for device in learned(machine, Fabric).devices)
    assert all(isinstance(device.pci, str) for device in learned(machine, Fabric).devices)
    assert learned(machine, Memlock).soft_bytes is None


@every_description
def test_processors_and_numa_nodes_are_those_described(machine: Description) -> None:
    cpus = learned(machine, Cpus)
    nodes = machine.processors.nodes
    assert {node.id: node.cpus for node in cpus.numa} == {node: cpu_list(listed) for node, listed in nodes.items()}
    assert all(len(node.distances) == len(nodes) for node in cpus.numa)
    assert sorted(cpus.online) == sorted(cpu for node in cpus.numa for cpu in node.cpus)


@every_description
def test_interfaces_are_those_described(machine: Description) -> None:
    found = {i.name: i for i in learned(machine, Interfaces).all if not i.loopback}
    assert found.keys() == {nic.netdev for nic in machine.nics if nic.netdev}
    for nic in (nic for nic in machine.nics if nic.netdev):
        seen = found[nic.netdev]
        assert (seen.driver, seen.mtu, seen.running) == (nic.model.driver, nic.mtu, True)
        assert seen.speed_mbps == (nic.speed_mbps if nic.speed_mbps > 0 else None)
        assert [a.address for a in seen.addresses] == [nic.address.partition("/")[0]] * bool(nic.address)
        assert seen.pci in learned(machine, Pci).devices


@every_description
def test_software_and_firmware_are_those_described(machine: Description) -> None:
    software, own = machine.software, learned(machine, Machine)
    expected = software.nccl or software.system_nccl
    assert learned(machine, Software).nccl_version == (tuple(map(int, expected.split("."))) if expected else None)
    assert own.virtual is (None if machine.processors.arch != "x86_64" else machine.processors.virtual)
    clouds = {"Amazon EC2": "aws", "Google": "gcp"}
    assert own.cloud == clouds.get(machine.firmware.vendor, "")
    plugins = {plugin.path for plugin in learned(machine, Plugins).all}
    assert plugins == {f"{folder}/{name}" for folder, names in software.plugins.items() for name in names}


@every_gpu_machine
def test_the_tree_gives_the_matrix_that_nvidia_smi_prints_on_this_machine(machine: Description) -> None:
    """spec: the words are from texts of such machines, the tree is described apart from them."""
    seen = distances(machine)
    assert {pair: seen.smi[pair] for pair in machine.words} == machine.words
    matrix = learned(machine, Matrix)
    assert {(one, other): word for one, row in matrix.links.items() for other, word in row.items()} == machine.words
    assert matrix.incomplete == ()


@every_gpu_machine
def test_nccls_paths_agree_with_the_matrix(machine: Description) -> None:
    """NODE is NCCL's PHB, NVn is NVL; a second level of some switches, and a relay, bring GPUs nearer."""
    nearer = {PathType.PXB: PathType.PIX, PathType.SYS: PathType.NVB}
    for (one, other), path in some(distances(machine).paths.items()):
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
