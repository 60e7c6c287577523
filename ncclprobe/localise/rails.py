"""Combine the two ends of every rail test: which data arrived, which did not, and what can be at fault.

Reliable connections need both directions: a writer that fails although its data arrives has lost the way back. So a
dead
way is concluded from the reports of its two ends, never from one of them.

Every dead way is explained once: by an end that fails on its own, by mismatched GIDs, P_Keys or MTUs, or, if none of
these
is wrong, as a dead rail. The pairs that bad rails share show which node is at fault.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv6Address
from typing import Any, Literal, NamedTuple

from ncclprobe.facts.reach import RailRow, Rails
from ncclprobe.localise.pairs.samples import End, Lost, Result, Sample
from ncclprobe.localise.reach import Suspect, blame
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.rails import RailAddress, RailDirection, RailFailure, RailOutcome
from ncclprobe.model.snapshot import Every
from ncclprobe.model.values import Struct, grouped, replace
from ncclprobe.nccl.hcas import family

Way = tuple[End, End]
_OPENING = ("open", "prepare")
"""Steps without another node: a failure in them is this end's own."""
_HANGING = ("hangs", "died", "event")
"""Failures of the driver or the device itself, whatever the step."""
_TO_OTHER = "ibv_modify_qp"
"""The one call of connecting that may fail because of the other end: it looks up the path to it."""
_SHORTEST_S = 1e-3
"""Lower bound of a step's time, whatever a row holds."""
_TOLD = ("peer", "channel")
"""Failures that say nothing about the end that reports them."""
Reason = Literal["gid", "pkey", "mtu", "dead"]
_FULL_MEMBER, _KEY = 0x8000, 0x7FFF
_MOST_SUSPECTS = 20
_V1 = "IB/RoCE v1"
_SILENT = (0, 5, 12)
"""ibv_wc_status without an answer: none, WR_FLUSH_ERR after the first error, and RETRY_EXC_ERR."""


class EndView(NamedTuple):
    """One end of a test and what it saw."""

    end: End
    outcome: RailOutcome | None

    @property
    def address(self) -> RailAddress | None:
        """This end's description of itself."""
        return self.outcome.own if self.outcome else None

    @property
    def failed(self) -> str:
        """What failed at this end, in its own words; empty if only the other end failed."""
        failures = self.outcome.failures if self.outcome else ()
        return "; ".join(dict.fromkeys(each.text for each in failures if each.kind not in _TOLD))


