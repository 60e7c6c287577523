"""Did the NICs carry the bytes that were meant to, and do links within a node carry what they should?"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from ncclprobe.checks import JOB
from ncclprobe.checks.run.conditions import copies_within_nodes, counters_of_nics
from ncclprobe.expect.copies import judged
from ncclprobe.facts.run.samples import Copies, ExpectedCopies, NicTraffic, RunRequest
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Certainty, Evidence, Finding, fail, seen, warn
from ncclprobe.model.measurement import Expectation
from ncclprobe.model.registry import check
from ncclprobe.model.traffic import CopyRow, NicBytes, OperationTraffic
from ncclprobe.model.units import size
from ncclprobe.model.values import grouped
from ncclprobe.nccl.nic_traffic import FLOOR_BYTES

MANY = 600 << 20

_IN_PLACE = 10
"""So many times what the expected NICs moved: what others send meanwhile is seldom so much."""
_FEWEST_RAILS, _MOST_BUSY, _IDLE = 4, 0.75, 0.25
"""One NIC of two may be idle by the library's choice. Most: of a node's NICs. Idle: of what its siblings moved."""


def rail_traffic(moved: Mapping[str, int | None], nodes: Sequence[str] = ("n0", "n1")) -> NicTraffic:
    """Return what the NICs of nodes sent and received: `moved` by the last, by the others 64 MiB each."""
    usual: dict[str, int | None] = {f"mlx5_{n}:1": 64 << 20 for n in range(8)}
    each = [
        (node, name, count)
        for node in nodes
        for name, count in {**usual, **(moved if node == nodes[-1] else {})}.items()
    ]
    rows = tuple(NicBytes(node, name, "rdma", count, count, expected=True) for node, name, count in each)
    return NicTraffic((OperationTraffic("all_reduce", MANY, rows),))


@check(
    bad=lambda: [(rail_traffic({"mlx5_3:1": 0}),)],
    good=lambda: [(rail_traffic({}),)],
    applies=counters_of_nics,
)
def nic_traffic(traffic: NicTraffic) -> Iterator[Finding]:
    """NCCL or gloo used the wrong NIC, or did not use a NIC that it should have used.

    Right: Data went over the intended NICs.
    Why: sockets carry only a small part of what RDMA carries, and a route over the wrong NIC leaves the fast one idle.
    The rate does not show which of the two happened. A NIC is reported if it moved at least 1 MiB, and ten times as
    much as all NICs together that should have carried the data on its node. An RDMA NIC is reported if it moved less
    than a quarter of what most NICs of its node moved, but the NIC with the same name carried its share on other nodes.
    This applies only if all nodes should use the same NICs. A missing rail slows every collective by its share, and no
    message reports it.
    Fix: check NCCL_SOCKET_IFNAME, NCCL_IB_HCA, NCCL_IB_DISABLE, NCCL_NET and GLOO_SOCKET_IFNAME, check the routes (`ip
    route get <address of the other node>`; two NICs in one subnet need separate rules), and run `ncclprobe doctor`. For
    an idle NIC, compare its `via NET` lines with NCCL_DEBUG=INFO, its cable and its switch port with those of another
    NIC.
    """
    named: set[str] = set()
    for each in traffic.rows:
        for wrong in _displacing_nics(each):
            where, node = f"{wrong.node} {wrong.nic}", wrong.node
            if where in named:
                continue
            named.add(where)
            nics = [nic for nic in each.nics if nic.node == node]
            meant = ", ".join(nic.nic for nic in nics if nic.expected) or "no NIC"
            yield warn(
                where,
                f"carried data of {each.op} that should have gone over {meant}",
                **JOB,
                confidence=Certainty("high", "counted by the NIC itself, before and after"),
                evidence=[*map(_counted, nics), seen("all calls", size(each.nbytes))],
                nodes=(node,),
            )
    for where, found in _first_of_each(traffic).items():
        named.add(where)
        yield found
    if not named and (blind := _blind(traffic)):
        raise Unlearned(f"the NICs that carried the data are unknown: {blind}")


def _displacing_nics(each: OperationTraffic) -> Iterator[NicBytes]:
    """Yield the NICs that moved most of their node's bytes and should not have; one on top of others has no share."""
    for nodes_nics in grouped((nic.node, nic) for nic in each.nics).values():
        meant = [_moved(nic) for nic in nodes_nics if nic.expected]
        if None in meant or any(nic.expected is None for nic in nodes_nics):
            continue
        least = max(FLOOR_BYTES, _IN_PLACE * sum(moved or 0 for moved in meant))
        yield from (nic for nic in nodes_nics if not nic.expected and nic.share and (_moved(nic) or 0) >= least)


