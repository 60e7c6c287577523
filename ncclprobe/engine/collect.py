"""From a host to facts: run every collector once, in the order of their dependencies.

The host is this machine, or one of which a capture was taken; its facts are a snapshot. Some facts follow from others:
NCCL's choices, and the settings that the network's vendor prescribes.

A capture's answers may be any text, and JSON in them any JSON. Collectors take numbers and texts out of JSON without
checking each type. A fact whose fields have wrong types would break the checks that compute with it, or worse, pass
them, so facts are validated.

The machines of a fleet give equal answers, and so equal facts. A collector is a pure function of the host's answers and
of the facts it is given (docs/maintainers/architecture.md), so its questions, with the answers that decided the next
one, fully describe a run of it. They are kept as a tree: at each fork a question, below it a branch for each answer, at
its end the fact. A node whose answers lead to an end gets that very fact, which makes its check's verdict known too, by
identity.
"""

import _thread
import math
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ncclprobe.facts.machine import Machine, NamedMachine, System
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.host import NAMED, PROBLEMS, Host, Question
from ncclprobe.host.capture import NOT_SHOWN, Recorder, Replay, machines, second
from ncclprobe.model import bounds
from ncclprobe.model.errors import HostError, NotCaptured, ParseError
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.registry import MACHINE, Check, Collector, Need, modules
from ncclprobe.model.report import AttainableRate
from ncclprobe.model.snapshot import Absent, Job, Snapshot, learned
from ncclprobe.model.values import Struct, field, replace
from ncclprobe.nccl.values import SLOWING
from ncclprobe.signals import NO_MEMORY


def add_choices(snapshots: Sequence[Snapshot], checks: Sequence[Check], others: Any = None) -> list[Snapshot]:
    """Add NCCL's choices to each snapshot, if a check needs them. `others`: the cache from earlier nodes."""
    asked = any(need.fact is Choices for each in checks for need in each.needs)
    if not asked or all(Choices in snapshot.facts for snapshot in snapshots):
        return list(snapshots)
    from ncclprobe.nccl.networks import Choosing
    from ncclprobe.nccl.selection import choose  # and with it the distances between devices

    others = others or Choosing()
    return [s if Choices in s.facts else replace(s, facts={**s.facts, Choices: choose(s, others)}) for s in snapshots]


_Predicted = dict[Any, AttainableRate | Absent]


def add_predictions(
    snapshots: Sequence[Snapshot], checks: Sequence[Check], job: Job, nodes: int, before: _Predicted | None = None
) -> list[Snapshot]:
    """Add the most that each machine can still reach, if a check needs it and NCCL may be slower than the hardware.

    That is if a setting may cost something, or NCCL uses sockets although there are faster NICs. `nodes`: of the job.
    `before`: predictions for other nodes, by everything that they depend on.
    """
    asked = job.backend == "nccl" and any(need.fact is AttainableRate for each in checks for need in each.needs)
    predicted = {} if before is None else before
    nodes = 1 if job.local or job.apart else nodes
    return [_add_prediction(each, nodes, predicted) if asked and not each.said else each for each in snapshots]


def _add_prediction(snapshot: Snapshot, nodes: int, before: _Predicted) -> Snapshot:
    settings, choices = learned(snapshot.facts, Settings), learned(snapshot.facts, Choices)
    taken = choices.network.chosen if choices and choices.fast_nics.chosen else ()
    fallen = [each for each in taken or () if each.name == "Socket"]
    if not settings or (SLOWING.isdisjoint(settings.effective) and not fallen):
        return snapshot
    from ncclprobe.expect import bound  # and with it the tables and NCCL's cost model

    key = bound.likeness(snapshot.facts)
    if key not in before:
        before[key] = bound.predicted(snapshot.facts, nodes)
    return replace(snapshot, facts={**snapshot.facts, AttainableRate: before[key]})


def prescriptions(facts: Mapping[type, Any]) -> Mapping[str, str]:
    """Return the variables that are set as the network's vendor prescribes, each with the vendor."""
    from ncclprobe.nccl import networks  # and the table of what each prescribes

    settings, choices = facts.get(Settings), facts.get(Choices)
    if not isinstance(settings, Settings) or not isinstance(choices, Choices):
        return {}
    machine = facts.get(Machine, Absent("not asked"))
    found = networks.compared(settings, networks.in_use(settings, machine, choices))
    return {name: f"{networks.TITLES[vendor]} prescribes it" for name, vendor in found.right.items()}


