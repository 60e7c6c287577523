"""Whether all rails were tried, whether every one connects, and what is wrong if one does not."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.checks import FABRIC, NODE
from ncclprobe.checks.rail import (
    asked,
    both_ends,
    certainty,
    choices,
    counted,
    name,
    named,
    subject,
)
from ncclprobe.checks.rail.fixtures import World, only, rails_of
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.reach import Rails
from ncclprobe.localise.pairs.samples import End
from ncclprobe.localise.rails import (
    Broken,
    Reason,
    Tried,
    Way,
    broken,
    by_rail,
    faltering,
    gid_problem,
    own_failures,
    pkey_problem,
    tests,
    unmet,
)
from ncclprobe.localise.reach import blame
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import ONCE, Certainty, Finding, fail, seen, warn
from ncclprobe.model.hostlist import fold, fold_numbers
from ncclprobe.model.rails import RailAddress, RailFailure
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.units import plural


def _no_port() -> Every[Rails]:
    nothing = Rails(3, {}, why="no active InfiniBand or Ethernet port")
    return Every({**rails_of(World()).by_node, "n3": nothing})


@check(
    bad=lambda: [(_no_port(),)],
    good=lambda: [(rails_of(World()),)],
    required=True,
    requires="sync.nodes/node-lost",
    applies=asked,
)
def untried(rails: Every[Rails]) -> Iterator[Finding]:
    """Rails of a node were not tested.

    Right: All rails that NCCL would use were tested.
    Why: if a node has no port for NCCL's own transport, the whole job falls back to TCP sockets, or to a plugin that
    this test does not cover. AWS's EFA does not support reliable connections (the RC transport), so it is not tested
    either.
    Fix: see the ib.* checks of that node for the state of its ports. On EFA see env.libraries, and run `fi_pingpong -p
    efa -e rdm` between two nodes.
    """
    for node, each in rails.items():
        if not each.ports and any(other.ports for _, other in rails.items()):
            yield warn(
                node, f"has no rail to test: {each.why or 'no reason is known'}", **NODE,
                nodes=(node,), evidence=f"{len(rails)} nodes",
            )  # fmt: skip
    silent = dict.fromkeys(node for _, each in rails.items() for node in each.silent)
    for node in silent:
        yield fail(
            node, "stopped answering while rails were tested", blame="node", action="retest", nodes=(node,),
            confidence=ONCE, evidence="a request from node 0 that was not answered in time",
            remedy="check whether its process was killed (dmesg: out of memory) or stopped, or its node was lost",
        )  # fmt: skip
    if not silent and (why := _untold(rails)):
        raise Unlearned(why)


def _untold(rails: Every[Rails]) -> str:
    """Return why the nodes' tests do not cover all rails; empty: they do."""
    found = tests(rails)
    short = {node: each for node, each in rails.items() if len(each.rows) < each.planned}
    if short:
        counts = ", ".join(f"{node} {len(each.rows)} of {each.planned}" for node, each in list(short.items())[:4])
        return f"only {len(found)} of the planned tests ran: {counts}"
    if apart := unmet(found):
        told = "; ".join((both_ends(apart[0]), *apart[0].unmet_why))
        lacking = sorted({end.end.node for each in apart for end in each.seen} - {*rails.by_node})
        if lacking:
            told = f"the results of {fold(lacking)} are unknown"
        return f"the two ends of {plural(len(apart), 'rail')} never met: {told}"
    if alone := _untested_ports(found, rails):
        return f"{', '.join(name(end, rails) for end in alone[:4])} connected to no other rail and is unknown"
    if late := _late(found):
        first = f"{late[0][0].node} to {late[0][1].node} on rail {late[0][0].rail}"
        slow = f"{plural(len(late), 'way')} carried data, but not all of it in time: {first}"
        return f"{slow}; a longer --timeout gives every test more"
    return ""


def _late(found: Iterable[Tried]) -> list[Way]:
    """Return the ways whose last test timed out: their rate is unknown, only its upper bound is known."""
    last: dict[Way, bool] = {}
    for tried in found:
        last |= {way: way in tried.late() for way in tried.both}
    return [way for way, is_late in last.items() if is_late]


