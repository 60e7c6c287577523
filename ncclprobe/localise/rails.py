"""Put the two ends of every rail test together: what went which way, what did not, and whose fault that can be.

Reliable connections need both directions: a writer whose data arrives, and who fails all the same, has lost the way
back. So a dead way is told from what its two ends saw, never from one of them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ncclprobe.facts.reach import RailRow
from ncclprobe.localise.pairs.samples import End, Lost, Result, Sample
from ncclprobe.model.rails import RailArrival, RailDirection, RailFailure, RailOutcome, RailStream
from ncclprobe.model.values import Struct

Way = tuple[End, End]
_OPENING = ("open", "prepare")
"""Steps that take no other node: what fails there is this end's own."""
_HANGING = ("hangs", "died", "event")
"""A driver, or a device, that does so fails by itself, whatever the step."""
_TO_OTHER = "ibv_modify_qp"
"""The one call of connecting that may fail for what the other end is: it looks up the way there."""
_SHORTEST_S = 1e-3
"""No step has less time, whatever a row says."""
_TOLD = ("peer", "channel")
"""Failures that say nothing of the end that reports them."""


class Seen(NamedTuple):
    """One end of a test and what it saw."""

    end: End
    outcome: RailOutcome | None


class Tried(Struct, frozen=True):
    """One test: its end that `leads`, the other, and what is the same at both.

    `most_GBps`: the rate at which all would just have come in time.
    """

    number: int
    leads: Seen
    other: Seen
    together: int
    step: int
    most_GBps: float = 0.0

    @property
    def straight(self) -> bool:
        """Return whether both ends have the same rail number."""
        return self.leads.end.rail == self.other.end.rail

    @property
    def gpu(self) -> bool:
        """Return whether the memory is a GPU's."""
        return any(each.outcome is not None and each.outcome.asked.memory != "host" for each in self.seen)

    @property
    def seen(self) -> tuple[Seen, Seen]:
        """Return both ends, the one that leads first."""
        return self.leads, self.other

    @property
    def met(self) -> bool:
        """Return whether both ends told what they saw, and could reach each other to agree on it."""
        outcomes = [each.outcome for each in self.seen]
        return all(outcome is not None and not _unmet(outcome) for outcome in outcomes)

    @property
    def unmet_why(self) -> list[str]:
        """Return why the two ends did not agree on anything, in their words."""
        failures = (each for end in self.seen if end.outcome for each in end.outcome.failures)
        return list(dict.fromkeys(each.text for each in failures if each.kind == "channel"))

    def own_failure(self, end: Seen) -> RailFailure | None:
        """Return what failed at `end` without any other node; None: nothing."""
        failures = end.outcome.failures if end.outcome else ()
        return next((each for each in failures if _is_own(each)), None)

    @property
    def usable(self) -> bool:
        """Return whether both ends came so far that something could be sent."""
        return self.met and not any(self.own_failure(each) for each in self.seen)

    def ways(self) -> Iterator[tuple[Way, bool, float | None]]:
        """Yield each way, whether the other was at work as well, and what it carried, GB/s; None: it is dead.

        Of what did not end in time, the most that it can have been.
        """
        late = self.late()
        for writer, reader, direction in self._writes():
            way = (writer.end, reader.end)
            if stream := _stream(writer, direction):
                yield way, direction == "both", stream.GBps
            elif way in late and self._is_late(writer, reader, direction):
                yield way, direction == "both", self.most_GBps
        yield from ((way, False, None) for way in self.dead())

    def late(self) -> list[Way]:
        """Return the ways through which data came, but not all of it in time: not for want of a way back."""
        late = [
            (writer.end, reader.end) for writer, reader, how in self._writes() if self._is_late(writer, reader, how)
        ]
        dead = self.dead()
        return [way for way in dict.fromkeys(late) if not {way, way[::-1]} & {*dead}]

    def dead(self) -> list[Way]:
        """Return the ways through which nothing came."""
        if not self.usable:
            return []
        ends = self.leads.end, self.other.end
        if any(failure.step == "connect" or self._failed_to_and_fro(failure) for _, failure in self.failures()):
            return [ends, ends[::-1]]
        found: dict[Way, None] = {}
        for writer, reader, direction in self._writes():
            if _failure(writer, reader, direction) and not self._is_late(writer, reader, direction):
                back = _came(reader, direction)
                found[(reader.end, writer.end) if back else (writer.end, reader.end)] = None
        return list(found)

    def _is_late(self, writer: Seen, reader: Seen, direction: RailDirection) -> bool:
        failed = _failure(writer, reader, direction) if self.usable else None
        outcome = self.leads.outcome
        small = outcome is not None and bool(outcome.half_round_trip_us)  # of late ones fi_pingpong tells no byte
        return failed is not None and failed.kind == "late" and (_came(reader, direction) or (self._efa and small))

    def _failed_to_and_fro(self, failure: RailFailure) -> bool:
        return self._efa and failure.step == "write" and failure.kind != "late"

    @property
    def _efa(self) -> bool:
        return any(each.outcome is not None and each.outcome.asked.transport == "efa" for each in self.seen)

    def failures(self) -> list[tuple[End, RailFailure]]:
        """Return what failed at each end, without what it only heard of the other."""
        return [
            (each.end, failure)
            for each in self.seen
            for failure in (each.outcome.failures if each.outcome else ())
            if failure.kind not in _TOLD
        ]

    def _writes(self) -> Iterator[tuple[Seen, Seen, RailDirection]]:
        yield self.leads, self.other, "out"
        yield self.other, self.leads, "in"
        yield self.leads, self.other, "both"
        yield self.other, self.leads, "both"