_MOST_WHOLE = 1 << 64
"""All whole numbers of the kernel, NVML and NCCL are smaller; decimal arithmetic breaks down beyond."""

Misfit = Callable[[Any], str]


def misfit(value: Any, kind: Any) -> str:
    """Return the part of `value` that does not have its type `kind`: ``.ports[3].rate_gbps is 'x'``;
    empty: all fits.
    """
    return _checker(kind)(value)


@cache
def _checker(kind: Any) -> Misfit:
    """Return the cached validator of a type; some types, such as a callable, are not validated."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _any_of([_checker(part) for part in parts])
    if origin is Literal:
        return lambda value: "" if value in parts and isinstance(value, str | int) else _describe_value(value)
    if origin is tuple and parts[-1:] != (Ellipsis,):
        return _fixed([_checker(part) for part in parts])
    if origin in (tuple, list, set, frozenset):
        return _many(origin, _checker(parts[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(_checker(parts[0]), _checker(parts[1]))
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _struct(kind)
    return _NUMBERS.get(kind) or _instance(kind)


def _describe_value(value: Any) -> str:
    return f" is {type(value).__name__} {str(value)[:40]!a}"


def _whole(value: Any) -> str:
    return "" if isinstance(value, int) and abs(value) < _MOST_WHOLE else _describe_value(value)


def _decimal(value: Any) -> str:
    fine = math.isfinite(value) if isinstance(value, float) else isinstance(value, int) and abs(value) < _MOST_WHOLE
    return "" if fine else _describe_value(value)


_NUMBERS: dict[Any, Misfit] = {
    int: _whole,
    float: _decimal,
    type(None): lambda v: "" if v is None else _describe_value(v),
}


def _instance(kind: Any) -> Misfit:
    if not isinstance(kind, type) or kind is Any:
        return lambda value: ""
    return lambda value: "" if isinstance(value, kind) else _describe_value(value)


def _any_of(checkers: list[Misfit]) -> Misfit:
    def check(value: Any) -> str:
        deepest = ""
        for each in checkers:
            what = each(value)
            if not what:
                return ""
            deepest = what if not deepest or (deepest.startswith(" ") and not what.startswith(" ")) else deepest
        return deepest

    return check


def _fixed(checkers: list[Misfit]) -> Misfit:
    def check(value: Any) -> str:
        if not isinstance(value, tuple) or len(value) != len(checkers):
            return _describe_value(value)
        found = (each(item) for each, item in zip(checkers, value, strict=True))
        return next((f"[{at}]{what}" for at, what in enumerate(found) if what), "")

    return check


def _many(kind: type[Any], one: Misfit) -> Misfit:
    def check(value: Any) -> str:
        if not isinstance(value, kind):
            return _describe_value(value)
        if one is _whole and {*map(type, value)} == {int} and min(value) > -_MOST_WHOLE and max(value) < _MOST_WHOLE:
            return ""  # bits of masks and lists of processors are thousands
        for at, each in enumerate(value):
            if what := one(each):
                return f"[{at}]{what}"
        return ""

    return check


def _mapping(key: Misfit, one: Misfit) -> Misfit:
    def check(value: Any) -> str:
        if not isinstance(value, Mapping):
            return _describe_value(value)
        found = (f"[{str(name)[:40]!a}]{what}" for name, each in value.items() if (what := key(name) or one(each)))
        return next(found, "")

    return check


def _struct(kind: type) -> Misfit:
    """Return the validator of a Struct. Checks that depend only on a field's class are resolved once per set of
    classes.
    """
    hints: dict[str, Any] = {}
    to_look_into: dict[tuple[type, ...], list[tuple[str, Misfit]]] = {}

    def check(value: Any) -> str:
        if not isinstance(value, kind):
            return _describe_value(value)
        if not hints:  # not before: a type may hold itself
            hints.update(get_type_hints(kind))
        classes = tuple(map(type, [getattr(value, name) for name in hints]))
        if (open_fields := to_look_into.get(classes)) is None:
            named = zip(hints.items(), classes, strict=True)
            open_fields = [(name, one) for (name, hint), own in named if (one := _look_into(own, hint))]
            to_look_into[classes] = open_fields
        for name, one in open_fields:
            if what := one(getattr(value, name)):
                return f".{name}{what}"
        return ""

    return check


def _look_into(own: type, hint: Any) -> Misfit | None:
    """Return the check that a value of class `own` still needs to fit `hint`: None for a text, a bool, or None."""
    whole = own in (get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,))
    if hint is Any or (whole and own in (str, bool, type(None))):
        return None
    return _checker(own if whole else hint)


_MOST_GIVEN = 64
"""Cached runs of one collector: if this many nodes differ, the next one will too."""

_Said = str | tuple[type, str]


class _Fork(Struct):
    question: Question
    branches: dict[_Said, "_Fork | _End"] = field(default_factory=dict)


class _End(Struct):
    fact: Any


class _Runs(Struct):
    """The runs of one collector. `given`: its input facts, kept alive so that no other fact gets their ids."""

    begin: dict[tuple[int, ...], "_Fork | _End"] = field(default_factory=dict)
    given: list[Sequence[Any]] = field(default_factory=list)
    last: Any = None


class Traces:
    """Facts by their inputs, over the replays of one process."""

    def __init__(self) -> None:
        self._runs: dict[type, _Runs] = {}

    def learn(self, collector: Collector, host: Replay, given: Sequence[Any], run: Callable[["Traced"], Any]) -> Any:
        """Return the result of `run` on `host`, or its cached result for the same answers and `given` facts."""
        runs = self._runs.setdefault(collector.produces, _Runs())
        start = tuple(map(id, given))
        at = runs.begin.get(start)
        while isinstance(at, _Fork):
            at = at.branches.get(_answer_or_refusal(host, at.question))
        if at is not None:
            return at.fact
        traced = Traced(host, runs.last)
        fact = runs.last = run(traced)
        if len(runs.given) < _MOST_GIVEN:
            runs.given.append(given)
            _keep(runs.begin, start, traced.asked, fact)
        return fact


class Traced:
    """A replay that records its questions and answers. `last`: the fact of an earlier run."""

    def __init__(self, host: Replay, last: Any) -> None:
        self._host = host
        self.last = last
        self.asked: list[tuple[Question, _Said]] = []

    def ask(self, *question: str | int) -> str:
        """Return the replay's answer or refusal."""
        self.asked.append((question, _answer_or_refusal(self._host, question)))
        return self._host.ask(*question)


