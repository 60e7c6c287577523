"""The machine that a matrix of ``nvidia-smi topo`` shows, as facts for checks. Pure.

NVLinks and the PCI tree follow from the words between the devices. Facts that no matrix shows and checks need are
assumed and listed in :data:`ASSUMED`. Facts that the text leaves out are Absent.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations, product
from typing import Any, cast, get_args

from ncclprobe.facts.driver import PATHS, GpuDirect
from ncclprobe.facts.infiniband import Fabric, Port, Rate, RdmaDevice
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLink, NvLinks, NvlinkStatus, Remote
from ncclprobe.facts.nvml import NOT_ASKED, Gpu, Gpus, P2pStatus, Pairs, PeerAccess
from ncclprobe.facts.pci import Bridge, Device, Identity, Pci, PcieLink, PciPosition, normal
from ncclprobe.facts.software import Software
from ncclprobe.facts.topo_matrix import Matrix
from ncclprobe.model import bounds
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl.paths import tree_word

ASSUMED = "NICs are up and of the same kind, the kernel has GPUDirect RDMA, and no NCCL variable is set"
Words = Mapping[tuple[str, str], str]
"""The words for pairs of devices, in both orders, without pairs for which neither row exists."""

_RANKS = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4, "SOC": 4}
_SAME_SWITCH, _SAME_ROOT, _SAME_BRIDGE, _SAME_NODE, _APART = range(5)
_MOST_LINKS = 18  # of a GPU that is linked to others directly: H100's and B200's 18 are the most so far
_GPU, _NIC, _EFA = Identity(0x030200, 0x10DE, 0), Identity(0x020700, 0x15B3, 0), Identity(0x020000, 0x1D0F, 0)
_ETHERNET, _AMAZON, _OTHERS = ("roce", "bnxt_re", "irdma"), ("rdmap", "efa"), ("hfi1", "cxi", "ib")
"""The kernel's prefixes of RDMA devices that reveal the network; mlx5_0 may be of either kind."""
_LINK = PcieLink(None, None, None, None)


def facts_of(matrix: Matrix, peers: Matrix | None = None) -> dict[type, Any]:
    """Derive facts from a matrix. `peers`: the table of peer-to-peer status for the same GPUs."""
    names = (*matrix.gpus, *matrix.nics)
    if len(names) > bounds.TOPO_DEVICES or max(map(len, names)) > bounds.TOPO_NAME:
        why = f"{len(names)} devices, or names of more than {bounds.TOPO_NAME} letters, are not a machine's"
        return dict.fromkeys((Gpus, NvLinks, NvlinkStatus, Pci, Fabric, PeerAccess), Absent(why))
    words = _words(matrix)
    table = matrix if matrix.kind == "p2p" else peers
    nvlinks, unsaid = _nvlinks(matrix, words), Absent("a matrix does not say")
    return {
        Gpus: Gpus(tuple(Gpu(int(name[3:]), pci=_address(names, name)) for name in matrix.gpus), "", (0, 0)),
        NvLinks: nvlinks,
        NvlinkStatus: nvlinks if isinstance(nvlinks, Absent) else unsaid,
        Pci: _pci(matrix, words),
        Fabric: Fabric(tuple(_nic(name, _address(names, name)) for name in matrix.nics)),
        PeerAccess: _peer_access(table, words) if table else Absent("no table of peer-to-peer status was found"),
        Settings: Settings(),
        GpuDirect: GpuDirect(dict.fromkeys(PATHS, "")),
        **dict.fromkeys((Launch, Machine, Software), unsaid),
    }