def _first_of_each(traffic: NicTraffic) -> dict[str, Finding]:
    """Return a phrase for each idle NIC, about the first operation that left it out."""
    found: dict[str, Finding] = {}
    for each in traffic.rows:
        for nic, usual in _idle(each):
            if f"{nic.node} {nic.nic}" not in found:
                found[f"{nic.node} {nic.nic}"] = _left_out(each, nic, usual)
    return found


def _left_out(each: OperationTraffic, nic: NicBytes, usual: float) -> Finding:
    return warn(
        f"{nic.node} {nic.nic}",
        f"moved {size(_moved(nic) or 0)} in {each.op}, but most NICs of its node moved {size(int(usual))}; on "
        "the other nodes "
        f"{nic.nic} carried its share",
        blame="unknown",
        action="retest",
        confidence=Certainty("high", "counted by the NIC itself, before and after"),
        evidence=[_counted(other) for other in each.nics if other.node == nic.node and other.expected],
        nodes=(nic.node,),
    )


def _idle(each: OperationTraffic) -> Iterator[tuple[NicBytes, float]]:
    """Yield RDMA NICs that were idle only on their node, with what most of its NICs moved, sent and received.

    NICs that no node used do not count. If nodes should use different NICs, NCCL leaves out some of those that
    have more: sync.machine reports that.
    """
    nodes: dict[str, dict[str, NicBytes]] = {}
    used = {nic.nic for nic in each.nics if (_moved(nic) or 0) >= FLOOR_BYTES}  # the others are of storage, say
    for nic in each.nics:
        if nic.kind == "rdma" and nic.expected and nic.nic in used:
            nodes.setdefault(nic.node, {})[nic.nic] = nic
    if len({frozenset(rails) for rails in nodes.values()}) != 1:
        return
    usual = {node: _usual(rails.values()) for node, rails in nodes.items()}
    for node, rails in nodes.items():
        for name, nic in rails.items():
            others = [_busy(found[name], usual[other]) for other, found in nodes.items() if other != node]
            moved = _moved(nic)
            if usual[node] and moved is not None and moved < _IDLE * usual[node] and 2 * sum(others) > len(others):
                yield nic, usual[node]


