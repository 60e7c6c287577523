"""Machine types: how one is recognised, what it is made of, and what runs on it have reached.

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

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING

from ncclprobe.errors import UsageError, unknown
from ncclprobe.expect.tables import gpus
from ncclprobe.expect.tables.machine_files import from_toml
from ncclprobe.expect.tables.machine_types import Latency, MachineType, Match, Published
from ncclprobe.model.additions import MACHINES, Addition, installed, module_of
from ncclprobe.model.values import replace

if TYPE_CHECKING:
    from importlib.abc import Traversable  # its place in Python 3.10

__all__ = ["Latency", "MachineType", "Match", "Published", "by_name", "find", "from_toml", "table"]

_FOLDER = "machines"


@cache
def table() -> Mapping[str, MachineType]:
    """Every type that comes with ncclprobe, or with a distribution that has an entry point for machines, by name.

    Raises UsageError for one of a distribution that cannot be read, or has the name of another.
    """
    own = _types(resources.files("ncclprobe.expect.tables").joinpath(_FOLDER), "")
    return by_name([*own, *(machine for each in installed(MACHINES) for machine in _of_site(each))])


def _types(folder: "Traversable", origin: str) -> list[MachineType]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".toml"))
    found = [from_toml(folder.joinpath(name).read_text(encoding="utf-8"), name) for name in names]
    return [replace(machine, origin=origin) for machine in found]


def _of_site(addition: Addition) -> list[MachineType]:
    """Return the types in the package that a distribution names. Raises UsageError."""
    try:
        found = _types(resources.files(module_of(addition.module)), addition.origin)
    except UsageError as error:
        raise UsageError(f"{addition.origin}: {error}") from None
    except (ImportError, SyntaxError, NameError, AttributeError, TypeError, ValueError, LookupError, OSError) as error:
        raise UsageError(f"{addition.origin}: {addition.module} has no machine types to read: {error}") from None
    if not found:
        raise UsageError(f"{addition.origin}: {addition.module} holds no .toml file of a machine type")
    return found


def by_name(found: Iterable[MachineType]) -> Mapping[str, MachineType]:
    """The types by name, with what their boards add.

    Raises UsageError for a name that comes twice, a twin that does not name its twin, and a board that is none.
    """
    named: dict[str, MachineType] = {}
    for machine in found:
        if machine.name in named:
            whose = f"; {machine.origin} has to name its own otherwise" if machine.origin else ""
            raise UsageError(f"two machine types are called {machine.name}{whose}")
        named[machine.name] = machine
    for machine in named.values():
        for twin in machine.match.twins:
            if twin not in named or machine.name not in named[twin].match.twins:
                raise UsageError(f"{machine.name}: twins: {twin!r} is no machine type that names it in turn")
    return MappingProxyType({name: _with_board(machine, named) for name, machine in named.items()})


def _with_board(machine: MachineType, named: Mapping[str, MachineType]) -> MachineType:
    if not machine.board:
        return machine
    board = named.get(machine.board)
    if board is None or board.board or _inside(board) != _inside(machine):
        raise UsageError(f"{machine.name}: board: {machine.board!r} is no machine type with the same GPUs and NVLinks")
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


def _inside(machine: MachineType) -> tuple[object, ...]:
    """What must be equal for numbers of one node to be."""
    links = machine.links
    return gpus.table()[machine.gpu].nccl_nvlink_GBps, links.gpus, links.fabric, links.nvlinks, links.nvls


def find(name: str) -> MachineType:
    """The type of this name, whatever its case and hyphens. Raises UsageError with those of similar names."""
    machines = table()
    folded = {_folded(known): known for known in machines}
    if _folded(name) in folded:
        return machines[folded[_folded(name)]]
    close = get_close_matches(_folded(name[:80]), folded, n=3, cutoff=0.5)
    lists = "`ncclprobe expect --list` lists them, and '8 x L40S' composes one"
    raise unknown(name, "machine type", folded, lists, [folded[word] for word in close])


def _folded(name: str) -> str:
    return name.lower().replace(" ", "-").replace("_", "-")
