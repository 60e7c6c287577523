"""Guess the machine of a log that names only its GPUs: assume the usual parts, which the report lists.

``tables/assumed.csv`` has the NICs by GPU and count. If the measurement refutes an assumption, the next description
that allows it is used. A row never fails because of an assumption.
"""

import csv
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import MappingProxyType

from ncclprobe.expect import composed
from ncclprobe.expect.system import NodeSystem
from ncclprobe.expect.tables import machines
from ncclprobe.expect.tables.gpus import GpuProduct
from ncclprobe.expect.tables.machines import MachineType
from ncclprobe.model.errors import UsageError
from ncclprobe.model.units import plural
from ncclprobe.model.values import Struct, replace

_FALLBACK: Mapping[int, str] = MappingProxyType({7: "100 Gb/s ib", 8: "200 Gb/s ib", 9: "400 Gb/s ib"})
"""One such NIC per GPU on a board that the table lacks, by GPU generation; 400 Gb/s for later generations."""
_CARD = "1 NIC x 100 Gb/s roce"
"""PCIe-card servers have no usual number of NICs; assume one."""
_LADDER = (
    "8 NICs x 800",
    "8 NICs x 400",
    "8 NICs x 200",
    "4 NICs x 400",
    "4 NICs x 200",
    "2 NICs x 400",
    "2 NICs x 200",
    "1 NIC x 400",
    "1 NIC x 200",
    "1 NIC x 100",
)
"""NICs of usual nodes, fastest first; below these there is TCP."""
_TCP = ("1 NIC x 100 Gb/s sockets", "1 NIC x 25 Gb/s sockets", "1 NIC x 10 Gb/s sockets")
_RATE = re.compile(r"(\d{1,2}) NICs? (?:per GPU )?x (\d{1,4})")
_BOARD, _TRAY = 8, 4
_IN_WORDS = re.compile(r"\b(1?\d) ?[x\u00d7] ?((?:NVIDIA |Tesla |GeForce |RTX )?[A-Z]{1,3}\d{1,4}[\w-]{0,12})\b")
UNNAMED = ("NVIDIA Graphics Device", "Graphics Device")
"""The driver's names for a GPU that is newer than the driver."""
_OTHERS = re.compile(
    r"\b(?:amd|instinct|radeon|gfx\d\w{2,3}|mi\d{3}\w?|gaudi\d?|ascend|mthreads|metax)\b", re.IGNORECASE
)


class Node(Struct, frozen=True):
    """One node of a log: `count` GPUs called `gpu` on each of `nodes`, and NICs if NCCL's lines name them.

    `guessed`: the list of devices was cut off, and `count` is the usual board's.
    """

    gpu: str
    count: int
    nodes: int
    network: str = ""
    nics: int = 0
    guessed: bool = False


class Assumed(Struct, frozen=True):
    """A guessed machine: `described` is a value for --machine, `words` the assumptions; empty: none."""

    system: NodeSystem
    machine: MachineType | None
    described: str
    words: str


class _Usual(Struct, frozen=True):
    """One row of the table; `gpus` 0: any number."""

    gpu: str
    gpus: int
    machine: str
    parts: str


def foreign(gpu: str) -> str:
    """Return why nothing is judged for `gpu`; empty if it is a known NVIDIA GPU."""
    if _OTHERS.search(gpu):
        return f"not judged: {gpu} is not an NVIDIA GPU, and only NCCL is modelled"
    if gpu in UNNAMED:
        return f"not judged: the driver called these GPUs {gpu!r}, because it did not know them; give --machine NAME"
    try:
        composed.product_called(gpu)
    except UsageError as error:
        return f"not judged: {str(error).removeprefix('--machine: ')}: describe the machine with --machine"
    return ""