def shown(
    matrix: Matrix, rest: Absent, gpus: Gpus | Absent, fabric: Fabric | Absent, peers: Matrix | None = None
) -> dict[type, Any]:
    """Return the facts that a matrix shows without assumptions; everything else about devices is `rest`.

    `gpus` and `fabric` come from other texts of the machine and provide the devices' addresses. The matrix cannot be
    compared with a tree that was made from it, so the Matrix fact is `rest` too.
    """
    found, names = facts_of(matrix, peers), (*matrix.gpus, *matrix.nics)
    own: Gpus = found[Gpus]
    known = [
        replace(gpu, **{name: rest for name in gpu.__struct_fields__ if getattr(gpu, name) == NOT_ASKED})
        for gpu in own.all
    ]
    devices = () if isinstance(fabric, Absent) else fabric.devices
    given = {} if isinstance(gpus, Absent) else {f"GPU{gpu.index}": normal(gpu.pci) for gpu in gpus.all if gpu.pci}
    given |= {device.name: device.pci for device in devices if isinstance(device.pci, str)}
    at = {_address(names, name): given[name] for name in names if name in given}
    kinds: dict[type, Any] = {Gpus: replace(own, all=tuple(known), nvml=rest)}
    kinds |= {NvLinks: _move_links(found[NvLinks], at), Pci: _move_devices(found[Pci], at, rest), Matrix: rest}
    if matrix.kind == "p2p" or peers:
        kinds[PeerAccess] = found[PeerAccess]
    nics = {name: _address(names, name) for name in matrix.nics}
    if not isinstance(fabric, Absent):
        placed = [replace(d, pci=nics[d.name]) if d.name in nics and d.name not in given else d for d in devices]
        kinds[Fabric] = replace(fabric, devices=tuple(placed))
    elif nics and not any(name.startswith("NIC") for name in nics):
        kinds[Fabric] = Fabric(tuple(_device_by_name(name, address, rest) for name, address in nics.items()))
    return kinds


def _move_devices(pci: Pci | Absent, at: Mapping[str, str], rest: Absent) -> Pci | Absent:
    """Return the tree with devices at other addresses, with nothing known but their places."""
    if isinstance(pci, Absent):
        return pci
    dark: dict[str, Any] = dict.fromkeys(("link", "local_cpus", "iommu", "errors", "bars", "settings"), rest)
    moved = [replace(each, address=at.get(each.address, each.address), **dark) for each in pci.devices.values()]
    above = {name for each in moved if not isinstance(each.place, Absent) for name in each.place.bridges}
    return Pci({each.address: each for each in moved}, {name: Bridge(name, rest, rest, rest) for name in above})


def _move_links(nvlinks: NvLinks | Absent, at: Mapping[str, str]) -> NvLinks | Absent:
    """Return the links with their ends at other addresses."""
    if isinstance(nvlinks, Absent):
        return nvlinks
    return NvLinks(
        tuple(
            links
            if isinstance(links, Absent)
            else tuple(replace(link, remote_pci=at.get(str(link.remote_pci), link.remote_pci)) for link in links)
            for links in nvlinks.gpus
        )
    )


def _words(matrix: Matrix) -> dict[tuple[str, str], str]:
    """Return the word of each pair in both orders; one of its two rows is enough."""
    said = {(one, two): word for one, row in matrix.links.items() for two, word in row.items() if one != two}
    return {(two, one): word for (one, two), word in said.items()} | said


def _address(names: Sequence[str], name: str) -> str:
    return f"{names.index(name):04x}:01:00.0"


def _nic(name: str, address: str) -> RdmaDevice:
    layer = "Ethernet" if name.startswith(_ETHERNET) else "InfiniBand"
    return RdmaDevice(name, (Port(name, 1, "ACTIVE", "LinkUp", Rate(400, 4, "NDR"), layer),), address)


def _device_by_name(name: str, address: str, rest: Absent) -> RdmaDevice:
    """Return a device of which only the name is known."""
    layer = "Ethernet" if name.startswith(_ETHERNET) else rest
    port = Port(name, 1, rest, rest, rest, layer, rest, rest, rest, rest, rest)
    return RdmaDevice(name, (port,), address, rest, rest, rest, rest, rest)


def told_by_name(nic: str) -> bool:
    """Return whether an RDMA device's name reveals its network."""
    return nic.startswith((*_ETHERNET, *_AMAZON, *_OTHERS))


