"""The rails between nodes: RDMA ports, connected as NCCL would, and what both ends chose.

Every dead way is explained once: by an end that fails alone, by GIDs, P_Keys or MTUs that do not fit, or, where none of
these is wrong, as a rail that is dead. A node's bad rails are told from its partners' by which pairs they share.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv6Address
from typing import Literal

from ncclprobe.errors import Unlearned
from ncclprobe.facts.reach import RailRow, Rails
from ncclprobe.localise.pairs.samples import End
from ncclprobe.localise.rails import Seen, Tried, Way, tried
from ncclprobe.localise.reach import Suspect, blame
from ncclprobe.model.findings import Certainty
from ncclprobe.model.hostlist import fold
from ncclprobe.model.rails import RailAddress, RailFailure
from ncclprobe.model.registry import applies
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.values import Struct, replace
from ncclprobe.nccl.gids import family
from ncclprobe.units import plural

Reason = Literal["gid", "pkey", "mtu", "dead"]
NodePair = tuple[str, str]
_FULL_MEMBER, _KEY = 0x8000, 0x7FFF
MOST_SUSPECTS = 20
_V1 = "IB/RoCE v1"
_SILENT = (0, 5, 12)
"""ibv_wc_status when nothing answers: none, WR_FLUSH_ERR behind the first error, and RETRY_EXC_ERR."""


@applies
def asked(rails: Every[Rails | Absent]) -> bool:
    """where rails were tried between nodes."""
    return any(isinstance(each, Rails) for _, each in rails.items())


@applies
def connected(rails: Every[Rails | Absent]) -> bool:
    """where rails were tried by connections of the verbs library."""
    known = [each for _, each in rails.items() if isinstance(each, Rails)]
    return any(not each.ports or each.ports[0].transport == "verbs" for each in known)


def tests(rails: Every[Rails]) -> list[Tried]:
    """Return all tests of all nodes. Raises Unlearned where there was none."""
    rows: dict[str, tuple[RailRow, ...]] = {node: each.rows for node, each in rails.items()}
    names = next((each.names for _, each in rails.items()), {})
    found = tried(rows, names)
    if not any(each.met for each in found):
        whys = [each.untested or each.why for _, each in rails.items() if each.untested or not each.ports]
        raise Unlearned(f"no rail was tried: {whys[0] if whys else 'the run had no time, or no two nodes met'}")
    return found


class Broken(Struct, frozen=True):
    """One cause of dead ways: by rail, what explains them; the tests that show it, and what at both ends is wrong.

    `at_times`: another write over one of these ways came to its end.
    """

    by_rail: Mapping[int, Suspect[str]]
    tests: tuple[Tried, ...]
    reason: Reason
    at_times: bool = False

    @property
    def suspect(self) -> Suspect[str]:
        """Return one of them: kind and nodes are the same on all rails."""
        return next(iter(self.by_rail.values()))

    @property
    def one_way(self) -> bool:
        """Return whether the other direction works."""
        return self.suspect.one_way


def broken(found: list[Tried], rails: Every[Rails]) -> list[Broken]:
    """Return what explains the dead ways between equal rails, the one with most ways first."""
    straight = [each for each in found if each.straight and not each.gpu and each.usable]
    ways: dict[int, set[NodePair]] = {}
    dead: dict[int, dict[NodePair, Tried]] = {}
    for each in straight:
        rail, gone = each.leads.end.rail, each.dead()
        ends = each.leads.end.node, each.other.end.node
        ways.setdefault(rail, set()).update((ends, ends[::-1]))
        last = {(one.node, other.node): each for one, other in gone}
        known = dead.setdefault(rail, {})
        for pair in (ends, ends[::-1]):  # the last test of a way counts
            known.pop(pair, None)
        known |= last
    suspects: dict[tuple[str, tuple[str, ...]], dict[int, Suspect[str]]] = {}
    for rail, pairs in dead.items():
        for one in blame(ways[rail], pairs):
            suspects.setdefault((one.kind, one.nodes), {})[rail] = one
    carried = {way for each in straight for way in _carried(each)}
    keys = _usual_keys(straight)
    made = [_explained(by_rail, dead, carried, keys) for by_rail in suspects.values()]
    return sorted(made, key=lambda each: -sum(len(one.pairs) for one in each.by_rail.values()))[:MOST_SUSPECTS]


def _carried(each: Tried) -> set[Way]:
    """Return the ways over which something came to its end."""
    return {way for way, _, rate in each.ways() if rate is not None}


def faltering(found: Iterable[Tried]) -> tuple[dict[Way, list[Tried]], dict[Way, list[Tried]]]:
    """Return all tests of each way between equal rails, and those that failed where the last one did not.

    One whose small messages were lost has failed as well, whatever passed after them.
    """
    every: dict[Way, list[Tried]] = {}
    failed_so: dict[Way, list[Tried]] = {}
    for each in found:
        if each.straight and not each.gpu and each.usable:
            ends = each.leads.end, each.other.end
            small = any(failure.step == "latency" for _, failure in each.failures())
            for way in (ends, ends[::-1]):
                every.setdefault(way, []).append(each)
                if small or way in each.dead():
                    failed_so.setdefault(way, []).append(each)
    # what is dead explains what comes back: one direction of it is all that the other one waited for
    return every, {way: those for way, those in failed_so.items() if not every[way][-1].dead()}


def _explained(
    by_rail: Mapping[int, Suspect[str]],
    dead: Mapping[int, Mapping[NodePair, Tried]],
    carried: Collection[Way],
    keys: Mapping[int, int],
) -> Broken:
    shown = {each.number: each for rail, one in by_rail.items() for pair in one.pairs for each in (dead[rail][pair],)}
    reasons = [_reason(each) for each in shown.values()]
    usual = max(dict.fromkeys(reasons), key=reasons.count)
    typical = sorted(zip(reasons, shown.values(), strict=True), key=lambda each: each[0] != usual)
    ways = ((End(one, rail), End(other, rail)) for rail, each in by_rail.items() for one, other in each.pairs)
    made = Broken(by_rail, tuple(test for _, test in typical), usual, any(way in carried for way in ways))
    odd = ""
    if made.suspect.kind == "pair":
        odd = _odd_gid(made.tests) if usual == "gid" else _odd_key(made.tests, keys) if usual == "pkey" else ""
    if odd:
        made = replace(made, by_rail={rail: replace(one, kind="node", nodes=(odd,)) for rail, one in by_rail.items()})
    return made


def _odd_gid(found: Sequence[Tried]) -> str:
    """Return which of two nodes has the GID that reaches no other's, where only these two can be compared."""
    odd = {node for each in found if (node := _odd_node(each)) is not None}
    return odd.pop() if len(odd) == 1 else ""


