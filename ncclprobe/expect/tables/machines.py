"""Machine types: how one is recognised, its parts, and the published results of runs on it.

One file of ``machines/`` is one type. Its name, ``[match]`` and ``[links]`` are facts about the product, each number
with its source; ``[[published]]`` are bus bandwidths and ``[[latency]]`` times from public sources::

    name = "p4d.24xlarge"
    vendor = "AWS"

    [match]
    cloud = "aws"                       # by ncclprobe.facts.machine
    products = ["p4d.24xlarge"]         # DMI product_name, whole or its first words
    gpu_names = ["NVIDIA A100-SXM4-40GB"]

    [links]
    gpus = 8
    fabric = "nvswitch"
    nics = 4
    nic_gbps = 100.0
    network = "efa"
    gdr = true
    source = "https://github.com/aws/karpenter-provider-aws …"

    [[published]]
    op = "all_reduce"
    gpus = 8                            # of each node
    nodes = 2
    algorithm = "tree"
    min_bytes = "1G"
    below_bytes = "2G"                  # left out: whatever is larger
    busbw_GBps = 76.8
    threshold_GBps = 70.0                     # only where a source says what still passes
    source = "https://…"
    why = "2 nodes: a tree"

A number above what the links carry is refused, unless the entry names an algorithm that reaches it (busbw counts a
ring's traffic; NVLS, Tree and SHARP move less).
"""

import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from ncclprobe.expect.strict import Positive, PositiveInt, Tables, Text, converted, document
from ncclprobe.expect.system import Network, NicPath, NodeSystem, NvlinkFabric, Processor
from ncclprobe.expect.tables import gpus
from ncclprobe.expect.tables.gpus import GpuProduct
from ncclprobe.model.additions import MACHINES, Addition, installed, module_of
from ncclprobe.model.errors import UsageError, unknown
from ncclprobe.model.ops import OPS
from ncclprobe.model.values import Struct, replace

if TYPE_CHECKING:
    from importlib.abc import Traversable  # its place in Python 3.10


class Match(Struct, frozen=True):
    """The facts that identify this type; all that are given must fit.

    `cloud` is as facts.machine spells it, `vendor` DMI's sys_vendor, `products` its product_name, whole or its first
    words, `cpus` one word of the processor's name. `elsewhere`: no cloud, and not one of NVIDIA's own machines. `twins`
    are types that no fact tells apart from this one. `by_name_only`: why nothing can be recognised; excludes all other
    keys.
    """

    gpu_names: Annotated[tuple[Text, ...], Meta(min_length=1)]
    cloud: Literal["", "aws", "azure", "gcp", "oracle"] = ""
    vendor: str = ""
    products: tuple[Text, ...] = ()
    cpus: tuple[Text, ...] = ()
    elsewhere: bool = False
    twins: tuple[Text, ...] = ()
    by_name_only: str = ""


class NodeLinks(Struct, frozen=True):
    """The parts of a node: see :class:`~ncclprobe.expect.system.NodeSystem` for each name; None: unknown.

    `at_roots`: no switch joins the GPUs. If one NIC appears as `ports_per_nic` of `nics`, NCCL merges them
    (ncclTopoMakeVNics, src/graph/topo.cc, v2.30.7). `unverified` are names of fields that no source states.
    """

    gpus: PositiveInt
    fabric: NvlinkFabric
    source: Text
    nvlinks: int
    domain_gpus: int
    nvls: bool
    pcie_GBps: Positive
    p2p: bool
    nics: PositiveInt | None = None
    nic_gbps: Positive | None = None
    network: Network | None = None
    gdr: bool = False
    nic_path: NicPath = "PXB"
    processor: Processor = "unknown"
    sockets: PositiveInt = 1
    at_roots: bool = False
    ports_per_nic: PositiveInt = 1
    unverified: tuple[str, ...] = ()


class Published(Struct, frozen=True):
    """A published bus bandwidth of this type, and its threshold if the source gives one.

    For `op` on `nodes` nodes with `gpus` each, sizes from `min_bytes` to those `below_bytes`. `algorithm` is empty if
    it does not matter.
    """

    op: Text
    gpus: PositiveInt
    nodes: PositiveInt
    min_bytes: int
    busbw_GBps: Positive
    source: Text
    why: Text
    below_bytes: int = sys.maxsize
    threshold_GBps: Positive | None = None
    algorithm: Literal["", "ring", "tree", "nvls", "nvlstree", "sharp"] = ""

    @property
    def max_bytes(self) -> int:
        """Return the largest size that the number covers."""
        return self.below_bytes - 1

    @property
    def ranks(self) -> int:
        """Return the number of ranks, one per GPU."""
        return self.gpus * self.nodes

    def overlaps(self, other: "Published") -> bool:
        """Return whether both cover a common case."""
        same = (self.op, self.gpus, self.nodes) == (other.op, other.gpus, other.nodes)
        return same and self.min_bytes <= other.max_bytes and other.min_bytes <= self.max_bytes