def _nvlinks(matrix: Matrix, words: Words) -> NvLinks | Absent:
    """Return each GPU's links; Absent if the matrix shows none, or does not show whose they are."""
    if matrix.kind != "topo-m":
        return Absent(f"a matrix of {'-p2p' if matrix.kind == 'p2p' else '-mp'} shows no NVLinks")
    unsaid = {gpu for pair in combinations(matrix.gpus, 2) if pair not in words for gpu in pair}
    counts = {pair: int(word[2:]) for pair, word in words.items() if word.startswith("NV")}
    of_each = {gpu: {to: counts.get((gpu, to), 0) for to in matrix.gpus if to != gpu} for gpu in matrix.gpus}
    if max((sum(row.values()) for row in of_each.values()), default=0) > _MOST_LINKS:
        found = {gpu: _links({"": count}) for gpu, count in _count_switch_links(of_each).items()}
    else:
        direct = _direct_links(of_each)
        if direct is None:
            return Absent("the GPUs are linked in different ways, and may have links to GPUs that are not shown")
        names = (*matrix.gpus, *matrix.nics)
        found = {gpu: _links({_address(names, peer): n for peer, n in row.items()}) for gpu, row in direct.items()}
    gap = Absent("the text does not say how this GPU is linked to the others")
    return NvLinks(tuple(gap if gpu in unsaid else found[gpu] for gpu in matrix.gpus))


def _links(ends: Mapping[str, int]) -> tuple[NvLink, ...]:
    """Return this many links to the GPUs at these addresses; to NVSwitches if the address is empty."""
    to = [end for end, count in ends.items() for _ in range(count)]
    kinds: dict[bool, Remote] = {True: "gpu", False: "switch"}
    return tuple(NvLink(n, "active", remote=kinds[bool(end)], remote_pci=end) for n, end in enumerate(to))