class Tried(Struct, frozen=True):
    """One test: its end that `leads`, the other, and the values common to both.

    `most_GBps`: the rate at which everything would just have arrived in time.
    """

    number: int
    leads: EndView
    other: EndView
    together: int
    step: int
    most_GBps: float = 0.0

    @property
    def straight(self) -> bool:
        """Whether both ends have the same rail number."""
        return self.leads.end.rail == self.other.end.rail

    @property
    def gpu(self) -> bool:
        """Whether GPU memory was used."""
        return any(each.outcome is not None and each.outcome.asked.memory != "host" for each in self.seen)

    @property
    def seen(self) -> tuple[EndView, EndView]:
        """Both ends, the leading one first."""
        return self.leads, self.other

    @property
    def both(self) -> tuple[Way, Way]:
        """Both ways."""
        return (self.leads.end, self.other.end), (self.other.end, self.leads.end)

    @property
    def why(self) -> str:
        """What failed, in the words of the ends."""
        told = [f"{each.end.node}: {text}" for each in self.seen if (text := each.failed)]
        return "; ".join(told) or "neither end gives a reason"

    @property
    def met(self) -> bool:
        """Whether both ends reported, and could reach each other to agree on it."""
        outcomes = [each.outcome for each in self.seen]
        return all(outcome is not None and not _unmet(outcome) for outcome in outcomes)

    @property
    def unmet_why(self) -> list[str]:
        """Return why the two ends did not agree on anything, in their words."""
        failures = (each for end in self.seen if end.outcome for each in end.outcome.failures)
        return list(dict.fromkeys(each.text for each in failures if each.kind == "channel"))

    def own_failure(self, end: EndView) -> RailFailure | None:
        """Return what failed at `end` without another node's part in it; None if nothing did."""
        failures = end.outcome.failures if end.outcome else ()
        return next((each for each in failures if _is_own(each)), None)

    @property
    def usable(self) -> bool:
        """Whether both ends got far enough to send."""
        return self.met and not any(self.own_failure(each) for each in self.seen)

    @property
    def comparable(self) -> bool:
        """Whether it is a usable test of one rail: between equal rails, in host memory."""
        return self.straight and not self.gpu and self.usable

    def ways(self) -> Iterator[tuple[Way, bool, float | None]]:
        """Yield each way, whether the other was active as well, and its rate in GB/s; None if it is dead.

        If it did not end in time, the rate is the upper bound.
        """
        late = self.late()
        for writer, reader, direction in self._writes():
            way = (writer.end, reader.end)
            streams = writer.outcome.streams if writer.outcome else ()
            if stream := next((each for each in streams if each.direction == direction and each.seconds > 0), None):
                yield way, direction == "both", stream.GBps
            elif way in late and self._is_late(writer, reader, direction):
                yield way, direction == "both", self.most_GBps
        yield from ((way, False, None) for way in self.dead())

    def late(self) -> list[Way]:
        """Return the ways whose data did not all arrive in time, though not for lack of a way back."""
        late = [
            (writer.end, reader.end) for writer, reader, how in self._writes() if self._is_late(writer, reader, how)
        ]
        dead = self.dead()
        return [way for way in dict.fromkeys(late) if not {way, way[::-1]} & {*dead}]

    def dead(self) -> list[Way]:
        """Return the ways without any data."""
        if not self.usable:
            return []
        if any(failure.step == "connect" for _, failure in self.failures()):
            return [*self.both]
        found: dict[Way, None] = {}
        for writer, reader, direction in self._writes():
            if _failure(writer, reader, direction) and not self._is_late(writer, reader, direction):
                back = _came(reader, direction)
                found[(reader.end, writer.end) if back else (writer.end, reader.end)] = None
        return list(found)

    def _is_late(self, writer: EndView, reader: EndView, direction: RailDirection) -> bool:
        failed = _failure(writer, reader, direction) if self.usable else None
        return failed is not None and failed.kind == "late" and _came(reader, direction)

    def failures(self) -> list[tuple[End, RailFailure]]:
        """Return the failures of each end, without those that it only heard of."""
        return [
            (each.end, failure)
            for each in self.seen
            for failure in (each.outcome.failures if each.outcome else ())
            if failure.kind not in _TOLD
        ]

    def _writes(self) -> Iterator[tuple[EndView, EndView, RailDirection]]:
        yield self.leads, self.other, "out"
        yield self.other, self.leads, "in"
        yield self.leads, self.other, "both"
        yield self.other, self.leads, "both"


def tried(rows: Mapping[str, Sequence[RailRow]], names: Mapping[int, str]) -> list[Tried]:
    """Return the tests of all nodes, by number, from the reports of each end by node name."""
    ends: dict[int, dict[bool, tuple[str, RailRow]]] = {}
    for node, own in rows.items():
        for row in own:
            ends.setdefault(row.number, {})[row.leads] = (node, row)
    found = []
    for number, both in sorted(ends.items()):
        node, row = both.get(True) or both[False]
        mine, theirs = End(node, row.rail), End(names.get(row.to, f"node {row.to}"), row.other)
        seen = {row.leads: EndView(mine, row.outcome), not row.leads: EndView(theirs, None)}
        if len(both) == 2:
            seen[False] = EndView(theirs, both[False][1].outcome)
        if mine.node != theirs.node:
            found.append(Tried(number, seen[True], seen[False], row.together, row.step, _most(row)))
    return found


def unmet(found: Iterable[Tried]) -> list[Tried]:
    """Return one test of each two ends that never met: nothing is known of the path between them."""
    by_ends = grouped((frozenset(each.both[0]), each) for each in found)
    return [tests[-1] for tests in by_ends.values() if not any(each.met for each in tests)]


def _most(row: RailRow) -> float:
    return row.nbytes / max(row.patience_s, _SHORTEST_S) / 1e9 if row.patience_s > 0 else 0.0


def results(found: Iterable[Tried]) -> list[Result]:
    """Return pair samples for the search: equal rails, in host memory, all rails of two nodes together."""
    return [result for each in found for result in _results(each)]


def _results(each: Tried) -> Iterable[Result]:
    if not each.straight or each.gpu:
        return
    if not each.usable:
        yield from (Lost(*way, "not connected", each.step) for way in each.both)
    for (src, dst), both, rate in each.ways():
        if rate is None:
            yield Lost(src, dst, "nothing came", each.step)
        elif rate > 0:
            yield Sample(src, dst, rate, both, each.step)


