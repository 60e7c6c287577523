"""From a host to facts: every collector asked once, in the order in which facts need each other."""

import _thread
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from ncclprobe.engine.traces import Traces
from ncclprobe.engine.typed import misfit
from ncclprobe.errors import HostError, ParseError
from ncclprobe.host import Host
from ncclprobe.host.capture import Recorder, Replay
from ncclprobe.interrupt import NO_MEMORY
from ncclprobe.model.registry import Collector, Need
from ncclprobe.model.snapshot import Absent

Facts = dict[type, Any]
_BEGIN_S = 0.5
"""Without any answer for so long, see whether a collector waits for a thread."""
_NO_ROOM = ("can't allocate lock",)
"""What Python calls RuntimeError where memory ends."""
_NOT_UNDERSTOOD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, OSError)


def collect(
    host: Host, collectors: Sequence[Collector], *, at_once: bool = False, traces: Traces | None = None
) -> Facts:
    """Every fact that `host` can give, or ``Absent`` with the reason, in the order in which facts need each other.

    `at_once`: on threads, so that slow commands of a live machine are waited for together. `traces`: what was learned
    of other replays, where `host` is one too.
    """
    facts: Facts = {}
    waiting = list(collectors)
    while waiting:
        ready = [c for c in waiting if all(need.fact in facts for need in c.needs)] or waiting  # or: needs never met
        learn = partial(_learn, host=host, facts=facts, traces=traces)
        learned = _on_threads(learn, ready) if at_once else map(learn, ready)
        facts |= dict(zip((c.produces for c in ready), learned, strict=True))
        waiting = [c for c in waiting if c.produces not in facts]
    return facts


def collect_rank(host: Host, collectors: Sequence[Collector], traces: Traces | None = None) -> Facts:
    """The facts that each rank has for itself, and those that they are made of."""
    by_fact = {c.produces: c for c in collectors}
    wanted = [c for c in collectors if c.of_rank]
    for each in wanted:  # grows as it goes
        wanted += [by_fact[need.fact] for need in each.needs if by_fact[need.fact] not in wanted]
    facts = collect(host, wanted, traces=traces)
    return {c.produces: facts[c.produces] for c in collectors if c.of_rank}


def _on_threads(learn: Callable[[Collector], Any], collectors: Sequence[Collector]) -> list[Any]:
    """What `learn` makes of each collector. Every question has its own deadline, so every thread ends.

    A thread that has no memory to begin with takes no collector; what no thread takes is learned here. (threading would
    wait for such a thread without a limit.)
    """
    learned: dict[type, Any] = {c.produces: Absent("its collector broke, and said why on stderr") for c in collectors}
    waiting, done = deque(collectors), SimpleQueue[None]()

    def work() -> None:
        while waiting:
            try:
                collector = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                learned[collector.produces] = learn(collector)
            finally:
                done.put(None)

    for _ in collectors:
        try:
            _thread.start_new_thread(work, ())
        except RuntimeError:  # ulimit -u, ulimit -v, the cgroup's pids.max
            break
    for _ in collectors:
        try:
            done.get(timeout=_BEGIN_S)
        except Empty:
            work()
            done.get()
    return [learned[c.produces] for c in collectors]


def _learn(collector: Collector, *, host: Host, facts: Facts, traces: Traces | None = None) -> Any:
    given, missing = arguments(collector.needs, partial(of_node, facts))
    if missing:
        return missing[0]
    if traces is not None and isinstance(host, Replay):
        return traces.learn(collector, host, given, lambda traced: _made(collector, traced, given))
    return _made(collector, host, given)


def _made(collector: Collector, host: Host, given: Sequence[Any]) -> Any:
    """What the collector makes of the host's answers, or why it makes nothing of them."""
    try:
        fact = collector.run(host, *given)
        wrong = "" if isinstance(host, Recorder) else misfit(fact, collector.produces)  # live JSON is of our own making
        return Absent(f"not understood: {collector.produces.__name__}{wrong}", "ParseError") if wrong else fact
    except HostError as refusal:
        return Absent(str(refusal), type(refusal).__name__)
    except (MemoryError, SystemError):  # the latter is Python's own, where memory ends within a call of C
        return Absent(NO_MEMORY, "Failed")
    except (ParseError, *_NOT_UNDERSTOOD) as error:
        if str(error) in _NO_ROOM:
            return Absent(NO_MEMORY, "Failed")
        # A capture may hold any text as an answer, and a machine may have no process or thread left to give.
        return Absent(f"not understood (please report it): {type(error).__name__}: {error}", "ParseError")


def arguments(needs: Iterable[Need], look: Callable[[Need], Any]) -> tuple[list[Any], list[Absent]]:
    """What `look` finds for each of `needs`, and what of it is absent though it is needed."""
    given = [look(need) for need in needs]
    missing = [
        fact
        for need, fact in zip(needs, given, strict=True)
        if isinstance(fact, Absent) and not (need.accepts_absent and need.of in ("node", "run", "job", "files"))
    ]
    return given, missing


def of_node(facts: Mapping[type, Any], need: Need) -> Any:
    return facts.get(need.fact, Absent(f"{need.fact.__name__} was never collected"))
