"""The quality of paths between nodes: large packets, rate, loss, round trip and route."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from ncclprobe.checks import IMAGE, several
from ncclprobe.checks.launch.mesh import (
    HEALTHY,
    MOST_SUSPECTS,
    ByRole,
    Pair,
    Try,
    by_role,
    confirmed,
    counted,
    one_of,
    subject,
    suspects_of,
    tries,
)
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.reach import Gathering, Path, Paths
from ncclprobe.facts.routes import Route, Routes
from ncclprobe.localise.reach import DISTANT, DISTANT_S, LEAST_GBPS, SLOW, Suspect, lossy
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, Sources, fail, note, seen, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.stats import median_low
from ncclprobe.model.values import replace

_STREAM_GBPS = 10.0
"""What one TCP stream of one process may be expected to carry on any faster interface."""
_FAR_TO_JUDGE_S = 5e-3
"""Beyond this round trip a short stream is limited by its window: path.delay speaks of it then."""
_ANYWHERE_S = 10e-3
"""No two nodes of one site are so far apart, whatever the others are: 1000 km of fibre."""

UNCROWDED: Every[Gathering | Absent] = Every({})
_ONE_PATH_LOSS, _ONE_PATH_SLOW = 0.03, 0.75 * SLOW
"""What one path must show to be more than a note if a node's others are well.

