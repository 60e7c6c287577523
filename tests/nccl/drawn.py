"""NCCL's and gloo's rules on drawn logs, counters, matrices, interfaces and names: what each makes of them is kept."""

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from random import Random
from typing import Any

from ncclprobe.checks.run.rows import ROW
from ncclprobe.checks.run.traffic import nic_traffic
from ncclprobe.expect import log_findings
from ncclprobe.facts.infiniband import Fabric, RdmaDevice
from ncclprobe.facts.interfaces import Address, Interface, Interfaces
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus, PeerAccess
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.run.samples import NicTraffic
from ncclprobe.facts.topo_matrix import Matrix
from ncclprobe.facts.traffic import Count
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl import from_matrix, gloo, log, parameters
from ncclprobe.nccl.nic_traffic import Carried, operation_traffic, transport
from tests.drawn import word
from tests.nccl import test_log

Rows = Iterator[tuple[str, object]]
_UNREAD = Absent("denied")
_SAID = (
    *(line for lines in test_log.LINES.values() for line in lines),
    *(line for lines in test_log.DEVICES for line in lines),
    "1024 Bytes -> Algo 9 proto 2 time 1.0", "1024 Bytes -> Algo \u0661 proto 1 time 1.0", "Using network IBext_v8",
    "ReduceScatter: 1048576 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
    "AllReduce: 8388608 Bytes -> Algo TREE proto LL", "Broadcast: 8388608 Bytes -> Algo RING proto SIMPLE",
    "Reduce: 8388608 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={2..2}",
    *(f"Channel 0{n}/0 : 0[0] -> 8[0] [send] via NET/IB/{n}" for n in (9, 4, 1)), "Using network " + "x" * 5000,
)  # fmt: skip
_OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "sendrecv")


def logs() -> Rows:
    """Yield what is read of drawn lines, and the transport of each operation by the lines of its ranks."""
    for number in range(150):
        draw, read = Random(number), list[log.Log]()
        for _ in range(1 + number % 2):
            warned, head = test_log.HEAD.replace("INFO", "WARN"), test_log.HEAD
            heads = (head, head, head, f"0: {head}", f"\x1b[32m[1,0]<stdout>:\x1b[0m{head}", warned, "", "  ")
            text = "\n".join(draw.choice(heads) + line for line in draw.sample(_SAID, draw.randint(1, 9)))
            read += [log.read(text)]
        told = [word(each, each.devices(), each.gdr) for each in read]
        for op in _OPS:
            row = replace(ROW, op=op, nbytes=8 << 20, ranks=8, nodes=1 + number % 3)
            told += [word(op, transport(row, read))]
        yield f"{number}", [[each] for each in told]


_MOVED = ((0, 0), (9_000, 1_100_000), (1_000_000, 999_999), (70 << 20, 64 << 20), (6 << 20, 0))
_COUNTS = (*(Count(*each) for each in _MOVED), _UNREAD)
_BELOW = {"bond0": ("eth0", "eth1"), "vlan7": ("bond0",), "ib0": ("mlx5_0",)}


def counters() -> Rows:
    """Yield the share of each NIC of two nodes in what an operation moved, and which NIC is named for it."""
    names = ("bond0", "eth0", "eth1", "ib0", "vlan7")
    for number in range(150):
        draw, seen = Random(number), list[Carried]()
        for node in "ab":
            own = {name: draw.choice(_COUNTS) for name in draw.sample(names, draw.randint(1, 4))}
            rdma = {name: draw.choice(_COUNTS) for name in draw.sample(("mlx5_0", "mlx5_1"), draw.randint(0, 2))}
            expected = draw.choice((None, {draw.choice((*names, "mlx5_0"))}, {"bond0", "mlx5_1"}))
            seen.append(Carried(node, own, rdma, None if expected is None else frozenset(expected), _BELOW))
        found = operation_traffic("all_reduce", draw.choice((50_000, 4 << 20, 64 << 20)), seen)
        try:
            named = [
                word(e.severity.value, e.subject, e.nodes, e.message) for e in nic_traffic.run(NicTraffic((found,)))
            ]
        except Unlearned as gap:
            named = [word(gap)]
        yield f"{number}", [[word(each)] for each in (*found.nics, *named)]


