"""The machines: examined here or replayed from captures, judged, and shown in a report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ncclprobe.checks.rail import choices, name
from ncclprobe.engine import inventory
from ncclprobe.engine.collect import add_choices, add_predictions, observed
from ncclprobe.engine.diagnose import JudgedNodes, Question, Topic, diagnose
from ncclprobe.engine.judge import conclude, judge, shares
from ncclprobe.engine.pasted_causes import NOTHING_SAID, SaidInTexts
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.data_paths import DataPaths
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import System
from ncclprobe.facts.memory import Memory
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.placement import Placement
from ncclprobe.facts.plugins import Plugins
from ncclprobe.facts.process import SharedMemory
from ncclprobe.facts.reach import Paths, Rails
from ncclprobe.facts.software import Software
from ncclprobe.host.deadlines import until
from ncclprobe.localise.rails import EndView, Tried, Way, tests
from ncclprobe.model.errors import OutOfTime, Unlearned
from ncclprobe.model.hostlist import fold
from ncclprobe.model.nccl_selection import Choices, NodeTopology
from ncclprobe.model.pair_results import RailState, RailWay
from ncclprobe.model.registry import Collector
from ncclprobe.model.report import AttainableRate, LaunchRow, NodeEnvironment, NodeRow, Report, Setting
from ncclprobe.model.snapshot import Absent, Every, Snapshot, learned
from ncclprobe.model.stats import median
from ncclprobe.model.values import Struct, field, grouped, replace

SHOWN: tuple[type, ...] = (
    AttainableRate, Choices, Cpus, DataPaths, Fabric, Gpus, Interfaces, Launch, Memory, NodeTopology, NvLinks, Paths,
    Placement, Plugins, Rails, Settings, SharedMemory, Software, System,
)  # fmt: skip
"""The facts of a node that a report shows, whoever judged it."""


def look_s(timeout_s: float) -> float:
    """Return the part of --timeout for looking, so that judging still ends within it."""
    return timeout_s - min(max(timeout_s / 10, 1.0), timeout_s / 2)


def within(question: Question, timeout_s: float, judge: Callable[[], Report]) -> Report:
    """Run `judge` within --timeout. Raises OutOfTime when time is up, and abandons it."""
    try:
        return until(question.clock + timeout_s, judge)
    except TimeoutError:
        raise OutOfTime("no time was left to judge within --timeout") from None


def examine_machine(
    question: Question, collectors: Sequence[Collector], timeout_s: float, show: Callable[[str], None]
) -> Report:
    """Examine this machine, and judge it. Raises OutOfTime."""
    snapshot, _ = observed(collectors, question.clock + look_s(timeout_s))
    show(f"examined {snapshot.node}")
    return within(question, timeout_s, lambda: diagnose(question, [snapshot]))


def launch_of(snapshot: Snapshot) -> Launch:
    """Return how this node's process was started; of kind single if unknown."""
    return learned(snapshot.facts, Launch) or Launch()


def _learn(known: JudgedNodes) -> JudgedNodes:
    snapshots = add_choices(known.snapshots, known.question.checks)
    return replace(known, snapshots=tuple(add_predictions(snapshots, known.question.checks, known.job, len(snapshots))))


def _judge(known: JudgedNodes) -> JudgedNodes:
    """Judge each node, then compare the nodes and their measurements, in the order of the checks."""
    verdicts = judge(known.snapshots, known.question.checks, known.job, known.facts)
    return replace(known, verdicts=(*verdicts, *known.facts.get(SaidInTexts, NOTHING_SAID).verdicts))