def _untested_ports(found: Sequence[Tried], rails: Every[Rails]) -> list[End]:
    """Return the ports that took part in no test."""
    known = {end.end for each in found for end in each.seen}
    every = (End(node, rail) for node, each in rails.items() for rail in range(len(each.ports)))
    return [end for end in every if end not in known]


_BAD = End("n1", 1)
SET: Every[Settings | Absent] = Every({})
DEAD = World(carries=only(_BAD))
_HANGS = World(local={_BAD: RailFailure(step="open", kind="hangs", text="ibv_open_device did not return in 5 s")})
_NO_GID = RailFailure(step="open", kind="missing", text="the GID at index 5 is empty", call="ibv_query_gid")
EMPTY = World(local={_BAD: _NO_GID})


@check(
    bad=lambda: [(rails_of(_HANGS),)],
    good=lambda: [(rails_of(EMPTY),)],
    required=True,
    applies=asked,
)
def unusable(rails: Every[Rails]) -> Iterator[Finding]:
    """An RDMA port cannot be used.

    Right: Every RDMA port that NCCL uses can be opened and used.
    Why: NCCL opens each port, registers memory and creates queue pairs before it contacts any other node. If that
    fails, the job ends; if it hangs, the job waits for this node forever. These calls involve no other node, so no
    other node is at fault.
    Fix: the failed call and its error point to the cause. For ENOMEM check `ulimit -l`, for EACCES the permissions of
    the device file, and for a hang the driver or its firmware (dmesg). A container needs /dev/infiniband.
    """
    found = [each for each in tests(rails) if not each.gpu]
    by_error: dict[tuple[str, int], dict[End, list[RailFailure]]] = {}
    for end, failures in own_failures(found).items():
        if not _lacks_gid(failures[0]):
            by_error.setdefault((failures[0].text, failures[0].errno), {})[end] = failures
    for ends in by_error.values():
        count = sum(one.end in ends for each in found for one in each.seen)
        yield _unusable(ends, count, rails, **NODE)


def _lacks_gid(failure: RailFailure) -> bool:
    """Return whether there is nothing at the GID index that was chosen."""
    return failure.kind == "missing" and failure.call == "ibv_query_gid"


def _unusable(
    ends: Mapping[End, Sequence[RailFailure]], count: int, rails: Every[Rails], said: str = "", **details: Any
) -> Finding:
    """Make a finding of ends that failed by themselves, all in the same way, in some of `count` tests."""
    first, failed_so = next(iter(ends.values()))[0], sum(map(len, ends.values()))
    number = f"; error {first.errno}" if first.errno else ""
    part = "" if failed_so >= count else f"; this happened in {failed_so} of {count} tests, and the others got further"
    nodes = tuple(dict.fromkeys(end.node for end in ends))
    numbers = sorted({end.rail for end in ends})
    where = name(next(iter(ends)), rails) if len(ends) == 1 else f"{fold(nodes)} rail {fold_numbers(numbers)}"
    return fail(
        where, first.text + number + part + said, nodes=nodes,
        evidence=seen(first.call or f"step {first.step}", f"{plural(failed_so, 'test')} ended so"),
        confidence=Certainty("high" if failed_so > 1 else "medium", f"failed {failed_so} times by itself"), **details,
    )  # fmt: skip


def _devices(each: Broken) -> list[str]:
    """Return the devices of the node that is at fault."""
    ends = [end for test in each.tests for end in test.seen if end.end.node in each.suspect.nodes[:1] and end.outcome]
    return [end.outcome.asked.device for end in ends if end.outcome]


def _whose_gid(
    nodes: Sequence[str], devices: Sequence[str], settings: Every[Settings | Absent]
) -> tuple[str, Mapping[str, Any]]:
    """Return what set the GID's index on the first of `nodes`, in words, and whose fault it is with the remedy."""
    setting = _setting(nodes[0], "NCCL_IB_GID_INDEX", settings) if nodes else ""
    remedy = _other_gid(nodes[0], devices, setting) if len(nodes) == 1 else ""
    if setting:
        return f"; {setting}", {"blame": "job", "action": "fix-job", "remedy": remedy}
    return "", {"blame": "node", "action": "repair", "remedy": remedy}