def _matrix(draw: Random, number: int) -> Matrix:
    words = ("NV1", "NV2", "NV4", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC")
    stems = ("mlx5_", "NIC", "roce", "bnxt_re", "rdmap", "ib", "hfi1_")
    kind: Any = draw.choice(("topo-m", "topo-m", "topo-m", "topo-mp", "p2p"))
    some = ("OK", "NS", "TNS", "CNS", "X?") if kind == "p2p" else draw.sample(words, draw.randint(1, 3))
    gpus = tuple(f"GPU{n}" for n in range(draw.choice((1, 2, 3, 4, 8))))
    nics = () if kind == "p2p" else tuple(f"{draw.choice(stems)}{n}" for n in range(draw.randint(0, 3)))
    links: dict[str, dict[str, str]] = {name: {name: "X"} for name in (*gpus, *nics)}
    for one, other in combinations((*gpus, *nics), 2):
        fits = [each for each in some if other in gpus or each[:2] != "NV"]
        said = draw.choice(fits or ["SYS"])
        if draw.random() > 0.02:
            links[one][other] = links[other][one] = said
    even = tuple("01"[n * 2 // len(gpus)] for n in range(len(gpus)))
    homes = tuple(draw.choice(("0", "1", "N/A", None)) for _ in gpus) if number % 3 else even
    return Matrix(kind, gpus, nics, links, homes, homes, homes, capability=draw.choice(("r", "w", "n", "rw", "")))


def _seen(fact: Any) -> object:
    """Return links by their ends, a tree by its places, and devices by their addresses and link layers."""
    if isinstance(fact, NvLinks):
        return [row if isinstance(row, Absent) else [link.remote_pci for link in row] for row in fact.gpus]
    if isinstance(fact, Pci):
        return [(each.address, each.place, each.numa_node, each.identity.vendor) for each in fact.devices.values()]
    return [(each.name, each.pci, each.ports[:1]) for each in fact.devices] if isinstance(fact, Fabric) else fact


def matrices() -> Rows:
    """Yield the links, the tree and the peers in drawn matrices, alone and beside what other texts show."""
    kinds = (NvLinks, Pci, Fabric, PeerAccess)
    for number in range(200):
        draw = Random(number)
        one = _matrix(draw, number)
        said = {a: {b: draw.choice(("OK", "NS", "X?")) for b in one.gpus if a != b} for a in one.gpus}
        peers = replace(one, kind="p2p", nics=(), links=said) if number % 4 == 0 else None
        facts = from_matrix.facts_of(one, peers)
        known = draw.sample(one.nics, len(one.nics) // 2)
        fabric = Fabric(tuple(RdmaDevice(name, pci=draw.choice((None, "0000:af:00.0", ""))) for name in known))
        rest = draw.choice((_UNREAD, replace(facts[Gpus], driver="1"))), draw.choice((_UNREAD, fabric))
        more = from_matrix.shown(one, _UNREAD, *rest, peers)
        yield f"{number}", [[word(_seen(found.get(kind)))] for found in (facts, more) for kind in kinds]


_ADDRESSES = (
    *(("10.0.0.5", "255.255.255.0"), ("10.0.2.4", "255.255.255.254"), ("fe80::1%eth0", "ffff:ffff:ffff:ffff::")),
    *(("172.17.0.1", "255.255.0.0"), ("fd00::5", "ffff::"), ("10.0.0.9", ""), ("10.0.3.5", "255.255.255.254")),
)
_FLAGS = (frozenset({"up", "running"}), frozenset({"up", "running"}), frozenset({"up"}), frozenset[str]())


def _interfaces(draw: Random) -> Interfaces:
    lo = ("127.0.0.1", "255.0.0.0"), frozenset({"up", "running", "loopback"})
    faces = [_face(draw, "lo", 1, *lo)]
    for number, name in enumerate(draw.sample(("eth0", "eth1", "ib0", "docker0"), draw.randint(1, 3)), 2):
        faces.append(_face(draw, name, number, draw.choice(_ADDRESSES), draw.choice(_FLAGS)))
    return Interfaces(tuple(faces[draw.random() < 0.15 :]))


def _face(draw: Random, name: str, number: int, where: tuple[str, str], flags: frozenset[str]) -> Interface:
    flags = flags - {"up"} if draw.random() < 0.1 else flags
    family: Any = "inet6" if ":" in where[0] else "inet"
    own = Address(draw.choice((name, name, f"{name}:1")), family, *where, running="running" in flags)
    return Interface(name, number, flags, 1500, addresses=(own,))


def listeners() -> Rows:
    """Yield what gloo listens on at drawn nodes, and which of them cannot meet."""
    names, hosts = ("", "e", "eth0", "eth0,", "eth0,ib0", ",eth0", "lo", "eth0:1", "zzz"), ("n0", "x" * 63, "x" * 64)
    addresses = ("10.0.0.5", "10.0.2.4", "10.0.0.255", "255.255.255.255", "0.0.0.0", "224.0.0.1", "::", "::1",
                 "fd00::5", "127.0.1.1", "192.0.2.1", "fe80::1%eth0", "10.0.3.5", "172.17.255.255")  # fmt: skip
    for number in range(200):
        draw, nodes = Random(number), dict[str, gloo.Node]()
        for node in "abc"[: 2 + number % 2]:
            here, ifname = _interfaces(draw), draw.choice(names) if number % 2 else ""
            resolved = draw.sample(addresses, draw.randint(0, 2))
            nodes[node] = gloo.Node(here, gloo.devices(here, ifname, draw.choice(hosts), resolved))
        told = [word(node, each.devices) for node, each in nodes.items()]
        yield f"{number}", [[each] for each in (*told, *map(word, gloo.partings(nodes)))]
    found = [gloo.Device("e", address) for address in ("10.0.0.5", "10.0.0.6", "fe80::1%e", "fe80::2%e", "127.0.0.1")]
    yield "calls", [word(one.address, other.address, gloo.calls(one, other)) for one in found for other in found]


_MISSPELT = (
    *("NCCL_DEBGU", "NCCL_DEBUG ", "NCCL_SOKCET_IFNAM", "NCCL_IB_HCAS", "TORCH_NCCL_TRACE_BUFER_SIZE", "MASTER_ADRR"),
    *("NCCL_DEBUG", "NCCL_TIMEOUT", "NCCL_DBEUGG", "NCCL_SITE_PROFILE_NAME", "NCCL_LL_THRESHOL", "OFI_NCCL_DEBUG", ""),
    "SLURM_JOBID", "SLURM_CPUS_ON_NODE", "OMPI_COMM_WORLD_SIZ", "PMIX_RANKS", "PMI_SIZ", "SRUN_DEBUGS", "OMPI_MCA_plm",
    "MY_NCCL_DEBUG", "PATH", "AWS_SECRET_ACCESS_KEY", "NCCL_NO_SUCH", "UCX_TLSX", "UCX_TLSXY", "FI_PROVIDERS", "RANK",
    "FI_PROVIDERXY", "CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVIC", "NVSHMEM_DEBUGX", "GLOO_SOCKET_IFNAMES", "WORLD_SIZ",
)  # fmt: skip


def names() -> Rows:
    """Yield all that is said of each variable, and which name each misspelt one is taken for."""
    table = parameters.table()
    for name, parameter in table.items():
        yield name, dict(parameters.variable_explanation(parameter))
    for number, name in enumerate(table):
        at, shown = Random(number).randrange(len(name)), Random(number)
        swapped, longer = f"{name[:at]}{name[at : at + 2][::-1]}{name[at + 2 :]}", f"{name[:at]}X{name[at:]}"
        wrong = shown.choice((name[:at] + name[at + 1 :], longer, name.lower(), swapped, name.replace("NCCL", "NCLL"),
                              f"{name}_XY", name.replace("_", "__", 1), f"MY_{name}"))  # fmt: skip
        yield f"wrong {wrong}", word(parameters.nearest(wrong), parameters.looks_like_ours(wrong))
    for wrong in _MISSPELT:
        yield f"wrong {wrong}", word(parameters.nearest(wrong), parameters.looks_like_ours(wrong))
    pairs = (("abcd", "abdc"), ("abcd", "badc"), ("abc", "abcd"), ("abcd", "bcda"), ("", "ab"), ("ca", "abc"))
    told = [word(one, other, [parameters.distance(one, other, limit) for limit in range(4)]) for one, other in pairs]
    yield "distances", told


def sweeps() -> Rows:
    """Yield what is found in drawn sweeps: drops, jumps, averages, hosts that differ, and settings that lose RDMA."""
    for number in range(150):
        draw = Random(number)
        rates = [draw.choice((0.4, 3.0, 8.0, 9.8, 10.0, 14.0)) for _ in range(draw.randint(0, 7))]
        places = ("in", "out") if number % 3 else ("in",)
        sizes = [draw.choice((1 << 20, 32 << 20)) << at for at in range(len(rates))]
        rows = [replace(ROW, nbytes=nbytes, busbw_GBps=rate, place=place)
                for nbytes, rate in zip(sizes, rates, strict=True) for place in places]  # type: ignore[arg-type]  # fmt: skip
        kinds = (("H100",) * 8, ("H200",) * 8, ("H100", "H200"), ("H100",) * 4)
        hosts = {f"n{at}": draw.choice(kinds) for at in range(draw.randint(0, 4))}
        found = [*log_findings.steps(rows), *log_findings.unlike_hosts(hosts)]
        found += log_findings.average(rows, draw.choice((None, 0.5, 6.0, 9.9, 300.0)), draw.randint(0, 2))
        found += log_findings.tcp_instead(draw.choice(("sockets", "ib", "")), draw.choice(("", "8 NICs")))
        text = {"NCCL_IB_DISABLE": draw.choice(("", "0", "1")), "NCCL_NET": draw.choice(("", "Socket", "IB"))}
        told = [word(each.severity.value, each.message) for each in found]
        yield f"{number}", [[each] for each in (*told, log_findings.lost_settings(text) or "none lost")]


FUNCTIONS: Mapping[str, Callable[[], Rows]] = {
    "drawn-logs": logs, "drawn-counters": counters, "drawn-matrices": matrices, "drawn-listeners": listeners,
    "drawn-names": names, "drawn-sweeps": sweeps,
}  # fmt: skip