def _answer_or_refusal(host: Replay, question: Question) -> _Said:
    """Return an answer, or the refusal and its reason."""
    answer = host.recorded(question)
    return (type(answer), str(answer)) if isinstance(answer, HostError) else answer


def _keep(begin: dict[Any, Any], start: Any, asked: Sequence[tuple[Question, _Said]], fact: Any) -> None:
    """Add one run to the tree."""
    branches, way = begin, start
    for question, recorded in asked:
        fork = branches.setdefault(way, _Fork(question))
        if not isinstance(fork, _Fork) or fork.question != question:
            return  # asked in another order than before: the run that is kept is as good
        branches, way = fork.branches, recorded
    branches[way] = _End(fact)


Facts = dict[type, Any]
_BEGIN_S = 0.5
"""After this long without an answer, check whether a collector is waiting for a thread."""
_NO_ROOM = ("can't allocate lock",)
"""Messages of Python's RuntimeError when memory runs out."""
_NOT_UNDERSTOOD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, OSError)


def collect(
    host: Host, collectors: Sequence[Collector], *, at_once: bool = False, traces: Traces | None = None
) -> Facts:
    """Collect every fact that `host` can give, or ``Absent`` with the reason, in the order of their dependencies.

    `at_once`: on threads, so that slow commands of a live machine run in parallel. `traces`: the cache from other
    replays, if `host` is a replay.
    """
    facts: Facts = {}
    waiting = list(collectors)
    while waiting:
        ready = [c for c in waiting if all(need.fact in facts for need in c.needs)] or waiting  # or: needs never met
        learn = partial(_learn, host=host, facts=facts, traces=traces)
        learned = _run_on_threads(learn, ready) if at_once else map(learn, ready)
        facts |= dict(zip((c.produces for c in ready), learned, strict=True))
        waiting = [c for c in waiting if c.produces not in facts]
    return facts