def _other_gid(node: str, devices: Sequence[str], setting: str) -> str:
    """Return how to get a suitable GID on the one node that is at fault: by the variable only if it is set."""
    shown = f"`show_gids {devices[0]}`" if devices else "`show_gids`"
    if setting:
        return (
            f"on {node}, unset NCCL_IB_GID_INDEX, so that NCCL finds RoCE v2 over IPv4 itself (since 2.21), or "
            f"set it to the index that {shown} lists"
        )
    return (
        f"on {node}, run {shown}. NCCL uses the best GID that exists, so give the port's interface the IPv4 "
        "address of its rail, and RoCE v2"
    )


@check(
    bad=lambda: [(rails_of(DEAD), SET)],
    good=lambda: [(rails_of(_HANGS), SET)],
    required=True,
    applies=asked,
)
def dead(rails: Every[Rails], settings: Every[Settings | Absent]) -> Iterator[Finding]:
    """A rail carries nothing, data in only one direction, or no large messages.

    Right: Every rail carries data both ways.
    Why: TCP works between these nodes, but RDMA over this port does not. NCCL connects and sends, and half a minute
    later the job ends with "got completion from peer with status=12", or it hangs. A reliable connection needs both
    directions. RoCE v1 and v2 are incompatible, and a link-local address does not work outside its own subnet. Packets
    of another partition, and packets larger than a switch's MTU, are dropped silently.
    Fix: if the GIDs do not match, unset NCCL_IB_GID_INDEX, or give the port's interface an IPv4 address (`show_gids`).
    If the P_Keys do not match, compare pkeys/0 of both ports and NCCL_IB_PKEY. If only small messages pass, give all
    switch ports the MTU of the ports (for RoCE 4200 or more for 4096). Otherwise check the port's cable, switch port,
    VLAN and routes, and look for a firewall that blocks UDP port 4791 (RoCE v2). On InfiniBand check the port's LID.
    Then run `ib_write_bw -d DEVICE`.
    """
    every = tests(rails)
    found = [each for each in every if not each.gpu]
    yield from _gids(found, rails, settings)
    for each in broken(every):
        message, details = _EXPLAINED[each.reason](each, settings)
        evidence = [seen(choices(end), end.failed) for end in each.tests[0].seen]
        nodes = each.suspect.nodes if each.suspect.kind != "everything" else ()
        yield fail(subject(each, rails), message, evidence=evidence, nodes=nodes, confidence=certainty(each), **details)
    yield from _passing(every, rails)
    yield from _crossed([each for each in found if each.usable], rails)


Explained = tuple[str, Mapping[str, Any]]


def _gid(each: Broken, settings: Every[Settings | Absent]) -> Explained:
    said, whose = _whose_gid(each.suspect.nodes, _devices(each), settings)
    return f"{counted(each)} paths do not work: {gid_problem(*_told(each.tests[0]))[0]}{said}", whose


def _pkey(each: Broken, _: Every[Settings | Absent]) -> Explained:
    return f"{counted(each)} paths do not work: {pkey_problem(*_told(each.tests[0]))}", FABRIC


def _mtu(each: Broken, _: Every[Settings | Absent]) -> Explained:
    sizes = sorted({own.mtu for test in each.tests for own in _told(test)})
    used = f"path MTU {sizes[0]}" if sizes else "path MTU unknown"
    return f"small messages pass but large ones do not on {counted(each)} paths ({used})", FABRIC


