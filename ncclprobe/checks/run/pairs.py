"""What is slow, by the pairs of a round-robin."""

from collections.abc import Iterator, Sequence

from ncclprobe.checks.run.conditions import pairs_of_ranks
from ncclprobe.checks.run.ranks import seen_once
from ncclprobe.checks.run.rows import EXACT
from ncclprobe.facts.run.samples import Expected, Localised, RunRequest
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Blame, Certainty, Finding, fail, note, seen, warn
from ncclprobe.model.measurement import Band
from ncclprobe.model.pair_results import ONE_WAY, PAIRS, Blamed, Localisation, LostPair
from ncclprobe.model.registry import check
from ncclprobe.model.units import certain
from ncclprobe.model.values import replace

NONE = Localisation(4, "none", tests=36)
_RUINED = 0.5
"""Below this share of the usual bandwidth a job is better off without: that fails, and the rest warns."""
_FEWEST_NODES = 3
_NOTED = 0.7
"""Pairs below this share of an unjudged expectation are worth a note: it is off by a third in one row of ten."""


def said(found: Localisation, *bands: Band) -> tuple[Localised, RunRequest, Expected]:
    return Localised(found), RunRequest(what=("pairs",)), Expected(bands)


@check(
    bad=lambda: [said(replace(NONE, lost=(LostPair("n0", "n3", "timed out"),)))],
    good=lambda: [said(NONE)],
    required=True,
    applies=pairs_of_ranks,
)
def pairs(localised: Localised, asked: RunRequest, expected: Expected) -> Iterator[Finding]:
    """A node, a NIC, a pair or a direction is slow or corrupts data, or a pair was lost.

    Right: No node, NIC, pair or direction is slow or corrupts data.
    Why: a collective is as slow as its slowest pair, and its time does not show which pair that is. Pairs inside nodes
    are measured first, so that a slow node is not mistaken for a slow network. If a part looks slow when all pairs are
    measured, it is measured again with other partners. It is reported only if the second measurement confirms the loss,
    and if the loss is larger than the spread of repeated measurements.
    Fix: check the part that the finding names. For a node, check its links, NICs and processes (`ncclprobe doctor`);
    for a rail, its NIC, cable and switch port; for a pair, the switches and cables between the two. Then measure again.
    """
    found = localised.found
    named = [*_slow_inside(found), *_slow_between(found), *_wrong_or_lost(found)]
    yield from named
    if named:
        return
    yield from _pairs_below_expected(found, expected)
    given = asked.expect or asked.baseline
    if given and not any(b.op in (PAIRS, "sendrecv") and b.expectation.worst != "unjudged" for b in expected.bands):
        raise Unlearned(f"{given} has no expectation for pairs")
    if not found.complete:
        raise Unlearned("the run ended before all pairs were measured")
    if asked.require_judged and found.nodes < _FEWEST_NODES:
        raise Unlearned("with two nodes either may be the slow one, so measure at least three nodes")


def _slow_inside(found: Localisation) -> Iterator[Finding]:
    """What is slow within a node, apart from any network."""
    for each in found.intra_node:
        finding = fail if each.ratio < _RUINED else warn
        yield finding(
            each.where,
            f"{_INSIDE[each.kind]} is slow, at {100 * each.ratio:.0f} % of its peers' bandwidth, with no network "
            "in between",
            blame="node",
            action="retest",
            confidence=Certainty("medium", f"slow in each of {each.tests} turns, compared with other nodes"),
            evidence=seen(f"{each.tests} measurements", f"its peers reach {each.usual_GBps:.3g} GB/s"),
            remedy="look inside the node first: NVLinks and PCIe links below their width or speed (`ncclprobe "
            "doctor`), CPUs shared with other jobs, affinity, CPU limits. Then check its network",
            nodes=(each.node,),
            loss=round(1 - each.ratio, 4),
            lost_GBps=round(each.usual_GBps * (1 - each.ratio), 4),
        )


_INSIDE = {
    "node": "the traffic between the ranks of this node",
    "rank": "the traffic of this rank with the others of its node",
    "pair": "the traffic between these two ranks of one node",
}


def _level_GBps(found: Localisation) -> float:
    """Return the usual rate one way; 0 if nothing went through."""
    return found.level_GBps.get(ONE_WAY, 0.0)