def _conclude(known: JudgedNodes) -> dict[str, Any]:
    fail_on, first = known.question.judging.fail_on, launch_of(known.snapshots[0]) if known.snapshots else Launch()
    status, code = conclude(known.verdicts, fail_on, inconclusive=bool(known.missing))
    snapshots, apart = known.snapshots, known.job.apart
    each = shares([s.node for s in snapshots], known.verdicts, fail_on, apart=apart)
    rows = []
    for place, snapshot in enumerate(snapshots):
        system, rank = learned(snapshot.facts, System), launch_of(snapshot).node_rank
        hostname = system.hostname if system else snapshot.node
        rows.append(NodeRow(snapshot.node, place if rank is None else rank, hostname, each[snapshot.node].status))
    return {
        "status": status,
        "exit_code": code,
        "launch": LaunchRow() if known.job.apart else LaunchRow(first.kind, first.nnodes, first.world_size),
        "nodes": tuple(rows),
        "areas": inventory.areas(known.snapshots, known.verdicts, known.job, first.nnodes),
        **sections(known),
    }


def sections(known: JudgedNodes) -> dict[str, Any]:
    """Return the report's fields about the machines. Pictures are made, and imported, only if requested."""
    snapshots = known.snapshots
    rails = [seen for s in snapshots if (seen := learned(s.facts, Rails))]
    said = {
        "scope": inventory.scope(snapshots, known.job),
        "environment": {s.node: _environment(s) for s in snapshots},
        "taken": {s.node: s.taken for s in snapshots if s.taken},
        "notes": [f"rails: {each.plan}" for each in rails if each.plan],
    }
    if predictions := [found for s in snapshots if (found := learned(s.facts, AttainableRate))]:
        said["predicted"] = min(predictions, key=lambda each: each.now_GBps / each.healthy_GBps)
    if rails:
        said["rails"] = rail_ways(snapshots)
    if known.question.pictures and snapshots:
        from ncclprobe.nccl.paths import layout
        from ncclprobe.nccl.selection import choose

        nccl = known.job.backend == "nccl"
        said["topology"] = {s.node: s.facts.get(NodeTopology) or layout(s) for s in snapshots}
        said["choices"] = {s.node: s.facts.get(Choices) or choose(s) for s in snapshots} if nccl else {}
    return said


def _environment(snapshot: Snapshot) -> NodeEnvironment:
    """Return versions and settings for the report; None: unknown."""
    settings = learned(snapshot.facts, Settings)
    rows: tuple[Setting, ...] = tuple(settings.effective.values()) if settings else ()
    where = learned(snapshot.facts, Placement) or Placement()
    system = learned(snapshot.facts, System)
    boot = (system.boot_id or "")[:8] if system else ""
    counted = {name: count for name, count in _counters(snapshot.facts) if count}
    return NodeEnvironment(
        _versions(snapshot.facts), rows, where.levels, boot, counted, _digest_of_gpus(snapshot.facts)
    )


def _digest_of_gpus(facts: Mapping[type, Any]) -> str:
    """Return a short digest that identifies the GPUs of a node; empty: one of them is unknown."""
    gpus = learned(facts, Gpus)
    uuids = sorted(gpu.uuid for gpu in gpus.all) if gpus else []
    if not uuids or not all(uuids):
        return ""
    import hashlib  # and with it OpenSSL's library

    return hashlib.sha256(" ".join(uuids).encode()).hexdigest()[:8]


def _counters(facts: Mapping[type, Any]) -> Iterator[tuple[str, int]]:
    """Yield the counters of links that went down, and of uncorrectable memory errors."""
    for port in (learned(facts, Fabric) or Fabric(())).ports:
        counted = {} if isinstance(port.counters, Absent) else dict(port.counters)
        if "link_downed" in counted:
            yield f"{port.name} link_downed", counted["link_downed"]
    for nic in (learned(facts, Interfaces) or Interfaces(())).all:
        if nic.carrier_changes:
            yield f"{nic.name} carrier lost", (nic.carrier_changes - 1) // 2  # a bring-up is 1 or 2 of them
    gpus = learned(facts, Gpus)
    for gpu in gpus.all if gpus else ():
        if isinstance(gpu.ecc_ever, int):
            yield f"GPU{gpu.index} uncorrectable ECC", gpu.ecc_ever