def collect_rank(host: Host, collectors: Sequence[Collector], traces: Traces | None = None) -> Facts:
    """Collect the facts that each rank has for itself, and those that they depend on."""
    by_fact = {c.produces: c for c in collectors}
    wanted = [c for c in collectors if c.of_rank]
    for each in wanted:  # grows as it goes
        wanted += [by_fact[need.fact] for need in each.needs if by_fact[need.fact] not in wanted]
    facts = collect(host, wanted, traces=traces)
    return {c.produces: facts[c.produces] for c in collectors if c.of_rank}


def _run_on_threads(learn: Callable[[Collector], Any], collectors: Sequence[Collector]) -> list[Any]:
    """Run `learn` on each collector. Every question has its own deadline, so every thread ends.

    A thread without memory to start takes no collector; collectors that no thread takes run here. (threading would wait
    for such a thread without a limit.)
    """
    learned: dict[type, Any] = {c.produces: Absent("its collector failed; the reason is on stderr") for c in collectors}
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
        return traces.learn(collector, host, given, lambda traced: _run_collector(collector, traced, given))
    return _run_collector(collector, host, given)


def _run_collector(collector: Collector, host: Host, given: Sequence[Any]) -> Any:
    """Return the collector's fact, or why there is none."""
    try:
        fact = collector.run(host, *given)
        if isinstance(host, Traced) and fact == host.last:
            return host.last  # other answers, the same fact: one object, so that what is known of it is known again
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
    """Return what `look` finds for each of `needs`, and which required ones are absent."""
    given = [look(need) for need in needs]
    missing = [
        fact
        for need, fact in zip(needs, given, strict=True)
        if isinstance(fact, Absent) and not (need.accepts_absent and need.of in ("node", "run", "job", "files"))
    ]
    return given, missing


def of_node(facts: Mapping[type, Any], need: Need) -> Any:
    return facts.get(need.fact, Absent(f"{need.fact.__name__} was never collected"))


Heard = dict[Question, str | HostError]


def recordable() -> set[str]:
    """Return the variables whose value may be recorded: those of the table, and the READS of the modules of facts."""
    from ncclprobe.nccl.parameters import table

    of_machines = modules("ncclprobe.facts", frozenset({MACHINE}))
    read: set[str] = set().union(*(getattr(module, "READS", ()) for module in of_machines))
    return {*table(), *read} - {"SLURM_EXPORT_ENV"}  # what `srun --export=ALL,TOKEN=…` was given


def observed(
    collectors: Sequence[Collector], deadline: float, given: Mapping[Question, str] | None = None
) -> tuple[Snapshot, Heard]:
    """Return this machine's facts, and every answer that they are based on.

    `deadline` is a time.monotonic(); `given` are samples from the command line.
    """
    with_live = _Live(deadline, given)
    try:
        facts = collect(with_live.host, collectors, at_once=True)
    finally:
        with_live.close()
    system = facts[System]
    node = "this node" if isinstance(system, Absent) else system.hostname
    answers = with_live.host.answers
    return Snapshot(node, facts, _own_rank(facts, collectors), answers), answers


def heard_by_rank(collectors: Sequence[Collector], deadline: float) -> Heard:
    """Return the answers that this process, a rank of its node, gets for itself; another rank reports for the node."""
    with_live = _Live(deadline)
    try:
        collect_rank(with_live.host, collectors)
    finally:
        with_live.close()
    return with_live.host.answers


class _Live:
    """This machine, with a recorder."""

    def __init__(self, deadline: float, given: Mapping[Question, str] | None = None) -> None:
        from ncclprobe.host.live import LiveHost
        from ncclprobe.nccl.parameters import looks_like_ours

        self._live = LiveHost(recordable(), looks_like_ours, deadline, given)
        self.host = Recorder(self._live)

    def close(self) -> None:
        self._live.close()


def replayed(paths: Sequence[Path], collectors: Sequence[Collector]) -> list[Snapshot]:
    """Return the facts of captured machines, one per node. Raises UsageError."""
    snapshots: dict[str, Snapshot] = {}
    traces = Traces()
    for file, host in machines(paths):
        if host.node in snapshots:
            raise second(file, host.node)
        snapshot = capture_facts(host, collectors, traces)
        kept = len(paths) <= bounds.SHOWN_CAPTURES
        snapshots[host.node] = snapshot if kept else replace(snapshot, answers={})
    return list(snapshots.values())