def _slow_between(found: Localisation) -> Iterator[Finding]:
    """Report what is slow by the round-robin, or that all are slow."""
    within = {each.node for each in found.intra_node}
    for each in found.culprits:
        finding = fail if each.ratio < _RUINED else warn
        hosts = each.hosts or each.nodes
        slow_inside = each.kind in ("node", "rail") and not within.isdisjoint(hosts)
        yield finding(
            each.where,
            f"{_what(each)} is slow, at {100 * each.ratio:.0f} % of the usual bandwidth"
            + ("; the node is also slow inside, which may be the cause, so look there first" if slow_inside else ""),
            blame="fabric" if len(each.nodes) > _PAIR else _WHOSE[each.kind],
            loss=round(1 - each.ratio, 4),
            lost_GBps=round(_level_GBps(found) * (1 - each.ratio), 4) or None,
            action="retest" if each.kind == "pair" else "repair",
            confidence=Certainty("high", f"confirmed with {each.partners} other partners, {certain(each.confidence)}"),
            evidence=seen(
                f"{found.tests} pair tests",
                f"slow in {each.slow} of the {each.tests} it took part in, {each.retests} of them retests"
                + (f"; the usual rate is {found.usual}" if found.usual else ""),
            ),
            remedy=_SHARED if len(each.nodes) > _PAIR else _device_command(each.where, hosts),
            nodes=hosts if each.kind in ("node", "rail") else (),
        )
    for rail, share in found.slow_rails.items():
        yield (fail if share < _RUINED else warn)(
            f"all nodes rail {rail}",
            f"this rail is slow on all nodes, at {100 * share:.0f} % of the usual bandwidth",
            blame="fabric",
            action="repair",
            loss=round(1 - share, 4),
            evidence=f"{found.tests} pair tests",
        )
    if found.all_slow:
        yield warn(
            "all pairs",
            f"everything is slower than expected: {found.usual}",
            action="retest",
            evidence=f"{found.tests} pair tests",
        )


_RDMA = ("mlx", "bnxt_re", "irdma", "rdmap", "roce", "rxe", "siw", "efa", "ib")


def _device_command(where: str, hosts: Sequence[str]) -> str:
    """Return what to type if one device of one node is named: ``n2 rail 1 (eth1)``; otherwise nothing."""
    device = where.removesuffix(")").rpartition(" (")[2] if where.endswith(")") else ""
    name, _, port = device.partition(":")
    if len(hosts) != 1 or not name or not name.replace("_", "").isalnum():
        return ""
    commands = f"`ethtool {name}`; `ip -s link show {name}`"
    if name.startswith(_RDMA):
        commands = f"`ibstatus {device}`; `rdma statistic show link {name}/{port or 1}`"
    return (
        f"on {hosts[0]}, check rate, width and errors with {commands}, and those of its switch port. Check "
        "the node's processes with `ncclprobe doctor`, then measure again"
    )


_PAIR = 2
_SHARED = (
    "compare the switch that these nodes share, and its uplinks, with those of the other nodes: ports "
    "that are down, congestion marks, firmware. In a fabric that is oversubscribed by design, this share is normal"
)


def _pairs_below_expected(found: Localisation, expected: Expected) -> Iterator[Finding]:
    """Note that all pairs are slow by an expectation that is too loosely known to judge by; by its gross mark fail."""
    level = _level_GBps(found)
    for band in expected.bands:
        about = band.expectation
        if band.op != PAIRS or about.worst != "unjudged" or not 0 < level < _NOTED * about.value:
            continue
        gross = about.below_gross(level)
        yield (fail if gross else note)(
            "all pairs",
            f"the usual pair reaches {level:.3g} GB/s one way, "
            + (about.least(level) if gross else f"and {about.value:.3g} GB/s are expected")
            + f": {about.why}",
            action="retest",
            evidence=seen(about.source, about.known),
            remedy="if every pair is slow, check what all pairs share: run `ncclprobe doctor` on any node, and check "
            "the NIC that NCCL uses and GPUDirect RDMA. `--expect FILE` judges by this site's own expectations",
        )


def _wrong_or_lost(found: Localisation) -> Iterator[Finding]:
    """The pairs that brought wrong bytes, and those that brought nothing."""
    for bad in {(each.src, each.dst): each for each in reversed(found.wrong)}.values():
        first = bad.first
        yield fail(
            f"{bad.src_end} to {bad.dst_end}",
            f"{bad.wrong} bytes of one transfer arrived corrupted",
            action="retest",
            confidence=EXACT,
            evidence=seen(
                f"rank {bad.src} to rank {bad.dst}, byte {first.offset}",
                f"{first.got} ({first.got_bits}) instead of {first.expected} ({first.expected_bits})",
            ),
            remedy="measure each of the two with other nodes, and exclude the one that also corrupts bytes there",
        )
    aside = ", ".join(each.end for each in found.excluded_ranks)
    what_next = f"set aside: {aside}" if aside else "both completed tests with other partners"
    for (src, dst), why in {(lost.src, lost.dst): lost.why for lost in found.lost}.items():
        yield seen_once(
            f"{src} to {dst}",
            f"nothing arrived before the deadline; {what_next}",
            evidence=seen("pair test", why),
        )


_WHOSE: dict[str, Blame] = {"node": "node", "rail": "node", "pair": "link"}


def _what(each: Blamed) -> str:
    """What of a cause is slow, in words: its subject names it."""
    if len(each.nodes) > _PAIR:
        return "the path between these nodes and the others (but not among these nodes)"
    if each.kind == "pair":
        return "the path between them" if each.direction == "both" else "the path from the first to the second"
    if each.several:
        return f"what this {'node' if each.kind == 'node' else 'NIC'} exchanges with {each.partners} of the others"
    moved = {"both": "sends and receives", "out": "sends", "into": "receives"}[each.direction]
    return {
        "node": f"the traffic that this node {moved}",
        "rail": f"the traffic that this NIC (with its cable) {moved}",
    }[each.kind]