def _usual_keys(found: Iterable[Tried]) -> Mapping[int, int]:
    """Return the partition of most ends of each rail, where three ends or more are known and most have one."""
    keys: dict[int, dict[End, int]] = {}
    for end, outcome in ((seen.end, seen.outcome) for each in found for seen in each.seen):
        if outcome and outcome.own:
            keys.setdefault(end.rail, {})[end] = outcome.own.pkey & _KEY
    counts = {rail: Counter(each.values()).most_common(1)[0] for rail, each in keys.items()}
    return {rail: key for rail, (key, count) in counts.items() if count > max(1, len(keys[rail]) / 2)}


def _odd_key(found: Sequence[Tried], keys: Mapping[int, int]) -> str:
    """Return which of two nodes is not in the partition that most others of this rail are in."""
    odd = {
        seen.end.node
        for each in found
        for seen in each.seen
        if seen.outcome and seen.outcome.own and seen.outcome.own.pkey & _KEY != keys.get(seen.end.rail, -1)
    }
    return odd.pop() if len(odd) == 1 else ""


def _odd_node(each: Tried) -> str | None:
    own, peer = (seen.outcome.own if seen.outcome else None for seen in each.seen)
    odd = gid_problem(own, peer)[1] if own and peer else None
    return None if odd is None else each.seen[odd].end.node