def _dead(each: Broken, _: Every[Settings | Absent]) -> Explained:
    if each.suspect.one_way:
        kind = {"into": "data sent to it is lost", "out of": "data that it sends is lost"}.get(each.suspect.kind)
        times = " at times" if each.at_times else ""
        message = (
            f"{kind or 'data sent in this direction is lost'}{times}, but the other direction works, on "
            f"{counted(each)} paths"
        )
        return message, {"blame": "link", "action": "repair"}
    passed = "data does not always arrive" if each.at_times else "nothing passes"
    own = each.suspect.at_one_node
    message = f"{passed}: {counted(each)} paths do not work; {each.tests[0].why}"
    return message, {"blame": "link" if own else "fabric", "action": "repair"}


_EXPLAINED: Mapping[Reason, Callable[[Broken, Every[Settings | Absent]], Explained]] = {
    "gid": _gid, "pkey": _pkey, "mtu": _mtu, "dead": _dead
}  # fmt: skip


def _passing(found: Sequence[Tried], rails: Every[Rails]) -> Iterator[Finding]:
    """Yield the rails on which some tests failed and the last one did not."""
    every, faltered = faltering(found)
    for suspect in by_rail(every, faltered):
        bad = {each.number: each for way in suspect.pairs for each in faltered[way]}
        count = len({each.number for way in suspect.pairs for each in every[way]})
        first = next(iter(bad.values()))
        yield warn(
            named(suspect, rails),
            f"{len(bad)} of {plural(count, 'test')} failed, although data passed in others: {first.why}",
            blame="link" if suspect.at_one_node else "fabric", action="retest",
            nodes=(suspect.nodes[0].node,) if suspect.at_one_node else (),
            evidence=[seen(choices(end), end.failed) for end in first.seen],
        )  # fmt: skip


def _told(each: Tried) -> list[RailAddress]:
    """Return what the ends report about themselves: both, if more is known than that they are dead."""
    return [end.address for end in each.seen if end.address]


def _gids(found: Sequence[Tried], rails: Every[Rails], settings: Every[Settings | Absent]) -> Iterator[Finding]:
    """Yield the ends that have nothing at the GID index that was chosen."""
    for end, failures in own_failures(found).items():
        if _lacks_gid(failures[0]):
            said, whose = _whose_gid((end.node,), (rails.by_node[end.node].ports[end.rail].device,), settings)
            yield _unusable({end: failures}, len(failures), rails, said, **whose)


def _crossed(found: Sequence[Tried], rails: Every[Rails]) -> Iterator[Finding]:
    """Yield that rails of different numbers do not reach each other, although each works with its equals."""
    straight = [each for each in found if each.straight]
    met = {end.end for each in straight for end in each.seen}
    well = {end.end for each in straight if not each.dead() for end in each.seen}
    well |= {end.end for each in found for end in each.seen if end.end not in met}  # no other node has its number
    tried = [each for each in found if not each.straight and all(end.end in well for end in each.seen)]
    bad = [each for each in tried if each.dead()]
    if not bad:
        return
    suspects = blame([way for each in tried for way in each.both], [way for each in bad for way in each.dead()])
    where = named(suspects[0], rails) if len(suspects) == 1 and suspects[0].nodes else "rails of all nodes"
    numbers = sorted({len(each.ports) for _, each in rails.items() if each.ports})
    uneven = f"nodes have {numbers[0]} to {numbers[-1]} rails" if numbers else "no node has a rail"
    why = next((each.cross for _, each in rails.items() if each.cross), uneven)
    yield fail(
        where,
        f"{len(bad)} of {len(tried)} tests between rails with different numbers failed, but rails with the "
        f"same number work ({why})",
        **FABRIC,
        evidence=[*(seen(both_ends(each), each.why) for each in bad[:2])],
        remedy="set up routes between the rails, or keep traffic on its rail: NCCL_CROSS_NIC=0, PXN on, and the "
        "same NCCL_IB_HCA on all nodes",
    )


def _setting(node: str, variable: str, settings: Every[Settings | Absent]) -> str:
    """Return ``NCCL_IB_GID_INDEX=0 (environment)`` if the node sets it."""
    known = settings.by_node.get(node)
    row = known.effective.get(variable) if isinstance(known, Settings) else None
    return f"{row.name}={row.value} ({row.origin})" if row else ""