def capture_facts(host: Replay, collectors: Sequence[Collector], traces: Traces | None = None) -> Snapshot:
    """Return the facts of a captured node and of its ranks. `traces`: the cache from the job's other nodes.

    The node has the GPUs of all its ranks; each rank may see only its own.
    """
    from ncclprobe.facts.rank import merge_ranks  # and with it six collectors, which a redrawn report does not need

    whole = host.with_answers(merge_ranks(host.answers, {rank: own.answers for rank, own in host.ranks.items()}))
    facts = _add_described_machine(host, _add_pasted_matrix(host, collect(whole, collectors, traces=traces)))
    others = {rank: collect_rank(own, collectors, traces) for rank, own in host.ranks.items()}
    first = facts if whole is host else facts | collect_rank(host, collectors, traces)
    ranks = {**_own_rank(first, collectors), **others}
    return Snapshot(host.node, facts, ranks, whole.answers, taken=host.taken, pasted=host.pasted, cut=host.cut)


def _add_pasted_matrix(host: Replay, facts: dict[type, Any]) -> dict[type, Any]:
    """Add the content of a pasted matrix that no other pasted text has."""
    text = host.answers.get(("run", "nvidia-smi", "topo", "-m")) if host.pasted else None
    if not isinstance(text, str):
        return facts
    from ncclprobe.facts.infiniband import Fabric
    from ncclprobe.facts.nvlink import NvLinks
    from ncclprobe.facts.nvml import Gpus, PeerAccess
    from ncclprobe.facts.pci import Pci
    from ncclprobe.facts.topo_matrix import Matrix, parse
    from ncclprobe.nccl.from_matrix import shown

    try:
        first, *others = parse(text)
        peers = next((each for each in others if each.kind == "p2p"), None)
        found = shown(first, Absent(NOT_SHOWN, NotCaptured.__name__), facts[Gpus], facts[Fabric], peers)
    except ParseError:
        return facts
    links = facts[NvLinks]
    unknown = {kind for kind in found if isinstance(facts.get(kind), Absent)} | {Fabric, *({PeerAccess} & found.keys())}
    if Pci in unknown:  # the tree is made of the matrix, and agrees with it
        unknown.add(Matrix)
    if isinstance(links, NvLinks) and all(isinstance(each, Absent) for each in links.gpus):
        unknown.add(NvLinks)
    return facts | {kind: fact for kind, fact in found.items() if kind in unknown}


def _add_described_machine(host: Replay, facts: dict[type, Any]) -> dict[type, Any]:
    """Add what pasted text only names: a machine type, and the job's number of nodes and ranks."""
    if not host.pasted:
        return facts
    import msgspec

    from ncclprobe.facts.infiniband import Fabric
    from ncclprobe.facts.launcher import Launch, Problem
    from ncclprobe.facts.nvml import Gpus

    wrong = msgspec.json.decode(str(host.answers.get(PROBLEMS, "[]")), type=tuple[Problem, ...])
    found = msgspec.json.decode(str(host.answers.get(NAMED, "{}")), type=NamedMachine)
    more: dict[type, Any] = {NamedMachine: found}
    if found.machine and isinstance(facts[Machine], Absent):
        more[Machine] = found.machine
    gpus, launch, fabric = facts[Gpus], facts[Launch], facts[Fabric]
    if isinstance(fabric, Fabric) and found.some_nics and ("run", "nvidia-smi", "topo", "-m") not in host.answers:
        more[Fabric] = replace(fabric, cut=True)
    if isinstance(gpus, Gpus) and not any(gpu.name for gpu in gpus.all):
        from ncclprobe.expect.recognise import product_named  # and with it the tables

        name = product_named(found, len(gpus.all))
        more[Gpus] = replace(gpus, all=tuple(replace(gpu, name=name) for gpu in gpus.all))
    if isinstance(launch, Launch):
        ranks = launch.local_world_size or (found.ranks if launch.kind == "single" else 0)
        nodes, problems = launch.nnodes or found.nodes or None, (*launch.problems, *wrong)
        more[Launch] = replace(launch, nnodes=nodes, local_world_size=ranks or None, problems=problems)
    return facts | more


def _own_rank(facts: Mapping[type, object], collectors: Sequence[Collector]) -> dict[int, dict[type, object]]:
    """Return the facts of the rank that reports for the node, if a launcher made it a rank."""
    from ncclprobe.facts.launcher import Launch

    launch = facts.get(Launch)
    if not isinstance(launch, Launch) or launch.rank is None:
        return {}
    return {launch.rank: {c.produces: facts[c.produces] for c in collectors if c.of_rank}}