def tests(rails: Every[Rails]) -> list[Tried]:
    """Return all tests of all nodes. Raises Unlearned if there was none."""
    rows: dict[str, tuple[RailRow, ...]] = {node: each.rows for node, each in rails.items()}
    names = next((each.names for _, each in rails.items()), {})
    found = tried(rows, names)
    if not any(each.met for each in found):
        whys = [each.untested or each.why for _, each in rails.items() if each.untested or not each.ports]
        raise Unlearned(
            f"no rail was tested: {whys[0] if whys else 'the run ran out of time, or no two nodes could connect'}"
        )
    return found


class Broken(Struct, frozen=True):
    """One cause of dead ways: what it blames on all of `rails`, the tests that show it, and the fault at both ends.

    Nodes of `suspect` are names, its pairs are ways. `at_times`: another write over one of these completed.
    """

    suspect: Suspect[Any]
    rails: tuple[int, ...]
    tests: tuple[Tried, ...]
    reason: Reason
    at_times: bool = False


def broken(found: Iterable[Tried]) -> list[Broken]:
    """Return what explains the dead ways between equal rails, the cause of most ways first."""
    straight = [each for each in found if each.comparable]
    last = {way: each for each in straight for way in each.both}  # the last test of a way counts
    dead = {way: each for way, each in last.items() if way in each.dead()}
    suspects: dict[tuple[str, tuple[str, ...]], dict[int, Suspect[End]]] = {}
    for rail in dict.fromkeys(src.rail for src, _ in last):
        for one in blame([way for way in last if way[0].rail == rail], [way for way in dead if way[0].rail == rail]):
            suspects.setdefault((one.kind, tuple(end.node for end in one.nodes)), {})[rail] = one
    carried = {way for each in straight for way in _ways_with_data(each)}
    keys = _usual_keys(straight)
    made = [_explained(nodes, each, dead, carried, keys) for (_, nodes), each in suspects.items()]
    return sorted(made, key=lambda each: -len(each.suspect.pairs))[:_MOST_SUSPECTS]


def _ways_with_data(each: Tried) -> set[Way]:
    """Return the ways with a completed write."""
    return {way for way, _, rate in each.ways() if rate is not None}


def _explained(
    nodes: tuple[str, ...],
    by_rail: Mapping[int, Suspect[End]],
    dead: Mapping[Way, Tried],
    carried: Collection[Way],
    keys: Mapping[int, int],
) -> Broken:
    ways = tuple(way for one in by_rail.values() for way in one.pairs)
    shown = {dead[way].number: dead[way] for way in ways}
    reasons = [_reason(each) for each in shown.values()]
    usual = max(dict.fromkeys(reasons), key=reasons.count)
    typical = sorted(zip(reasons, shown.values(), strict=True), key=lambda each: each[0] != usual)
    tests = tuple(test for _, test in typical)
    suspect = Suspect(next(iter(by_rail.values())).kind, nodes, ways, sum(one.tests for one in by_rail.values()))
    if suspect.kind == "pair" and (odd := _odd_node(tests, usual, keys)):
        suspect = replace(suspect, kind="node", nodes=(odd,))
    return Broken(suspect, tuple(sorted(by_rail)), tests, usual, any(way in carried for way in ways))


def _odd_node(found: Sequence[Tried], reason: Reason, keys: Mapping[int, int]) -> str:
    """Return which of two nodes is the odd one, if only these two can be compared; empty: neither, or both.

    The odd node's GID reaches no other's, or it is in another partition than most others of its rail.
    """
    odd: set[str] = set()
    for each in found:
        own, peer = (one.address for one in each.seen)
        if reason == "gid" and own and peer and (at := gid_problem(own, peer)[1]) is not None:
            odd.add(each.seen[at].end.node)
        if reason == "pkey":
            ends = ((one.end, one.address) for one in each.seen)
            odd |= {end.node for end, own in ends if own and own.pkey & _KEY != keys.get(end.rail, -1)}
    return odd.pop() if len(odd) == 1 else ""


def _usual_keys(found: Iterable[Tried]) -> Mapping[int, int]:
    """Return the partition of most ends of each rail, if at least three ends are known and most agree."""
    keys: dict[int, dict[End, int]] = {}
    for seen in (one for each in found for one in each.seen):
        if own := seen.address:
            keys.setdefault(seen.end.rail, {})[seen.end] = own.pkey & _KEY
    counts = {rail: Counter(each.values()).most_common(1)[0] for rail, each in keys.items()}
    return {rail: key for rail, (key, count) in counts.items() if count > max(1, len(keys[rail]) / 2)}