class Latency(Struct, frozen=True):
    """The time of a small call, up to `max_bytes`; `high_us` is the longest that its source calls normal."""

    op: Text
    gpus: PositiveInt
    nodes: PositiveInt
    max_bytes: int
    time_us: Positive
    source: Text
    why: Text
    high_us: Positive | None = None


class MachineType(Struct, frozen=True):
    """One type of machine. `gpu` is NVML's name of its GPU.

    `board` is the type with the same GPUs on the same baseboard, whose single-node numbers hold here too; the type's
    own numbers take precedence. `origin`: the distribution of a site's own type; empty: it ships with ncclprobe.
    """

    name: str
    vendor: str
    gpu: str
    match: Match
    links: NodeLinks
    board: str = ""
    published: tuple[Published, ...] = ()
    latencies: tuple[Latency, ...] = ()
    title: str = ""
    note: str = ""
    origin: str = ""

    def system(self) -> NodeSystem:
        """Return the machine as the cost model sees it."""
        gpu, links = gpus.table()[self.gpu], self.links
        known = {name: getattr(links, name) for name in links.__struct_fields__ if name in NodeSystem.__struct_fields__}
        known["nics"] = (links.nics or 0) // links.ports_per_nic
        known["nic_gbps"] = (links.nic_gbps or 0.0) * links.ports_per_nic
        return NodeSystem(
            name=self.name,
            gpu=gpu.name,
            compute_capability=gpu.compute_capability,
            nvlink_GBps=gpu.nccl_nvlink_GBps if links.nvlinks else 0.0,
            **known,
        )


class _File(Struct, frozen=True):
    """One file, its tables not yet validated."""

    name: Text
    vendor: Text
    match: dict[str, Any]
    links: dict[str, Any]
    board: str = ""
    title: str = ""
    note: str = ""
    published: Tables = ()
    latency: Tables = ()


_LINE_OVER_NCCL = 63.0 / 48.0
"""A PCIe slot's line rate relative to NCCL's figure (Gen5 x16)."""


def from_toml(text: str, path: str) -> MachineType:
    """Parse one type. Raises UsageError naming `path`, the key and the reason."""
    said = converted(document(text, path), _File, path)
    match = _match(said.match, f"{path}: match")
    known = gpus.table()
    for name in match.gpu_names:
        if name not in known:
            raise UsageError(f"{path}: match: gpu_names: {name!r} is not in the table of GPUs")
    gpu = known[match.gpu_names[0]]
    links = _links(said.links, gpu, f"{path}: links")
    published = [_published(row, links, gpu, f"{path}: published {n}") for n, row in enumerate(said.published, start=1)]
    latencies = [_latency(row, links, f"{path}: latency {n}") for n, row in enumerate(said.latency, start=1)]
    machine = MachineType(
        name=said.name,
        vendor=said.vendor,
        gpu=gpu.name,
        match=match,
        links=links,
        board=said.board,
        published=tuple(published),
        latencies=tuple(latencies),
        title=said.title,
        note=said.note,
    )
    _refuse_overlaps(machine.published, path)
    return machine


def _match(entry: Mapping[str, Any], where: str) -> Match:
    match = converted(entry, Match, where)
    telling = [key for key in ("cloud", "vendor", "products", "cpus", "elsewhere") if getattr(match, key)]
    if match.by_name_only and telling:
        raise UsageError(f"{where}: by_name_only and {telling[0]} cannot be used together")
    if not match.by_name_only and not telling:
        raise UsageError(
            f"{where}: its GPUs do not identify a machine: give cloud, products or cpus, or why by_name_only"
        )
    return match


def _links(entry: Mapping[str, Any], gpu: GpuProduct, where: str) -> NodeLinks:
    """Return the links in `entry`; missing ones default to the GPU's."""
    fabric, slot = entry.get("fabric"), gpu.nccl_pcie_GBps or gpu.c2c_GBps
    usual = {
        "nvlinks": gpu.nvlinks if fabric != "none" else 0,
        "domain_gpus": {"none": 0, "pairs": 2}.get(str(fabric), entry.get("gpus")),
        "nvls": gpu.nvls and fabric == "nvswitch",
        "p2p": gpu.p2p is not False or gpu.c2c_GBps is not None,
    }
    links = converted(usual | ({"pcie_GBps": slot} if slot else {}) | dict(entry), NodeLinks, where)
    if fabric == "none" and (links.nvlinks or links.domain_gpus):
        raise UsageError(f"{where}: fabric is none, and yet there are NVLinks")
    if fabric != "none" and not 0 < links.nvlinks <= gpu.nvlinks:
        raise UsageError(f"{where}: nvlinks {links.nvlinks}: {gpu.name} has {gpu.nvlinks}")
    for pair in (("nic_gbps", "nics"), ("nics", "network")):
        if pair[0] in entry and pair[1] not in entry:
            raise UsageError(f"{where}: {pair[0]} without {pair[1]}")
    if fabric != "none" and links.domain_gpus < (2 if fabric == "pairs" else links.gpus):
        raise UsageError(f"{where}: domain_gpus {links.domain_gpus} is less than one machine's")
    for name in links.unverified:
        if name not in NodeLinks.__struct_fields__:
            raise UsageError(f"{where}: unverified: {name!r} is not a key of links")
    return links