def _usual(rails: Collection[NicBytes]) -> float:
    """Return what a node's NICs moved, 0 if fewer than most did much the same, or there are few."""
    known = sorted(moved for nic in rails if (moved := _moved(nic)) is not None)
    middle = known[len(known) // 2] if known else 0
    most = sum(2 * moved >= middle for moved in known) >= _MOST_BUSY * len(rails)
    return middle if most and len(rails) >= _FEWEST_RAILS and middle >= FLOOR_BYTES else 0.0


def _moved(nic: NicBytes) -> int | None:
    return None if nic.sent is None or nic.received is None else nic.sent + nic.received


def _busy(nic: NicBytes, usual: float) -> bool:
    return usual > 0 and 2 * (_moved(nic) or 0) >= usual


def _counted(nic: NicBytes) -> Evidence:
    if nic.sent is None or nic.received is None:
        return seen(f"counters of {nic.nic}", f"not known ({nic.why})")
    return seen(f"counters of {nic.nic}", f"sent {nic.sent} bytes and received {nic.received}")


def _blind(traffic: NicTraffic) -> str:
    """Why it is unknown which way the bytes went, if it is."""
    for each in traffic.rows:
        for nic in each.nics:
            if nic.expected and nic.sent is None:
                return f"{nic.nic} on {nic.node}: {nic.why}"
        if each.nics and all(nic.expected is None for nic in each.nics):
            return "it is unknown which NICs should carry the bytes"
    return ""


SLOW_COPY = CopyRow(
    node="n0",
    rank=3,
    kind="h2d",
    device="GPU3",
    numa=0,
    near=True,
    nbytes=1 << 28,
    GBps=12.4,
    min_GBps=12.3,
    max_GBps=12.5,
    samples=7,
)
_SLOT = Expectation(54.2, 49.8, "GB/s", "datasheet", "PCIe Gen5 x16 carries 63.01 GB/s, 0.86 of it payload", "…")
BY_SLOT = ExpectedCopies({"n0": {"host": _SLOT}})
JUDGED = RunRequest(what=("copies",), require_judged=True)
_NVLINKS = (
    "check the NVLinks of both GPUs: `nvidia-smi nvlink -s` shows links that are down or slower than "
    "their siblings, and `nvidia-smi nvlink -e` shows errors. Reset the GPUs, or restart "
    "nvidia-fabricmanager if there are NVSwitches"
)
_KINDS = {
    "h2d": "from the host to it",
    "d2h": "from it to the host",
    "bidirectional": "both ways at once",
    "d2d": "to its peer",
    "host": "within the host's memory",
}


@check(
    bad=lambda: [(Copies((SLOW_COPY,)), BY_SLOT, JUDGED)],
    good=lambda: [(Copies((SLOW_COPY,)), ExpectedCopies(), RunRequest(what=("copies",)))],
    required=True,
    applies=copies_within_nodes,
)
def copies(measured: Copies, expected: ExpectedCopies, asked: RunRequest) -> Iterator[Finding]:
    """A copy between host and GPU, or between GPUs, is slower than its link allows.

    Right: Every judged copy is as fast as its link allows.
    Why: a PCIe link that trained too narrow or too slow, a bad riser, or memory on the wrong NUMA node is visible only
    under load, because an idle link slows down to save power. Data loading, checkpoints and NCCL's own buffers use this
    path.
    Fix: compare `nvidia-smi -q -d PCIE` under load with that of a healthy node, and search the kernel log for AER.
    Reseat the GPU or its riser. If only the far NUMA node is slow, bind the rank with `numactl`.
    """
    rows = [judged(row, expected.nodes.get(row.node, {})) for row in measured.rows]
    for row in rows:
        if row.status == "fail" and row.threshold_GBps is not None:
            yield fail(
                row.device,
                f"copies {row.GBps:.4g} GB/s {_KINDS[row.kind]}{f' {row.peer}' if row.peer else ''}, at least "
                f"{row.threshold_GBps:.4g} expected ({row.why})",
                blame="node",
                action="retest",
                confidence=Certainty("medium", f"median of {row.samples}, measured only on this node"),
                evidence=(
                    seen(f"{size(row.nbytes)} copies", f"{row.min_GBps:.4g} to {row.max_GBps:.4g} GB/s"),
                    row.source,
                ),
                remedy=_NVLINKS if "NVLink" in row.why else "",
                nodes=(row.node,),
                loss=round(1 - row.GBps / row.expected_GBps, 4) if row.expected_GBps else None,
                lost_GBps=round(row.expected_GBps - row.GBps, 4) if row.expected_GBps else None,
            )
    if asked.require_judged and all(row.status == "unjudged" for row in rows):
        raise Unlearned("no expectation for copies is known on this machine")
    noise = [row for row in rows if row.status == "inconclusive"]
    if noise and not any(row.status == "fail" for row in rows):
        raise Unlearned(
            f"too noisy to judge: {noise[0].device} {noise[0].min_GBps:.4g} to {noise[0].max_GBps:.4g} GB/s"
        )