def _reason(each: Tried) -> Reason:
    """Return what at the two ends keeps them from talking; ``dead``: nothing that they say."""
    own, peer = (seen.outcome.own if seen.outcome else None for seen in each.seen)
    if own is None or peer is None:
        return "dead"
    if own.link_layer == peer.link_layer == "Ethernet" and gid_problem(own, peer)[0]:
        return "gid"
    if own.link_layer == peer.link_layer == "InfiniBand" and pkey_problem(own, peer):
        return "pkey"
    if any(failure.status not in _SILENT for _, failure in each.failures()):
        return "dead"  # an answer came, and says what is wrong
    if not _carried(each).isdisjoint(each.dead()):
        return "dead"  # large messages passed too
    small = any(seen.outcome.half_round_trip_us for seen in each.seen if seen.outcome)
    return "mtu" if small else "dead"


def gid_problem(own: RailAddress, peer: RailAddress) -> tuple[str, int | None]:
    """Return why two RoCE GIDs cannot reach each other, in words (empty: they fit), and which of the two is at fault by
    itself, 0 or 1; None: neither or both.
    """
    ends = (own, peer)
    addresses = [_address(each.gid) for each in ends]
    for what, wrong in (
        ("empty", [not int(address) for address in addresses]),
        ("link-local", [address.is_link_local for address in addresses]),
    ):
        if any(wrong):
            end, one = ends[wrong.index(True)], sum(wrong) == 1
            return f"GID {end.gid_index} of {end.device} is {what}", wrong.index(True) if one else None
    types = [each.gid_type for each in ends]
    if all(types) and types[0] != types[1]:  # NCCL's own choice is version 2 wherever a port has it
        return f"one end has {types[0]} and the other {types[1]}", types.index(_V1) if _V1 in types else None
    families = [family(address) for address in addresses]
    return "one GID is an IPv4 address and the other an IPv6 address" if families[0] != families[1] else "", None


def pkey_problem(own: RailAddress, peer: RailAddress) -> str:
    """Return why two P_Keys do not let ports talk, in words; empty: they do (InfiniBand Architecture 1, 10.9.3)."""
    if own.pkey & _KEY != peer.pkey & _KEY:
        return "the P_Keys differ"
    limited = not (own.pkey | peer.pkey) & _FULL_MEMBER
    return "both are limited members of the partition, which may not talk to each other" if limited else ""


def subject(each: Broken, rails: Every[Rails]) -> str:
    """Name what is bad: ``n3 rail 1 (mlx5_1:1)``, ``n3``, ``n0 rail 1 -> n3 rail 1``."""
    suspect, numbers = each.suspect, sorted(each.by_rail)
    every = max((len(one.ports) for _, one in rails.items()), default=0)
    which = "" if len(numbers) == every > 1 else f" rail {fold_numbers(numbers)}"
    if suspect.kind in ("pair", "direction"):
        return (" <-> " if suspect.kind == "pair" else " -> ").join(f"{node}{which}" for node in suspect.nodes)
    if not suspect.nodes:
        return f"all nodes{which}"
    device = _device(suspect.nodes[0], numbers[0], rails) if len(suspect.nodes) == len(numbers) == 1 else ""
    return f"{fold(suspect.nodes)}{which}{device}"


def fold_numbers(numbers: list[int]) -> str:
    """Return ``0-2,5``."""
    return fold([str(number) for number in numbers]).strip("[]")


def name(end: End, rails: Every[Rails]) -> str:
    """Return ``n3 rail 1 (mlx5_1:1)``."""
    return f"{end.node} rail {end.rail}{_device(end.node, end.rail, rails)}"


def _device(node: str, rail: int, rails: Every[Rails]) -> str:
    ports = rails.by_node[node].ports if node in rails.by_node else ()
    return f" ({ports[rail].device}:{ports[rail].port})" if rail < len(ports) else ""


def counted(each: Broken) -> str:
    """Return ``6 of 6 ways``."""
    return (
        f"{sum(len(one.pairs) for one in each.by_rail.values())} of {sum(one.tests for one in each.by_rail.values())}"
    )


def certainty(each: Broken) -> Certainty:
    """Return how certain it is: confirmed by several other nodes, or seen between two alone."""
    suspect = each.suspect
    partners = len({node for one in each.by_rail.values() for pair in one.pairs for node in pair} - set(suspect.nodes))
    with_whom = f"with {partners} other nodes" if partners > 1 else "between these two alone"
    how = f"{plural(len(each.tests), 'test')} {with_whom if suspect.nodes else 'between all'}"
    return Certainty("high" if partners > 1 else "medium", how)


