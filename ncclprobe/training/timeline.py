"""How long a step should take: compute, and calls that take turns on one network, with and without overlap."""

from collections.abc import Callable
from dataclasses import dataclass

from ncclprobe.training.workload import Call, Compute, Step

TimeOf = Callable[[Call], float]
"""Seconds that one call takes alone."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Seconds of a step: `compute_s` of it is work, `calls_s` is all calls alone, `exposed_s` is what is not hidden."""

    step_s: float
    compute_s: float
    calls_s: float

    @property
    def exposed_s(self) -> float:
        """How much longer the step is than its compute."""
        return self.step_s - self.compute_s

    @property
    def efficiency(self) -> float:
        """Of a rank that computes alone: 1 is no communication, or all of it hidden."""
        return self.compute_s / self.step_s if self.step_s else 1.0


def predict(items: Step, compute_s: float, time_of: TimeOf, overlap: bool = True) -> Predicted:
    """The time of one step: calls start in order, one after the other, each once the rank comes to it.

    With `overlap` compute goes on beside a call until its result is needed; without, every call is waited for.
    """
    now = network_free = calls_s = 0.0
    pending: list[tuple[int, float]] = []
    for place, item in enumerate(items):
        for wanted, done in pending:
            if wanted <= place:
                now = max(now, done)
        pending = [each for each in pending if each[0] > place]
        if isinstance(item, Compute):
            now += item.share * compute_s
            continue
        took = time_of(item)
        calls_s += took
        network_free = max(now, network_free) + took
        if not overlap:
            now = network_free
        elif item.needed is not None:
            pending.append((_wanted(items, place, item.needed), network_free))
    return Predicted(max(now, network_free), compute_s, calls_s)


def _wanted(items: Step, place: int, computes_later: int) -> int:
    """Where the compute stands that needs the call at `place`: the next one, or so many after it."""
    left = computes_later
    for later in range(place + 1, len(items)):
        if isinstance(items[later], Compute):
            if left == 0:
                return later
            left -= 1
    return len(items)