def _reason(each: Tried) -> Reason:
    """Return the mismatch that keeps two ends from talking; ``dead`` if they report none."""
    own, peer = (seen.address for seen in each.seen)
    if own is None or peer is None:
        return "dead"
    if own.link_layer == peer.link_layer == "Ethernet" and gid_problem(own, peer)[0]:
        return "gid"
    if own.link_layer == peer.link_layer == "InfiniBand" and pkey_problem(own, peer):
        return "pkey"
    if any(failure.status not in _SILENT for _, failure in each.failures()):
        return "dead"  # an answer came, and says what is wrong
    if not _ways_with_data(each).isdisjoint(each.dead()):
        return "dead"  # large messages passed too
    small = any(seen.outcome.half_round_trip_us for seen in each.seen if seen.outcome)
    return "mtu" if small else "dead"


def gid_problem(own: RailAddress, peer: RailAddress) -> tuple[str, int | None]:
    """Return why two RoCE GIDs cannot reach each other (empty: they can), and which of the two is at fault by itself:
    0, 1 or,
    for neither or both, None.
    """
    ends = (own, peer)
    addresses = [gid_address(each.gid) for each in ends]
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
    """Return why two P_Keys do not let ports talk (InfiniBand Architecture 1, 10.9.3); empty if they do."""
    if own.pkey & _KEY != peer.pkey & _KEY:
        return "the P_Keys differ"
    limited = not (own.pkey | peer.pkey) & _FULL_MEMBER
    return "both are limited members of the partition, which may not communicate with each other" if limited else ""


def faltering(found: Iterable[Tried]) -> tuple[dict[Way, list[Tried]], dict[Way, list[Tried]]]:
    """Return all tests of each way between equal rails, and the failed ones of ways whose last test passed.

    A test whose small messages were lost has failed as well, whatever passed after them.
    """
    every: dict[Way, list[Tried]] = {}
    failed_so: dict[Way, list[Tried]] = {}
    for each in found:
        small = any(failure.step == "latency" for _, failure in each.failures())
        for way in each.both if each.comparable else ():
            every.setdefault(way, []).append(each)
            if small or way in each.dead():
                failed_so.setdefault(way, []).append(each)
    # what is dead explains what comes back: one direction of it is all that the other one waited for
    return every, {way: those for way, those in failed_so.items() if not every[way][-1].dead()}


def by_rail(tested: Collection[Way], bad: Collection[Way]) -> Iterator[Suspect[End]]:
    """Explain bad ways: together if all are bad, otherwise per rail, because ends of different rails are never
    compared;
    then ways between rails of different numbers that no bad end explains.
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


def own_failures(found: Iterable[Tried]) -> dict[End, list[RailFailure]]:
    """Return the failures of each end by itself, in the order of the tests."""
    own = grouped((one.end, failure) for each in found for one in each.seen if (failure := each.own_failure(one)))
    return dict(sorted(own.items()))


def gid_address(gid: str) -> IPv6Address:
    """Return a GID of 32 digits as an address; another node may send anything that is not one."""
    try:
        return IPv6Address(int(gid[:32] or "0", 16))
    except ValueError:
        return IPv6Address(0)


def _is_own(failure: RailFailure) -> bool:
    if failure.kind in _TOLD or failure.kind == "late":
        return False
    own_call = failure.step == "connect" and failure.call != _TO_OTHER and failure.kind != "completion"
    return failure.step in _OPENING or failure.kind in _HANGING or own_call


def _unmet(outcome: RailOutcome) -> bool:
    return outcome.own is None and any(each.step == "open" and each.kind == "channel" for each in outcome.failures)


def _failure(writer: EndView, reader: EndView, direction: RailDirection) -> RailFailure | None:
    """Return why `writer` could not write in this direction: by its own report, or because the other end
    got nothing.
    """
    for end, kinds in ((writer, None), (reader, "late")):
        for each in end.outcome.failures if end.outcome else ():
            own = each.kind not in _TOLD and (kinds is None or each.kind == kinds)
            if own and each.step == "write" and each.direction == direction:
                return each
    return None


def _came(reader: EndView, direction: RailDirection) -> bool:
    arrivals = reader.outcome.arrivals if reader.outcome else ()
    return next((each.arrived_bytes > 0 for each in arrivals if each.direction == direction), False)