def _published(entry: Mapping[str, Any], links: NodeLinks, gpu: GpuProduct, where: str) -> Published:
    row = converted(entry, Published, where)
    _refuse_ranks(row, links, where)
    if row.min_bytes > row.max_bytes:
        raise UsageError(f"{where}: min_bytes {row.min_bytes} is not below below_bytes {row.below_bytes}")
    if row.threshold_GBps is not None and row.threshold_GBps > row.busbw_GBps:
        raise UsageError(f"{where}: threshold_GBps {row.threshold_GBps:g} is above busbw_GBps {row.busbw_GBps:g}")
    most = most_GBps(row, links, gpu)
    if row.busbw_GBps > most:
        told = f" with {row.algorithm}" if row.algorithm else "; name the algorithm if one reaches it"
        raise UsageError(f"{where}: busbw_GBps {row.busbw_GBps:g} is above the {most:.4g} that the links allow{told}")
    return row


def _latency(entry: Mapping[str, Any], links: NodeLinks, where: str) -> Latency:
    row = converted(entry, Latency, where)
    _refuse_ranks(row, links, where)
    if row.high_us is not None and row.high_us < row.time_us:
        raise UsageError(f"{where}: high_us {row.high_us:g} is below time_us {row.time_us:g}")
    return row


def _refuse_ranks(row: Published | Latency, links: NodeLinks, where: str) -> None:
    if row.op not in OPS:
        raise UsageError(f"{where}: op: {unknown(row.op, 'operation', OPS)}")
    if row.gpus > links.gpus:
        raise UsageError(f"{where}: gpus {row.gpus}: the machine has {links.gpus}")
    if row.gpus * row.nodes < 2:
        raise UsageError(f"{where}: one rank has no other rank to exchange data with")


