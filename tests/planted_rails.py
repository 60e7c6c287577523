"""Plant the loss of a rail in captured machines, and see whether facts name it.

A rail is an RDMA device that is the nearest of a GPU. In a fleet one machine has lost it: its port is down, disabled,
on one lane or at half its rate, or the device is gone.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fleets.captures import capture

from ncclprobe.checks.ib import distances, groups, serving
from ncclprobe.engine.collect import Traces, capture_facts
from ncclprobe.engine.diagnose import MACHINE, every_check
from ncclprobe.engine.judge import judge
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.host import Question
from ncclprobe.host.capture import Replay, parse
from ncclprobe.model.errors import HostError
from ncclprobe.model.findings import Severity
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Job, Snapshot

CAPTURES = Path(__file__).parent / "captures"
MOST = 4
IB, VERBS, PCI = "/sys/class/infiniband", "/sys/class/infiniband_verbs", "/sys/bus/pci/devices"
_COLLECTORS = discover("ncclprobe.facts", Collector, MACHINE)

Answers = dict[Question, str | HostError]
Plant = Callable[[Answers, str], None]


def port(**values: str) -> Plant:
    """A port of which the kernel says this."""

    def plant(answers: Answers, device: str) -> None:
        for name, text in values.items():
            answers["read", f"{IB}/{device}/ports/1/{name}"] = f"{text}\n"

    return plant


def slowed(lanes: int, share: float) -> Plant:
    """A port of which not all lanes have trained, or not at their rate."""

    def plant(answers: Answers, device: str) -> None:
        said = str(answers["read", f"{IB}/{device}/ports/1/rate"])
        found = re.fullmatch(r"([\d.]+) Gb/sec \(\d+X ?(\w*)\)\s*", said)
        assert found, said
        port(rate=f"{float(found[1]) * share:g} Gb/sec ({lanes}X {found[2]})")(answers, device)

    return plant


def _without(answers: Answers, question: Question, *gone: str) -> None:
    said = answers.get(question)
    if isinstance(said, str):
        answers[question] = json.dumps([name for name in json.loads(said) if name not in gone])


def no_driver(answers: Answers, device: str) -> None:
    """The card is on the bus, and its driver made no RDMA device of it."""
    listed = json.loads(str(answers["list", VERBS]))
    own = [name for name in listed if str(answers.get(("read", f"{VERBS}/{name}/ibdev"))).strip() == device]
    _without(answers, ("list", IB), device)
    _without(answers, ("list", VERBS), *own)


def off_the_bus(answers: Answers, device: str) -> None:
    """The card has left the PCI bus, with its interfaces."""
    address = str(answers["link", f"{IB}/{device}/device"]).rpartition("/")[2]
    links = {str(question[1]): str(said) for question, said in answers.items() if question[0] == "link"}
    netdevs = [
        name.rpartition("/")[2]
        for name, said in links.items()
        if name.startswith("/sys/class/net/") and f"/{address}/" in said
    ]
    no_driver(answers, device)
    answers.pop(("run", "nvidia-smi", "topo", "-m"), None)  # a table with a column less, which is not made here
    _without(answers, ("list", PCI), address)
    _without(answers, ("list", "/sys/class/net"), *netdevs)
    for kind in ("net_if_addrs", "net_if_stats"):
        said = json.loads(str(answers["psutil", kind]))
        answers["psutil", kind] = json.dumps({name: each for name, each in said.items() if name not in netdevs})


def renamed(answers: Answers, device: str) -> None:
    """The card was not on the bus when the node booted: the driver counts the others, mlx5_0 to the last."""
    off_the_bus(answers, device)
    lost = int(device.removeprefix("mlx5_"))

    def name(text: str) -> str:
        return re.sub(r"mlx5_(\d+)", lambda m: f"mlx5_{int(m[1]) - (int(m[1]) > lost)}", text)

    said = {
        tuple(name(part) if isinstance(part, str) else part for part in question): name(text)
        if isinstance(text, str) and question[0] != "run"
        else text
        for question, text in answers.items()
        if not re.search(rf"\b{device}\b", " ".join(map(str, question)))
    }
    answers.clear()
    answers.update(said)


PLANTS: dict[str, Plant] = {
    "port DOWN, Polling": port(state="1: DOWN", phys_state="2: Polling"),
    "port DOWN, Disabled": port(state="1: DOWN", phys_state="3: Disabled"), "one lane of four": slowed(1, 0.25),
    "half rate": slowed(2, 0.5), "no RDMA device": no_driver, "off the PCI bus": off_the_bus,
    "off the PCI bus at boot, others renamed": renamed,
}  # fmt: skip


class Told(NamedTuple):
    """What is said above a note: check, subject, message, and the nodes that are named."""

    check: str
    subject: str
    message: str
    nodes: tuple[str, ...]


class Outcome(NamedTuple):
    """One planting. `named`: by findings on the right node that name the device. `told`: the node, not the device.

    `others`: findings that name another node, or another NIC.
    """

    named: tuple[Told, ...] = ()
    told: tuple[Told, ...] = ()
    others: tuple[Told, ...] = ()


class Machines(NamedTuple):
    """Machines of one capture: their answers and facts. `rails`: RDMA devices that are the nearest of a GPU."""

    answers: list[Answers]
    snapshots: list[Snapshot]
    rails: list[str]


@cache
def machines(name: str) -> Machines:
    """Machines of the capture `name`."""
    hosts = [parse(capture(CAPTURES / f"{name}.jsonl", n), f"n{n}") for n in range(MOST)]
    traces = Traces()
    snapshots = [capture_facts(host, _COLLECTORS, traces) for host in hosts]
    facts = snapshots[0].facts
    pci, gpus, fabric = facts[Pci], facts[Gpus], facts[Fabric]
    near = serving(groups(distances(pci, gpus, fabric), [device.name for device in fabric.devices]))
    rails = [device.name for device in fabric.devices if device.name in near or not near]
    return Machines([dict(host.answers) for host in hosts], snapshots, rails)


def above_a_note(snapshots: Sequence[Snapshot]) -> set[Told]:
    """All that is said of these machines but notes."""
    return {
        Told(v.id, each.subject, each.message, (v.node,) if v.node else each.nodes)
        for v in judge(snapshots, every_check(MACHINE), Job())
        for each in v.findings
        if each.severity is not Severity.NOTE
    }


def outcome(found: set[Told], healthy: set[Told], node: str, device: str) -> Outcome:
    """What the fault added to what is said of the healthy machines."""
    new = sorted(found - healthy)
    others = [each for each in new if _blames_another(each, node, device)]
    right = [each for each in new if each not in others]
    named = [each for each in right if node in f"{each.nodes} {each.message}" and _says(device, each)]
    return Outcome(tuple(named), tuple(each for each in right if each not in named), tuple(others))


def _says(device: str, told: Told) -> bool:
    """Whether a finding is about the device, or says that it is gone; not where it is another's neighbour."""
    lacks = rf"has no [^;]*\b{device}\b|\b{device}\b[^;]* near it"
    return re.search(rf"\b{device}\b", told.subject) is not None or re.search(lacks, told.message) is not None


def _blames_another(told: Told, node: str, device: str) -> bool:
    nic = re.match(r"(mlx5_\d+|rdmap\w+)", told.subject)
    return bool(set(told.nodes) - {node}) or (nic is not None and nic[0] != device)


def planted(name: str, plant: Plant, device: str, size: int) -> Outcome:
    """The doctor over `size` captures, one of them with the fault."""
    those = machines(name)
    fleet, at = those.snapshots[:size], (those.rails.index(device) + 1) % size
    answers, healthy = dict(those.answers[at]), above_a_note(fleet)
    plant(answers, device)
    fleet[at] = capture_facts(Replay(answers, f"n{at}"), _COLLECTORS)
    return outcome(above_a_note(fleet), healthy, f"n{at}", device)