def both_ends(each: Tried) -> str:
    """Return the choices of both ends in one line."""
    return " | ".join(choices(seen) for seen in each.seen)


def choices(seen: Seen) -> str:
    """Return what NCCL's rules chose at one end, and what is read from its port."""
    outcome = seen.outcome
    if outcome is None:
        return f"{seen.end.node}: not told"
    asked, own = outcome.asked, outcome.own
    where = f"{seen.end.node} {asked.device}:{asked.port}"
    if asked.transport == "efa":
        return f"{where} by {asked.program}"
    told = f"SL {asked.service_level or 0}, TC {asked.traffic_class or 0}, {asked.queue_pairs} QP"
    if own is None:
        return f"{where} GID {asked.gid_index}, P_Key index {asked.pkey_index}, {told}"
    gid = f"GID {own.gid_index} {written(own.gid)}" + (f" ({own.gid_type})" if own.gid_type else "")
    lid = f", LID {own.lid}" if own.lid else ""
    return f"{where} {gid}{lid}, P_Key 0x{own.pkey:04x}, MTU {own.active_mtu}, {told}"


def written(gid: str) -> str:
    """Return a GID as an address: ``::ffff:10.0.0.1``."""
    address = _address(gid)
    return f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)


def by_rail(tested: Collection[Way], bad: Collection[Way]) -> Iterator[Suspect[End]]:
    """Explain bad ways: all at once where all are bad, else each rail by itself, for ends of different rails are never
    compared; then ways between rails of different numbers that no bad end explains.
    """
    bad = frozenset(bad)
    whole = blame(tested, bad)
    if len(whole) == 1 and not whole[0].nodes:
        yield whole[0]
        return
    known: set[End] = set()
    for rail in (*sorted({src.rail for src, dst in bad if src.rail == dst.rail}), None):
        own = [way for way in tested if (way[0].rail if way[0].rail == way[1].rail else None) == rail]
        for suspect in blame(own, [way for way in own if way in bad and known.isdisjoint(way)]):
            known |= {end for way in suspect.pairs for end in way} if not suspect.at_one_node else {*suspect.nodes}
            yield suspect


def named(suspect: Suspect[End], rails: Every[Rails]) -> str:
    """Name the ends that :func:`by_rail` suspects: ``into n3 rail 1 (mlx5_1:1)``, ``rail 1 of all nodes``."""
    if not suspect.nodes:
        numbers = sorted({end.rail for way in suspect.pairs for end in way})
        every = max((len(each.ports) for _, each in rails.items()), default=0)
        return "all rails" if len(numbers) == every else f"rail {fold_numbers(numbers)} of all nodes"
    if suspect.kind == "split":
        nodes, numbers = [end.node for end in suspect.nodes], sorted({end.rail for end in suspect.nodes})
        return f"{fold(nodes)} rail {fold_numbers(numbers)} with all other nodes"
    heading = {"into": "into ", "out of": "out of "}.get(suspect.kind, "")
    return heading + (" -> " if suspect.one_way else " <-> ").join(name(end, rails) for end in suspect.nodes)


def own_failures(found: Iterable[Tried]) -> dict[End, list[RailFailure]]:
    """Return what failed at each end by itself, in the order of the tests."""
    own: dict[End, list[RailFailure]] = {}
    for each in found:
        for one in each.seen:
            if failure := each.own_failure(one):
                own.setdefault(one.end, []).append(failure)
    return dict(sorted(own.items()))


def _address(gid: str) -> IPv6Address:
    """Return a GID of 32 digits as an address; another node may send anything, which is none."""
    try:
        return IPv6Address(int(gid[:32] or "0", 16))
    except ValueError:
        return IPv6Address(0)


def why(each: Tried) -> str:
    """Return what failed, in the words of the ends."""
    told = [f"{end.end.node}: {text}" for end in each.seen if (text := failed(end))]
    return "; ".join(told) or "neither end says why"


def failed(end: Seen) -> str:
    """Return what failed at one end, in its own words; empty: nothing but what it heard of the other."""
    failures = end.outcome.failures if end.outcome else ()
    return "; ".join(dict.fromkeys(each.text for each in failures if each.kind not in ("peer", "channel")))