def machine_in(text: str) -> MachineType | None:
    """Return the machine type that a text names; None if it names none, or several."""
    names = [machines.file_name(each) for each in machines.table()]
    patterns = {name: rf"(?<!\w){re.escape(name)}(?!\w)".replace(r"\-", "[ _-]") for name in names}
    whole = [name for name, pattern in patterns.items() if re.search(pattern, text, re.IGNORECASE)]
    longest = [name for name in whole if not any(name in other and name != other for other in whole)]
    return machines.named(longest[0]) if len(longest) == 1 else None


def gpus_in(text: str) -> tuple[str, int]:
    """Return the GPU and the number of GPUs per node that a text names; empty and 0: none, or several kinds."""
    if machine := machine_in(text):
        return machine.gpu, machine.links.gpus
    found = set[tuple[str, int]]()
    for count, name in _IN_WORDS.findall(text):
        with suppress(UsageError):
            found.add((composed.product_called(name).name, int(count)))
    return found.pop() if len(found) == 1 else ("", 0)


def board(gpu: str) -> int:
    """Return the number of GPUs on the usual board of this GPU; 0: PCIe cards, or unknown."""
    wiring = composed.product_called(gpu).wiring if gpu and not foreign(gpu) else ""
    return {"board": _BOARD, "rack": _TRAY}.get(wiring or "", 0)


def candidates(node: Node) -> Iterator[Assumed]:
    """Yield candidates for `node`: the usual machine first, then stronger ones.

    Raises UsageError for an unknown GPU.
    """
    product = composed.product_called(node.gpu)
    usual = _usual(product, node.count, node.network)
    if usual and usual.machine:
        machine = machines.table()[usual.machine]
        system = machine.system()
        if usual.parts:
            count, rate = _rate(usual.parts)
            system = replace(system, nics=count, nic_gbps=float(rate))
        yield Assumed(system, machine, machine.name, _rack_words(machine, node))
        return
    name = product.name.removeprefix("NVIDIA ").removeprefix("GeForce ")
    for inside in _usual_gpu_links(product, node.count):
        for outside in _usual_nics(usual, node, product):
            parts = [part for part in (inside, outside) if part]
            described = ", ".join([f"{node.count} x {name}", *parts])
            system = composed.composed(f"{node.count} x {product.name}" + "".join(f", {part}" for part in parts))
            yield Assumed(system, None, described, "; ".join(_words(product, node, inside, outside)))


def assume_nics(system: NodeSystem, node: Node) -> Assumed | None:
    """Return `system`, which was described without NICs, with the usual ones; None if it has some."""
    if system.nics or node.nodes < 2:
        return None
    product = composed.product_called(system.gpu)
    parts = next(_usual_nics(_usual(product, system.gpus, node.network), node, product))
    found = composed.composed(f"{system.gpus} x {product.name}, {parts}")
    nics = {name: getattr(found, name) for name in ("nics", "nic_gbps", "network", "gdr")}
    return Assumed(replace(system, **nics), None, parts, parts)


def fabric(node: Node) -> str:
    """Return the usual NICs of such nodes; empty: none are usual, or the job has one node."""
    usual = _usual(composed.product_called(node.gpu), node.count, "") if node.nodes > 1 else None
    return usual.parts if usual else ""


def weaker(found: Assumed) -> Iterator[Assumed]:
    """Yield the same node with fewer or slower NICs than assumed, the fastest first."""
    system = found.system
    for parts in (*_LADDER, *_TCP):
        count, rate = _rate(parts)
        tcp = parts in _TCP
        if count * rate < system.nics * system.nic_gbps or (tcp and count * rate <= system.nics * system.nic_gbps):
            other = replace(system, nics=count, nic_gbps=float(rate))
            other = replace(other, network="sockets", gdr=False) if tcp else other
            yield replace(found, system=other, described=parts if tcp else f"{parts} Gb/s")


def _rate(parts: str) -> tuple[int, int]:
    found = _RATE.match(parts)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@cache