def _count_switch_links(of_each: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the links of GPUs behind NVSwitches: nvidia-smi prints the smaller number of two GPUs.

    If the words are not such minima, a GPU gets the smallest number printed for it.
    """
    most = {gpu: max(row.values()) for gpu, row in of_each.items()}
    if all(n == min(most[gpu], most[other]) for gpu, row in of_each.items() for other, n in row.items()):
        return most
    return {gpu: min((n for n in row.values() if n), default=0) for gpu, row in of_each.items()}


def _direct_links(of_each: Mapping[str, Mapping[str, int]]) -> Mapping[str, Mapping[str, int]] | None:
    """Return the GPUs' links to each other without NVSwitches, if these are all their links.

    That is so with bridges, if all GPUs have equally many, and if each is linked to each other one. In the last case
    words above the usual one are reduced to it: they count links beyond the mesh (V100).
    """
    peers = {gpu: {other for other, n in row.items() if n} for gpu, row in of_each.items()}
    sums = {sum(row.values()) for row in of_each.values()}
    if len(sums) < 2 or max(map(len, peers.values())) < 2:
        return of_each
    linked = {gpu for gpu, others in peers.items() if others}
    if any(peers[gpu] != linked - {gpu} for gpu in linked):
        return None
    usual = Counter(n for row in of_each.values() for n in row.values() if n).most_common(1)[0][0]
    return {gpu: {other: min(n, usual) for other, n in row.items()} for gpu, row in of_each.items()}


def _pci(matrix: Matrix, words: Words) -> Pci | Absent:
    """Return a tree with these words; NUMA nodes help where an NVLink hides one. Absent if no tree fits.

    Hand-made words may fit no tree. Mismatches beyond a PCIe switch, and among NICs, do not matter.
    """
    if matrix.kind == "p2p":
        return Absent("a table of peer-to-peer status shows no PCI paths")
    for gpu, nic in product(matrix.gpus, matrix.nics):
        if (gpu, nic) not in words:
            return Absent(f"the text does not say how {gpu} and {nic} are connected")
    homes = {gpu: node for gpu, node in zip(matrix.gpus, matrix.numa_affinity, strict=True) if (node or "").isdigit()}
    of_gpus = {pair: word for pair, word in words.items() if not set(pair).isdisjoint(matrix.gpus)}
    names = (*matrix.gpus, *matrix.nics)
    near = {pair: word if word in ("PIX", "PXB") or word.startswith("NV") else "far" for pair, word in of_gpus.items()}
    for shown, told in ((words, words), (of_gpus, of_gpus), (words, near), (of_gpus, near)):
        for tree in (_tree(names, shown, known) for known in (homes, {})):
            if not _mismatched_pairs(tree, told):
                return Pci({device.address: device for device in tree.values()})
    one, two = _mismatched_pairs(_tree(names, words, homes), words)[0]
    return Absent(f"no PCI tree has these words: {one} and {two} cannot be {words[one, two]}")


def _mismatched_pairs(tree: Mapping[str, Device], words: Words) -> list[tuple[str, str]]:
    """Return the pairs whose word differs in the tree; "far" is any word outside PCIe switches."""
    wrong = []
    for (one, two), word in words.items():
        own = tree_word(tree[one], tree[two])
        fits = own not in ("PIX", "PXB") if word == "far" else own == word.replace("SOC", "SYS")
        if not fits and not word.startswith("NV"):
            wrong.append((one, two))
    return wrong


def _tree(names: Sequence[str], words: Words, homes: Mapping[str, str | None]) -> dict[str, Device]:
    """Place each device: a NUMA node, a host bridge, a root port, and up to two switches below that."""
    ranks = {pair: _rank(pair, words.get(pair, "SYS"), homes) for pair in permutations(names, 2)}
    found: dict[str, Device] = {}
    roots = 0
    for node, of_node in enumerate(_clusters(names, ranks, _SAME_NODE)):
        for of_bridge in _clusters(of_node, ranks, _SAME_BRIDGE):
            roots += 1
            for port, of_root in enumerate(_clusters(of_bridge, ranks, _SAME_ROOT)):
                for name, above in _bridges_below(of_root, ranks, f"{roots}.{port}").items():
                    identity = _GPU if name.startswith("GPU") else _EFA if name.startswith(_AMAZON) else _NIC
                    place = PciPosition(f"pci{roots:04x}:00", above)
                    found[name] = Device(_address(names, name), identity, place, _LINK, node)
    return found


def _bridges_below(names: Sequence[str], ranks: Mapping[tuple[str, str], int], port: str) -> dict[str, tuple[str, ...]]:
    """Return the bridges above each device of a root port, by name only. A switch has a port up and one down."""
    groups = _clusters(names, ranks, _SAME_SWITCH)
    if len(names) == 1:
        return {names[0]: (port,)}
    upper = [() if len(groups) == 1 else (f"{port} up", f"{port} down {n}") for n in range(len(groups))]
    return {
        name: (port, *above, f"{port} up {n}", f"{port} down {n}.{place}")
        for n, (group, above) in enumerate(zip(groups, upper, strict=True))
        for place, name in enumerate(group)
    }


def _rank(pair: tuple[str, str], word: str, homes: Mapping[str, str | None]) -> int:
    """Return the distance rank of two devices. If an NVLink hides it, the NUMA nodes decide."""
    if not word.startswith("NV"):
        return _RANKS[word]
    one, two = (homes.get(name) for name in pair)
    return _SAME_NODE if one is not None and one == two else _APART


def _clusters(names: Sequence[str], ranks: Mapping[tuple[str, str], int], rank: int) -> list[list[str]]:
    """Group devices that are within distance `rank`, directly or through others."""
    groups: list[list[str]] = []
    for name in names:
        near = [g for g in groups if any(ranks[one, name] <= rank for one in g)]
        groups = [group for group in groups if group not in near]
        groups.append([*(member for group in near for member in group), name])
    return groups


def _peer_access(table: Matrix, words: Words) -> PeerAccess | Absent:
    """Return peer access from a table of -p2p; Absent unless its letter is one that checks need."""
    letters = {*table.capability}
    if not letters & {"r", "w"}:
        kind = f"-p2p {table.capability}" if table.capability else "-p2p without the command above it"
        return Absent(f"a table of {kind} does not say what GPUs may read and write, as those of r and w do")
    said: Pairs = {_numbers(pair): cast(P2pStatus, word) for pair, word in _words(table).items() if word in _STATUSES}
    linked: Pairs = {_numbers(pair): "OK" for pair, word in words.items() if word.startswith("NV")}
    return PeerAccess(said if "r" in letters else {}, said if "w" in letters else {}, linked)


def _numbers(pair: tuple[str, str]) -> tuple[int, int]:
    return int(pair[0][3:]), int(pair[1][3:])


_STATUSES = frozenset(get_args(P2pStatus))
