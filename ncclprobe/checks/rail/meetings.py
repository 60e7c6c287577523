"""Whether all rails were tried, and whether rails of different numbers reach each other."""

from collections.abc import Iterable, Iterator, Sequence

from ncclprobe.checks.rail import asked, both_ends, name, named
from ncclprobe.checks.rail.fixtures import World, rails_of
from ncclprobe.errors import Unlearned
from ncclprobe.facts.reach import Rails
from ncclprobe.localise.pairs.samples import End
from ncclprobe.localise.rails import Tried, Way, tests, unmet
from ncclprobe.localise.reach import blame
from ncclprobe.model.findings import ONCE, Finding, fail, seen, warn
from ncclprobe.model.hostlist import fold
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.units import plural

_CROSS = World(carries=lambda src, dst, gpu: float(src.rail == dst.rail))


def _no_port() -> Every[Rails]:
    nothing = Rails(3, {}, why="no active port of InfiniBand or Ethernet")
    return Every({**rails_of(World()).by_node, "n3": nothing})


@check(
    bad=lambda: [(_no_port(),)],
    good=lambda: [(rails_of(World()),)],
    required=True,
    requires="sync.node-lost",
    applies=asked,
)
def untried(rails: Every[Rails]) -> Iterator[Finding]:
    """Rails of a node were not tried.

    Right: All rails that NCCL would take were tried.
    Why: a node without a port that NCCL's own transport takes drops the whole job to TCP sockets, or to a plugin that
    is not tested here. AWS's EFA has no reliable connections: it is tried by libfabric's own fi_pingpong, where NCCL
    would use it and the program is there.
    Fix: see the checks ib.* of that node for the port; on EFA see env.efa, and install libfabric by Amazon's installer,
    which brings /opt/amazon/efa/bin/fi_pingpong.
    """
    for node, each in rails.items():
        if not each.ports and any(other.ports for _, other in rails.items()):
            yield warn(
                node, f"has no rail to try: {each.why or 'no reason is told'}", blame="node", action="repair",
                nodes=(node,), evidence=f"{len(rails)} nodes",
            )  # fmt: skip
    silent = dict.fromkeys(node for _, each in rails.items() for node in each.silent)
    for node in silent:
        yield fail(
            node, "stopped answering while rails were tried", blame="node", action="retest", nodes=(node,),
            confidence=ONCE, evidence="an order of node 0 that was not answered in time",
            remedy="see what its process did: was it killed (dmesg: out of memory), stopped, or its node lost?",
        )  # fmt: skip
    if silent:
        return
    found = tests(rails)
    short = {node: each for node, each in rails.items() if len(each.rows) < each.planned}
    if short:
        counts = ", ".join(f"{node} {len(each.rows)} of {each.planned}" for node, each in list(short.items())[:4])
        raise Unlearned(f"not all tests of the plan were made, {len(found)} were: {counts}")
    if apart := unmet(found):
        told = "; ".join((both_ends(apart[0]), *apart[0].unmet_why))
        lacking = sorted({end.end.node for each in apart for end in each.seen} - {*rails.by_node})
        if lacking:
            told = f"what {fold(lacking)} saw is not known"
        raise Unlearned(f"the two ends of {plural(len(apart), 'rail')} never met: {told}")
    if alone := _alone(found, rails):
        raise Unlearned(
            f"{', '.join(name(end, rails) for end in alone[:4])} met no other rail, so nothing is known of it"
        )
    if late := _late(found):
        first = f"{late[0][0].node} to {late[0][1].node} on rail {late[0][0].rail}"
        raise Unlearned(
            f"{plural(len(late), 'way')} carried data, but not all of it in time: {first}; a longer --timeout gives "
            "every test more"
        )


def _late(found: Iterable[Tried]) -> list[Way]:
    """Return the ways whose last test came to no end in time: no rate is known of them, only the most it can be."""
    last: dict[Way, bool] = {}
    for tried in found:
        last |= {way: way in tried.late() for way in tried.both}
    return [way for way, is_late in last.items() if is_late]


def _alone(found: Sequence[Tried], rails: Every[Rails]) -> list[End]:
    """Return the ports that took part in no test."""
    known = {end.end for each in found for end in each.seen}
    every = (End(node, rail) for node, each in rails.items() for rail in range(len(each.ports)))
    return [end for end in every if end not in known]


@applies
def crossed(rails: Every[Rails | Absent]) -> bool:
    """where rails of different numbers were tried with each other."""
    rows = (row for _, each in rails.items() if isinstance(each, Rails) for row in each.rows)
    return any(row.rail != row.other for row in rows)


@check(
    bad=lambda: [(rails_of(_CROSS, cross=True),)],
    good=lambda: [(rails_of(World(), cross=True),)],
    applies=crossed,
)
def cross(rails: Every[Rails]) -> Iterator[Finding]:
    """Rails of different numbers cannot reach each other, and the job would need it.

    Right: Rails of different numbers reach each other.
    Why: where GPUs cannot hand data to the GPU of the right rail (NCCL_PXN_DISABLE=1, no NVLink), where NCCL_CROSS_NIC
    is 1, or where nodes have different numbers of rails, NCCL sends from one rail to another: on a fabric of separate
    rails that is a job that hangs at its first all-to-all.
    Fix: have the rails routed to each other, or keep to rails: NCCL_CROSS_NIC=0, PXN on, equal NCCL_IB_HCA everywhere.
    """
    found = [each for each in tests(rails) if not each.gpu and each.usable]
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
    yield fail(
        where,
        f"{len(bad)} of {len(tried)} tests between rails of different numbers failed, and rails of equal number work "
        f"({_needed(rails)})",
        blame="fabric",
        action="repair",
        evidence=[*(seen(both_ends(each), each.why) for each in bad[:2])],
    )


def _needed(rails: Every[Rails]) -> str:
    """Return why rails of different numbers were tried."""
    numbers = sorted({len(each.ports) for _, each in rails.items() if each.ports})
    uneven = f"nodes have {numbers[0]} to {numbers[-1]} rails" if len(numbers) > 1 else "asked for by --cross-rails"
    return next((each.cross for _, each in rails.items() if each.cross), uneven)