def _table() -> Sequence[_Usual]:
    data = pkgutil.get_data("ncclprobe.expect.tables", "assumed.csv") or b""
    rows = csv.DictReader(data.decode().splitlines())
    return tuple(_Usual(row["gpu"], int(row["gpus"] or 0), row["machine"], row["parts"]) for row in rows)


def _usual(product: GpuProduct, count: int, network: str) -> _Usual | None:
    """Return the best-fitting row: preferably of this network, then with the longest name. A machine may use fewer GPUs
    than it has.
    """
    fits = [row for row in _table() if f"{product.name} ".startswith(row.gpu)]
    fits = [row for row in fits if row.machine or row.gpus in (0, count)]
    fits = [row for row in fits if not row.machine or count <= row.gpus]
    fits = [row for row in fits if row.parts.rpartition(" ")[2] in (network, "ib", "roce", "slingshot", "")]
    return max(fits, key=lambda row: (row.parts.endswith(f" {network}"), len(row.gpu), row.gpus), default=None)


def _usual_gpu_links(product: GpuProduct, count: int) -> Iterator[str]:
    """Yield the links between the GPUs of a node, the usual first; empty: nothing needs to be named."""
    yield ""
    if count < 2 or product.wiring in ("board", "rack", "system"):
        return
    if product.p2p is False:
        yield "P2P"
    if count > 1 and product.p2p is not False:
        yield "1 socket"
    elif count > 1:
        yield "P2P, 1 socket"
    if product.nvlinks and count % 2 == 0:
        yield "NVLink bridges"
    if product.nvlinks and count % 4 == 0 and product.nvlinks % 3 == 0:
        yield "bridges of 4"


def _usual_nics(usual: _Usual | None, node: Node, product: GpuProduct) -> Iterator[str]:
    """Yield the NICs of a node, the usual first."""
    if node.nodes < 2:
        yield ""
        return
    first = usual.parts if usual else _CARD
    if usual is None and product.wiring in ("board", "system"):
        first = f"{plural(node.count, 'NIC')} x {_FALLBACK.get(product.compute_capability // 10, '400 Gb/s ib')}"
    count, rate = _rate(first)
    network = node.network or first.rpartition(" ")[2]
    if "per GPU" in first:
        count *= node.count
    if node.nics:
        count = node.nics
    yield f"{count} NIC{'s' * (count != 1)} x {rate} Gb/s {network}"
    if not node.nics:
        yield from (f"{each} Gb/s {network}" for each in reversed(_LADDER) if _total(each) > count * rate)


def _total(parts: str) -> int:
    count, rate = _rate(parts)
    return count * rate


def _words(product: GpuProduct, node: Node, inside: str, outside: str) -> Iterator[str]:
    """Yield what was assumed about a node. A full board of eight needs no assumption: its switches join all GPUs."""
    whole = node.count == _BOARD and product.wiring == "board"
    if node.guessed:
        yield f"{plural(node.count, 'GPU')} per node"
    if node.count > 1 and product.wiring == "board" and not whole:
        yield "GPUs joined by NVSwitch"
    elif node.count > 1 and not whole:
        yield inside or _usual_inside(product, node.count)
    if outside:
        yield outside


def _usual_inside(product: GpuProduct, count: int) -> str:
    if product.wiring == "system":
        return "the board's own NVLinks"
    sockets = "one socket" if count <= 4 else "two sockets"
    bridges = ", no NVLink bridges" if product.nvlinks else ""
    return f"{sockets}, {'no P2P' if product.p2p is False else 'P2P'}{bridges}"


def _rack_words(machine: MachineType, node: Node) -> str:
    if node.nodes < 2:
        return ""
    if machine.links.domain_gpus > machine.links.gpus:
        whole = machine.links.domain_gpus // machine.links.gpus
        of_nodes = "all nodes in one NVLink domain" if node.nodes <= whole else f"NVLink domains of {whole} nodes"
        return f"{machine.name}, {of_nodes}"
    return f"{machine.name}, {machine.links.nics} x {machine.links.nic_gbps:g} Gb/s"