def most_GBps(row: Published, links: NodeLinks, gpu: GpuProduct) -> float:
    """Return the bus bandwidth that no healthy machine exceeds in `row`'s case.

    Inside a node or NVLink domain a ring moves busbw over each GPU's links; NVLS moves (n+1)/n buffers where a ring
    moves 2(n-1)/n, so its busbw may be 2(n-1)/(n+1) times as much. Between nodes busbw x (n-g)/(n-1) has to pass the
    NICs of a node at least (n ranks, g of one node), which a ring does not reach and a tree may; SHARP halves it.
    """
    ranks = row.ranks
    wire = links.nvlinks * gpu.nvlink_GBps or links.pcie_GBps * _LINE_OVER_NCCL
    switched = row.op == "all_reduce" and row.algorithm in ("nvls", "nvlstree")
    inside = wire * 2 * (ranks - 1) / (ranks + 1) if switched else wire
    if row.nodes == 1 or ranks <= links.domain_gpus:
        return inside
    nodes_of_domain = max(1, min(links.domain_gpus, ranks) // links.gpus)
    domain = min(row.gpus * nodes_of_domain, ranks - 1)
    line = (links.nics or 0) * (links.nic_gbps or 0.0) / 8 * nodes_of_domain
    over_nics = (ranks - 1) / (ranks - domain)
    if row.op == "all_to_all":
        return line / domain * over_nics
    if row.op == "all_reduce" and row.algorithm == "sharp":
        return min(inside * 2, line * 2)
    return min(inside, line * (over_nics if row.algorithm in ("tree", "nvlstree", "nvls") else 1.0))


def _refuse_overlaps(rows: tuple[Published, ...], path: str) -> None:
    """Raise UsageError if two numbers cover one case: it would be unclear which applies."""
    for n, row in enumerate(rows, start=1):
        for later, other in enumerate(rows[n:], start=n + 1):
            if row.overlaps(other):
                raise UsageError(f"{path}: published {n} and {later} overlap for {row.op}; keep one per size")


__all__ = ["Latency", "MachineType", "Match", "Published", "by_name", "find", "from_toml", "table"]


@cache
def table() -> Mapping[str, MachineType]:
    """Return every type that ships with ncclprobe, or with a distribution with an entry point for machines, by name.

    Raises UsageError for a distribution's type that cannot be read, or has the name of another.
    """
    own = map(_type_in, _own().values())
    return by_name([*own, *(machine for each in installed(MACHINES) for machine in _site_machines(each))])


@cache
def _own() -> Mapping[str, "Traversable"]:
    """Map each type that ships with ncclprobe, by folded name, to its file."""
    return {path.name.removesuffix(".toml"): path for path in _files(resources.files(__package__).joinpath("machines"))}


def _files(folder: "Traversable") -> list["Traversable"]:
    return sorted((each for each in folder.iterdir() if each.name.endswith(".toml")), key=lambda each: each.name)


def _type_in(path: "Traversable", origin: str = "") -> MachineType:
    return replace(from_toml(path.read_text(encoding="utf-8"), path.name), origin=origin)


def _site_machines(addition: Addition) -> list[MachineType]:
    """Load the types in a distribution's package. Raises UsageError."""
    try:
        found = [_type_in(path, addition.origin) for path in _files(resources.files(module_of(addition.module)))]
    except UsageError as error:
        raise UsageError(f"{addition.origin}: {error}") from None
    except (ImportError, SyntaxError, NameError, AttributeError, TypeError, ValueError, LookupError, OSError) as error:
        raise UsageError(f"{addition.origin}: {addition.module} has no machine types to read: {error}") from None
    if not found:
        raise UsageError(f"{addition.origin}: {addition.module} holds no .toml file of a machine type")
    return found


def by_name(found: Iterable[MachineType]) -> Mapping[str, MachineType]:
    """Index the types by name, and add what their boards contribute.

    Raises UsageError for a duplicate name, ignoring case and hyphens, a twin that does not name its twin, and an
    unknown board.
    """
    named: dict[str, MachineType] = {}
    folded = set[str]()
    for machine in found:
        if file_name(machine.name) in folded:
            whose = f"; {machine.origin} has to name its own otherwise" if machine.origin else ""
            raise UsageError(f"two machine types are called {machine.name}{whose}")
        named[machine.name] = machine
        folded.add(file_name(machine.name))
    for machine in named.values():
        for twin in machine.match.twins:
            if twin not in named or machine.name not in named[twin].match.twins:
                raise UsageError(f"{machine.name}: twins: {twin!r} is not a machine type that names it in turn")
    return MappingProxyType({name: _add_board(machine, named) for name, machine in named.items()})


def _add_board(machine: MachineType, named: Mapping[str, MachineType]) -> MachineType:
    if not machine.board:
        return machine
    board = named.get(machine.board)
    if board is None or board.board or _node_parts(board) != _node_parts(machine):
        raise UsageError(
            f"{machine.name}: board: {machine.board!r} is not a machine type with the same GPUs and NVLinks"
        )
    why = f"same baseboard as {board.name}"
    rows = [
        row for row in board.published if row.nodes == 1 and not any(row.overlaps(own) for own in machine.published)
    ]
    own = {(row.op, row.gpus) for row in machine.latencies if row.nodes == 1}
    times = [row for row in board.latencies if row.nodes == 1 and (row.op, row.gpus) not in own]
    return replace(
        machine,
        published=machine.published + tuple(replace(row, why=f"{row.why} ({why})") for row in rows),
        latencies=machine.latencies + tuple(replace(row, why=f"{row.why} ({why})") for row in times),
    )


def _node_parts(machine: MachineType) -> tuple[object, ...]:
    """Return the properties that must be equal for single-node numbers to carry over."""
    links = machine.links
    return gpus.table()[machine.gpu].nccl_nvlink_GBps, links.gpus, links.fabric, links.nvlinks, links.nvls


def named(name: str) -> MachineType | None:
    """Return the type of this name, ignoring case and hyphens; None: unknown."""
    if installed(MACHINES):
        return next((machine for known, machine in table().items() if file_name(known) == file_name(name)), None)
    return _load_shipped(file_name(name))


@cache
def _load_shipped(folded: str) -> MachineType | None:
    """Load a type that ships with ncclprobe; reads only its own file and its board's."""
    if folded not in _own():
        return None
    machine = _type_in(_own()[folded])
    board = _load_shipped(file_name(machine.board)) if machine.board else None
    return _add_board(machine, {board.name: board} if board else {})


def find(name: str) -> MachineType:
    """Return the type of this name, like `named`. Raises UsageError with similar names."""
    if machine := named(name):
        return machine
    from difflib import get_close_matches  # of names that are wrong

    folded = {file_name(known): known for known in table()}
    close = get_close_matches(file_name(name[:80]), folded, n=3, cutoff=0.5)
    lists = "`ncclprobe expect --list` lists all types; you can also describe your own, such as '8 x L40S'"
    raise unknown(name, "machine type", folded, lists, [folded[word] for word in close])


def file_name(name: str) -> str:
    """Fold a name as files are named: lower case with hyphens."""
    return name.lower().replace(" ", "-").replace("_", "-")