def tried(rows: Mapping[str, Sequence[RailRow]], names: Mapping[int, str]) -> list[Tried]:
    """Return the tests of all nodes by their numbers, from what each end, by the name of its node, says of them."""
    ends: dict[int, dict[bool, tuple[str, RailRow]]] = {}
    for node, own in rows.items():
        for row in own:
            ends.setdefault(row.number, {})[row.leads] = (node, row)
    found = []
    for number, both in sorted(ends.items()):
        node, row = both.get(True) or both[False]
        mine, theirs = End(node, row.rail), End(names.get(row.to, f"node {row.to}"), row.other)
        seen = {row.leads: Seen(mine, row.outcome), not row.leads: Seen(theirs, None)}
        if len(both) == 2:
            seen[False] = Seen(theirs, both[False][1].outcome)
        if mine.node != theirs.node:
            found.append(Tried(number, seen[True], seen[False], row.together, row.step, _most(row)))
    return found


def unmet(found: Iterable[Tried]) -> list[Tried]:
    """Return a test of each two ends that met in none: whether anything passes between them is not known."""
    by_ends: dict[frozenset[End], list[Tried]] = {}
    for each in found:
        by_ends.setdefault(frozenset((each.leads.end, each.other.end)), []).append(each)
    return [tests[-1] for tests in by_ends.values() if not any(each.met for each in tests)]


def _most(row: RailRow) -> float:
    return row.nbytes / max(row.patience_s, _SHORTEST_S) / 1e9 if row.patience_s > 0 else 0.0


def results(rows: Mapping[str, Sequence[RailRow]], names: Mapping[int, str]) -> list[Result]:
    """Return the samples of pairs, for the search: rails of equal number, in host memory, all of two nodes together."""
    return results_of(tried(rows, names))


def results_of(found: Iterable[Tried]) -> list[Result]:
    """Return the samples of these tests."""
    return [result for each in found for result in _results(each)]


def _results(each: Tried) -> Iterable[Result]:
    if not each.straight or each.gpu:
        return
    if not each.usable:
        ends = [seen.end for seen in each.seen]
        yield from (Lost(one, other, "not connected", each.step) for one, other in (ends, ends[::-1]))
    for (src, dst), both, rate in each.ways():
        if rate is None:
            yield Lost(src, dst, "nothing came", each.step)
        elif rate > 0:
            yield Sample(src, dst, rate, both, each.step)


def _is_own(failure: RailFailure) -> bool:
    if failure.kind in _TOLD or failure.kind == "late":
        return False
    own_call = failure.step == "connect" and failure.call != _TO_OTHER and failure.kind != "completion"
    return failure.step in _OPENING or failure.kind in _HANGING or own_call


def _unmet(outcome: RailOutcome) -> bool:
    return outcome.own is None and any(each.step == "open" and each.kind == "channel" for each in outcome.failures)


def _stream(writer: Seen, direction: RailDirection) -> RailStream | None:
    streams = writer.outcome.streams if writer.outcome else ()
    return next((each for each in streams if each.direction == direction and each.seconds > 0), None)


def _failure(writer: Seen, reader: Seen, direction: RailDirection) -> RailFailure | None:
    """Return why `writer` could not write in this direction: by its own word, or that the other end waited in vain."""
    for end, kinds in ((writer, None), (reader, "late")):
        for each in end.outcome.failures if end.outcome else ():
            own = each.kind not in _TOLD and (kinds is None or each.kind == kinds)
            if own and each.step == "write" and each.direction == direction:
                return each
    return None


def _came(reader: Seen, direction: RailDirection) -> bool:
    arrived = _arrival(reader, direction)
    return arrived is not None and arrived.arrived_bytes > 0


def _arrival(reader: Seen, direction: RailDirection) -> RailArrival | None:
    arrivals = reader.outcome.arrivals if reader.outcome else ()
    return next((each for each in arrivals if each.direction == direction), None)
