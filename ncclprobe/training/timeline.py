"""How long a step should take: compute, and calls that take turns on one network, with and without overlap."""

from collections.abc import Callable

from ncclprobe.model.values import Struct
from ncclprobe.training.workload import Call, Compute, Step

TimeOf = Callable[[Call], float]
"""Seconds that one call takes alone."""


class Predicted(Struct, frozen=True):
    """Seconds of a step: `compute_s` of it is work, `calls_s` is all calls alone, `exposed_s` is what is not hidden."""

    step_s: float
    compute_s: float
    calls_s: float

    @property
    def efficiency(self) -> float:
        """Return the efficiency relative to a rank alone: 1 is no communication, or all of it hidden."""
        return self.compute_s / self.step_s if self.step_s else 1.0


def predict(items: Step, compute_s: float, time_of: TimeOf, overlap: bool = True) -> Predicted:
    """Return the time of one step: calls start in order, one after the other, each once the rank comes to it.

    With `overlap` compute goes on during a call until its result is needed; without, every call is waited for.
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
        else:
            pending.append((needed_at(items, place), network_free))
    return Predicted(max(now, network_free), compute_s, calls_s)


def needed_at(items: Step, place: int) -> int:
    """Return where in `items` the result of the call at `place` is needed; their number: at the end."""
    call = items[place]
    computes = [later for later in range(place + 1, len(items)) if isinstance(items[later], Compute)]
    if not isinstance(call, Call) or call.needed is None or call.needed >= len(computes):
        return len(items)
    return computes[call.needed]