def _versions(facts: Mapping[type, Any]) -> dict[str, str | None]:
    versions: dict[str, str | None] = {"kernel": None, "torch": None, "nccl": None, "driver": None}
    if system := learned(facts, System):
        versions |= {"kernel": system.kernel, "distribution": system.distribution or None}
    if software := learned(facts, Software):
        nccl = ".".join(map(str, software.nccl_version or ()))
        versions |= {**software.packages, "nccl": nccl or "none found"}
    if gpus := learned(facts, Gpus):
        versions |= {"driver": gpus.driver, "cuda": ".".join(map(str, gpus.cuda))}
    fabric = learned(facts, Fabric)
    devices = fabric.devices if fabric else ()
    found = grouped((each.firmware, each.name) for each in devices if isinstance(each.firmware, str) and each.firmware)
    named = (f"{version} ({fold(names)})" for version, names in sorted(found.items()))
    if firmware := next(iter(found)) if len(found) == 1 else ", ".join(named):
        versions["NIC firmware"] = firmware
    for plugin in plugins.all if (plugins := learned(facts, Plugins)) else ():
        if told := plugin.told():
            versions.setdefault(f"{plugin.kind} plugin", told)
    return versions


def rail_ways(snapshots: Sequence[Snapshot]) -> tuple[RailWay, ...]:
    """Return what all nodes measured, by node and rail; empty if nothing was tried."""
    rails = Every({s.node: seen for s in snapshots if isinstance(seen := s.facts.get(Rails), Rails)})
    try:
        found = tests(rails)
    except Unlearned:
        return ()
    ways: dict[Way, _Seen] = {}
    for each in found:
        for one, other in (each.seen, each.seen[::-1]):
            ways.setdefault((one.end, other.end), _Seen(one, other)).add(each)
    return tuple(_way_row(ways[way], rails) for way in sorted(ways))


class _Seen(Struct):
    """All tests of one way."""

    src: EndView
    dst: EndView
    tests: list[Tried] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)

    def add(self, each: Tried) -> None:
        self.tests.append(each)
        self.src, self.dst = each.seen if each.leads.end == self.src.end else each.seen[::-1]
        for way, both, rate in each.ways():
            if way == (self.src.end, self.dst.end) and rate is not None:
                kind = "gpu" if each.gpu else "both" if both else "alone" if each.together == 1 else "together"
                self.rates.setdefault(kind, []).append(rate)
        trips = each.leads.outcome.half_round_trip_us if each.leads.outcome and not each.gpu else ()
        self.latencies += [median(trips)] if trips else []

    def rate(self, *kinds: str) -> float | None:
        """Return the median rate of the first of these kinds that was measured."""
        known = next((self.rates[kind] for kind in kinds if kind in self.rates), None)
        return round(median(known), 3) if known else None

    @property
    def state(self) -> RailState:
        """Return the result of the last test with the host's memory."""
        last = ([each for each in self.tests if not each.gpu] or self.tests)[-1]
        way = (self.src.end, self.dst.end)
        if not last.met:
            return "untried"
        if not last.usable:
            return "unusable"
        if way in last.dead() or way in last.late():
            return "dead" if way in last.dead() else "late"
        return "wrong" if any(_wrong(each, self.dst.end.node) for each in self.tests) else "ok"


def _wrong(each: Tried, node: str) -> bool:
    reader = next(seen for seen in each.seen if seen.end.node == node)
    return any(arrival.wrong_bytes for arrival in (reader.outcome.arrivals if reader.outcome else ()))


def _way_row(seen: _Seen, rails: Every[Rails]) -> RailWay:
    src, dst, state = seen.src.end, seen.dst.end, seen.state
    return RailWay(
        src=src.node,
        dst=dst.node,
        src_rail=src.rail,
        dst_rail=dst.rail,
        src_end=name(src, rails),
        dst_end=name(dst, rails),
        state=state,
        tests=len(seen.tests),
        GBps=seen.rate("together", "alone"),
        alone_GBps=seen.rate("alone"),
        both_GBps=seen.rate("both"),
        gpu_GBps=seen.rate("gpu"),
        latency_us=round(min(seen.latencies), 3) if seen.latencies else None,
        src_choices=choices(seen.src),
        dst_choices=choices(seen.dst),
        why="" if state == "ok" else seen.tests[-1].why,
    )


TOPIC = Topic(_judge, _conclude, learn=_learn)