A busy host drops a burst of 45 segments (one GSO packet of 64 KiB) here and there, and its streams wait for the
processor: on four virtual hosts with two cores between them, healthy paths resent up to 1.5 %, and rates differed by 3.
"""

_GROSS = 0.02
"""A share of the usual rate, in the second look too. Jobs time out there (gloo did within 20 s at 0.007), and no
healthy path is so slow: the slowest was at 0.3, and two guests of one machine have 40 Gbit/s if others have 1.
"""

NICS: Every[Interfaces | Absent] = Every({})


def altered(change: Callable[[int, int], dict[str, object] | None]) -> Every[Paths]:
    """Return three healthy nodes, except what `change` changes about the path from one to another."""
    changed = {}
    for node, paths in HEALTHY.items():
        rows = tuple(replace(row, **change(paths.me, row.to) or {}) for row in paths.rows)
        changed[node] = replace(paths, rows=rows)
    return Every(changed)


@check(
    slows=True,
    bad=lambda: [(altered(lambda one, to: {"outcome": "stalled-back"} if (one, to) == (0, 1) else None), NICS)],
    good=lambda: [(HEALTHY, NICS)],
    required=True,
    requires="sync.identity/address-twice",
    applies=several,
)
def mtu(paths: Every[Paths], nics: Every[Interfaces | Absent]) -> Iterator[Finding]:
    """Small messages pass between nodes, but large ones are lost.

    Right: Large messages pass between all nodes.
    Why: somewhere on the path the MTU is smaller than at the ends, and no message reports it (ICMP "fragmentation
    needed" is filtered). Connections open, but the first large transfer hangs, and NCCL or gloo times out without
    giving a reason.
    Fix: give all interfaces and switch ports of this network the same MTU, or allow ICMP type 3 code 4. To confirm, run
    ping -M do -s <MTU - 28> to the other node.
    """
    failed: dict[str, dict[Pair, Path]] = {}
    tried: dict[str, set[Pair]] = {}
    all_tries = tries(paths)
    slow = {(each.one, each.path.role) for each in all_tries if each.path.outcome == "ok" and each.path.streams > 1}
    for each in all_tries:
        for pair, stalls in _large(each):
            if stalls and (pair[0], each.path.role) in slow:
                continue  # its own second look: not for the size of packets
            tried.setdefault(each.path.role, set()).add(pair)
            if stalls:
                failed.setdefault(each.path.role, {})[pair] = each.path
    _refuse_gaps(paths, tried)
    for suspects, bad in _explained(tried, failed):
        suspect = one_of(suspects)
        mtus = {node: _mtu(nics.by_node.get(node), bad) for node in suspect.nodes}
        ends = ", ".join(f"MTU {size} on {node}" for node, size in list(mtus.items())[:2] if size)
        kernel = {path.path_mtu for path in bad if path.path_mtu}
        known = "; ".join(filter(None, (ends, f"path MTU {min(kernel)} in the kernel's route cache" if kernel else "")))
        sized = max(bad, key=lambda path: (path.refused, path.passes or 0))
        stops = f"they pass in packets of {sized.passes} bytes" if sized.passes else "small ones pass"
        message = f"large messages stall on {counted(suspects, bad)}; {stops}"
        evidence = seen(f"256 KiB over TCP to {bad[0].address}", f"{bad[0].outcome}" + (f" ({known})" if known else ""))
        found = _tell(fail, suspect, message, evidence, "repair", max(path.tries for path in bad))
        remedy = _SMALLER.format(nic=sized.interface, mtu=sized.passes) if sized.passes else ""
        if sized.refused:
            remedy = (
                "on that node, run `nft list ruleset` and `iptables -S`, and remove the rules that drop packets by "
                "their length"
            )
        own = {"blame": "node", "action": "fix-image"} if sized.refused and suspect.at_one_node else {}
        yield replace(found, remedy=remedy, **own)


_SMALLER = (
    "a switch port, a tunnel, a router or a firewall on the path drops packets by size. Give its ports "
    "the MTU of the interfaces, allow ICMP type 3 code 4, or run `ip link set dev {nic} mtu {mtu}` on all nodes"
)


def _large(each: Try) -> Iterator[tuple[Pair, bool]]:
    """Yield the directions in which a large message was sent, and whether it stalled: the other end echoes it."""
    back = (each.other, each.one)
    if each.path.outcome in ("ok", "stalled-out", "stalled-back"):
        yield each.pair, each.path.outcome == "stalled-out"
    if each.path.outcome in ("ok", "stalled-back"):
        yield back, each.path.outcome == "stalled-back"


@check(
    slows=True,
    bad=lambda: [(altered(lambda one, _: {"rate_gbps": 0.2} if one == 1 else None), NICS, UNCROWDED)],
    good=lambda: [(altered(lambda one, _: {"rate_gbps": 4.0} if one == 1 else None), NICS, UNCROWDED)],
    requires="sync.identity/address-twice",
    applies=several,
)
def rate(
    paths: Every[Paths], nics: Every[Interfaces | Absent], gatherings: Every[Gathering | Absent]
) -> Iterator[Finding]:
    """A node or path is far slower than the others, or than its interfaces should be.

    Right: All paths between nodes are as fast as their interfaces should be.
    Why: every NCCL ring goes through every node, so the slowest path sets the pace of all. Common causes are a link
    that negotiated a tenth of its speed, a traffic shaper or a saturated uplink. If other programs connected to a node
    during the test, its rate proves nothing about its links, so the finding is only a warning.
    Fix: compare ethtool <interface> (Speed) and the switch port with those of a healthy node. Look for traffic shapers
    (tc qdisc) and for other traffic on that path.
    """
    carried = by_role(each for each in tries(paths) if _carried(each.path))
    _refuse_gaps(paths, carried)
    usual, found = _slow_paths(paths, nics)
    for suspects, slow_paths in found:
        suspect, others = one_of(suspects), max(usual[role] for role in suspects)
        rates_seen = sorted(path.rate_gbps or 0 for path in slow_paths)
        speeds = sorted(
            {_speed(nics.by_node.get(node), path) or 0 for node in suspect.nodes for path in slow_paths} - {0}
        )
        against = f"others reach {others:.3g} Gb/s" if others > 2 * rates_seen[-1] else "no path is faster"
        wired = f"; the interface reports {speeds[0]:g} Gb/s" if speeds else ""
        message = f"{_spread(rates_seen)} Gb/s on {counted(suspects, slow_paths)}; {against}{wired}"
        sure = _spans_several_paths(suspect) or rates_seen[0] < _ONE_PATH_SLOW * others or others <= 2 * rates_seen[-1]
        evidence = f"one TCP stream to {slow_paths[0].address}"
        looks = max(path.streams for path in slow_paths)
        useless = any(map(_useless, slow_paths))
        if useless:
            message += "; 4 MiB did not arrive within 10 s"
        useless = useless or any(path.streams > 1 and (path.rate_gbps or 0) < _GROSS * others for path in slow_paths)
        hubs = {node for node, each in gatherings.items() if isinstance(each, Gathering) and each.floods}
        flooded = hubs | {node for node, each in paths.items() if each.floods}
        crowded = not flooded.isdisjoint(suspect.nodes)
        if useless and crowded:
            message += "; it was busy with unknown callers (launch.port)"
        tell = fail if useless and not crowded else warn if useless or sure else note
        yield _tell(tell, suspect, message, evidence, "retest" if crowded else "repair", looks)


@check(
    slows=True,
    bad=lambda: [(altered(lambda one, _: {"resent": 600} if one == 1 else None), NICS)],
    good=lambda: [(HEALTHY, NICS)],
    requires="sync.identity/address-twice",
    applies=several,
)
def loss(paths: Every[Paths], nics: Every[Interfaces | Absent]) -> Iterator[Finding]:
    """Packets are lost between nodes.

    Right: Almost no packets are lost between nodes.
    Why: TCP hides loss but becomes slower. RoCE and InfiniBand retransmit whole windows, and after NCCL_IB_RETRY_CNT
    attempts a job ends with "got completion with error 12". Such loss is often the first sign of a dirty connector or a
    failing transceiver.
    Fix: check the error and drop counters of the interface and of its switch port (ethtool -S, ip -s link), and clean
    or replace the cable and transceiver.
    """
    known = {
        role: {each.pair: each.path for each in rows if _carried(each.path) and each.path.resent is not None}
        for role, rows in by_role(tries(paths)).items()
    }
    slow = {id(path) for _, found in _slow_paths(paths, nics)[1] for path in found}
    bad = {
        role: {pair: rows[pair] for pair in _lossy(rows) if id(rows[pair]) not in slow} for role, rows in known.items()
    }
    _refuse_gaps(paths, known)
    for suspects, paths_seen in _explained(
        {role: _conclusive(set(rows), bad[role]) for role, rows in known.items()}, bad
    ):
        shares = sorted(100 * (path.resent or 0) / (path.segments or 1) for path in paths_seen)
        rates = sorted(path.rate_gbps for path in paths_seen if path.rate_gbps is not None)
        carried = f", which carried {_spread(rates)} Gb/s" if rates else ""
        message = f"{_spread(shares)} % of the segments were retransmitted on {counted(suspects, paths_seen)}{carried}"
        first = paths_seen[0]
        evidence = seen(f"TCP_INFO to {first.address}", f"{first.resent} of {first.segments} segments retransmitted")
        sure = _spans_several_paths(one_of(suspects)) or shares[-1] > 100 * _ONE_PATH_LOSS
        looks = max(path.streams for path in paths_seen)
        yield _tell(warn if sure else note, one_of(suspects), message, evidence, "repair", looks)


@check(
    slows=True,
    bad=lambda: [(altered(lambda one, to: {"rtt_s": 0.02}),)],
    good=lambda: [(altered(lambda one, to: {"rtt_s": 4e-3}),)],
    requires="sync.identity/address-twice",
    applies=several,
)
def delay(paths: Every[Paths]) -> Iterator[Finding]:
    """A node is much farther away than the others.

    Right: All nodes are about equally far apart.
    Why: each step of a ring or tree waits for one trip to the neighbour. If a node is in another building or zone, or
    behind a tunnel or a software switch, every small collective is as slow as that trip.
    Fix: request nodes that are close to each other from the scheduler or cloud (--switches, a placement group), and
    check the route (traceroute).
    """
    bad: dict[str, dict[Pair, Path]] = {}
    tried: dict[str, set[Pair]] = {}
    usual: dict[str, float] = {}
    for role, found in by_role(each for each in tries(paths) if each.path.rtt_s is not None).items():
        trips: dict[Pair, Path] = {}
        for each in found:  # a round trip is the same both ways: the shorter one counts for both
            pair = min(each.one, each.other), max(each.one, each.other)
            known = trips.setdefault(pair, each.path)
            trips[pair] = min(known, each.path, key=_rtt)
        ends = ((node, _rtt(path)) for pair, path in trips.items() for node in pair)
        usual[role] = median_low(_best(ends, min))
        limit = min(_ANYWHERE_S, max(DISTANT_S + usual[role], DISTANT * usual[role]))
        both = {way: path for (one, other), path in trips.items() for way in ((one, other), (other, one))}
        tried[role] = set(both)
        bad[role] = {pair: path for pair, path in both.items() if _rtt(path) > limit}
    _refuse_gaps(paths, tried)
    for suspects, distant in _explained(tried, bad):
        round_ms = sorted({1e3 * _rtt(path) for path in distant})
        others = min(usual[role] for role in suspects)
        against = f"; others are {1e3 * others:.3g} ms away" if 2e3 * others < round_ms[0] else ""
        message = f"round trips of {_spread(round_ms)} ms on {counted(suspects, distant)}{against}"
        evidence = f"the kernel's shortest round trip to {distant[0].address}"
        yield _tell(warn, one_of(suspects), message, evidence, "retest", 1)


def _refuse_gaps(paths: Every[Paths], tried: Mapping[str, Collection[object]]) -> None:
    """Refuse to pass if there were paths and none of them could be judged. Raises Unlearned."""
    if any(each.rows for _, each in paths.items()) and not any(tried.values()):
        raise Unlearned("no path between nodes was measured, because the run ran out of time or no path connects")


def _explained(
    tried: Mapping[str, Collection[Pair]], failed: Mapping[str, Mapping[Pair, Path]]
) -> Iterator[tuple[ByRole, list[Path]]]:
    """Yield each suspect with the paths that it makes bad, the one with most paths first."""
    for suspects in suspects_of(tried, failed)[:MOST_SUSPECTS]:
        yield suspects, [failed[role][pair] for role, each in suspects.items() for pair in each.pairs]


def _tell(
    severity: Callable[..., Finding], suspect: Suspect[str], message: str, evidence: Sources, action: str, times: int
) -> Finding:
    """Make a finding about `suspect`: blame a node's link only if several other nodes confirm it."""
    return severity(
        subject(suspect),
        message,
        blame="link" if suspect.at_one_node and action == "repair" else "fabric",
        action=action,
        nodes=suspect.nodes,
        evidence=evidence,
        confidence=confirmed(suspect, times),
    )


def _spans_several_paths(suspect: Suspect[str]) -> bool:
    """Return whether several paths show it."""
    return suspect.kind not in ("pair", "direction")


def _best(values: Iterable[tuple[str, float]], best: Callable[[float, float], float]) -> list[float]:
    """Return the best value of each node: a node that is fast with one other is not slow."""
    found: dict[str, float] = {}
    for node, value in values:
        found[node] = best(found.get(node, value), value)
    return list(found.values())


def _slow_paths(
    paths: Every[Paths], nics: Every[Interfaces | Absent]
) -> tuple[dict[str, float], list[tuple[ByRole, list[Path]]]]:
    """Return the usual rate of each role, and each suspect that makes paths slow, unless all of them lose packets.

    A full shaper drops packets on some of its paths: all of them are slow, and none of them counts as lossy.
    """
    from statistics import median_high

    bad: dict[str, dict[Pair, Path]] = {}
    tried: dict[str, set[Pair]] = {}
    usual: dict[str, float] = {}
    for role, found in by_role(each for each in tries(paths) if _carried(each.path)).items():
        rates = {each.pair: each for each in found if _rtt(each.path) < _FAR_TO_JUDGE_S or _useless(each.path)}
        if not rates:
            continue
        tried[role] = set(rates)
        usual[role] = median_high(_best(((one, each.path.rate_gbps or 0) for (one, _), each in rates.items()), max))
        bad[role] = {pair: each.path for pair, each in rates.items() if _slow(each, usual[role], nics)}
    lossy = {id(path) for slow in bad.values() for pair in _lossy(slow) for path in (slow[pair],)}
    found_slow = _explained(tried, bad)
    known = [each for each in found_slow if any(_useless(path) or id(path) not in lossy for path in each[1])]
    return usual, known


def _useless(path: Path) -> bool:
    """Return whether 4 MiB did not arrive within ten seconds, if the run waited for all of them."""
    return path.streams > 1 and path.rate_gbps is not None and path.rate_gbps < LEAST_GBPS


_ETH0_ALONE = Routes((Route("0.0.0.0/0", "eth0", "10.0.0.254"), Route("10.1.0.0/24", "eth0")), ())
_BY_ETH1 = Routes((Route("0.0.0.0/0", "eth0", "10.0.0.254"), Route("10.1.0.0/24", "eth1")), ())


@check(
    bad=lambda: [(HEALTHY, Every({"n0": _BY_ETH1, "n1": _ETH0_ALONE, "n2": _BY_ETH1}), Every({}))],
    good=lambda: [(HEALTHY, Every(dict.fromkeys(("n0", "n1", "n2"), _BY_ETH1)), Every({}))],
    requires="sync.identity/address-twice",
    applies=several,
)
def route(paths: Every[Paths], routes: Every[Routes | Absent], nics: Every[Interfaces | Absent]) -> Iterator[Finding]:
    """Packets to other nodes leave through a different interface from the one that NCCL uses.

    Right: Packets to other nodes leave through the interface that NCCL uses.
    Why: NCCL binds to an interface's address, but the kernel's routes decide through which interface packets leave.
    Packets may then arrive through one NIC and leave through another. One NIC carries everything, firewalls and
    switches that see only one direction drop packets, and a strict net.ipv4.conf.*.rp_filter drops both directions.
    Fix: give each interface its own subnet, or its own routing table and rule: `ip route add SUBNET dev INTERFACE table
    N`, `ip rule add from ADDRESS table N`. To check, run `ip route get ADDRESS from SOURCE`.
    """
    judged = False
    for node, each in paths.items():
        known = routes.by_node.get(node)
        if not isinstance(known, Routes) or isinstance(known.rules, Absent) or isinstance(known.tables, Absent):
            continue
        judged = True
        seen_nics = nics.by_node.get(node)
        for (nic, source, other), to in _strays(each, known).items():
            if isinstance(seen_nics, Interfaces) and not (_leads_on(seen_nics, nic) and _leads_on(seen_nics, other)):
                continue  # routes of an interface that is down are gone, and a bridge within the node has none
            message = f"packets from {source} ({nic}) to {len(to)} of {len(each.rows)} listeners leave through {other}"
            evidence = seen(f"ip route get {to[0]} from {source}", f"dev {other}")
            rule = f"on {node}, run `ip route add SUBNET dev {nic} table 101` and `ip rule add from {source} table 101`"
            yield warn(node, message, **IMAGE, nodes=(node,), evidence=evidence, remedy=rule)
    if not judged and any(each.rows for _, each in paths.items()):
        raise Unlearned("no node's routes and rules are known")


def _leads_on(nics: Interfaces, name: str) -> bool:
    """Return whether an interface is up and is not a bridge inside this node."""
    interface = nics.by_name.get(name)
    return interface is None or (interface.running and interface.kind != "bridge")


def _strays(paths: Paths, routes: Routes) -> dict[tuple[str, str, str], list[str]]:
    """Return the addresses that NCCL's packets reach by another interface, with both interfaces and the source.

    If that is half of them or fewer, these addresses are odd, not the routes.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    rows = [row for row in paths.rows if row.role.startswith("nccl") and "." in row.address]
    for row in rows:
        way = routes.leaving(row.address, row.source)
        if way and way.interface not in ("", row.interface):
            found.setdefault((row.interface, row.source, way.interface), []).append(row.address)
    every = Counter((row.interface, row.source) for row in rows)
    return {key: to for key, to in found.items() if 2 * len(to) > every[key[:2]]}


def _slow(each: Try, usual: float, nics: Every[Interfaces | Absent]) -> bool:
    speeds = [_speed(nics.by_node.get(node), each.path) for node in each.pair]
    rate_gbps = each.path.rate_gbps or 0
    wired = min((speed for speed in speeds if speed), default=0) if all(speeds) else 0
    return _useless(each.path) or rate_gbps < SLOW * max(usual, min(wired, _STREAM_GBPS))


def _carried(path: Path) -> bool:
    """Return whether a stream went through: the few packets before it prove little about loss."""
    return path.outcome == "ok" and path.rate_gbps is not None


def _lossy(paths: Mapping[Pair, Path]) -> set[Pair]:
    return lossy({pair: (path.resent or 0, path.segments or 0) for pair, path in paths.items()})


def _conclusive(tried: set[Pair], bad: Collection[Pair]) -> set[Pair]:
    """Return `tried` without lucky successes: if a third of a node's paths in one direction lose packets, all do."""
    of_all = Counter(end for pair in tried for end in enumerate(pair))
    of_bad = Counter(end for pair in bad for end in enumerate(pair))
    lossy_ends = {end for end, number in of_bad.items() if number > 1 and 3 * number >= of_all[end]}
    return {pair for pair in tried if pair in bad or not lossy_ends & set(enumerate(pair))}


def _rtt(path: Path) -> float:
    return path.rtt_s or 0.0


def _nic(found: Interfaces | Absent | None, path: Path) -> Interface | None:
    """Return the interface of a node that `path` begins or ends at."""
    known = found.all if isinstance(found, Interfaces) else ()
    return next((each for each in known if each.name == path.interface), None)


def _speed(found: Interfaces | Absent | None, path: Path) -> float | None:
    """Return the link's speed in Gb/s as the driver reports it; None if it reports none or the NIC is virtual."""
    nic = _nic(found, path)
    return nic.speed_mbps / 1000 if nic and nic.speed_mbps and nic.virtual is False else None


def _mtu(found: Interfaces | Absent | None, bad: list[Path]) -> int | None:
    nic = _nic(found, bad[0])
    return nic.mtu if nic else None


def _spread(values: list[float]) -> str:
    """Write the least and the most value; one number if they are equal as written."""
    return " to ".join(dict.fromkeys(f"{value:.3g}" for value in (values[0], values[-1])))
