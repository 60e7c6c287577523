"""RoCE ports that mark or slow their traffic otherwise than those of other nodes."""

from collections.abc import Iterator

from ncclprobe.checks.sync import describe, kinds, named, of_one_kind
from ncclprobe.checks.sync.counts import DGXS, H100S
from ncclprobe.facts.infiniband import RoceMarks, RoceQos
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nvml import Gpus
from ncclprobe.model.findings import Finding, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every, Job, vote
from ncclprobe.model.values import replace

_SET = RoceMarks("Global tclass=106", (3,), (3,))
_NODE = RoceQos({f"mlx5_{n}:1": _SET for n in range(2)})


@applies
def marks_shown(marks: Every[RoceQos | Absent], job: Job) -> bool:
    """to jobs on GPUs, where the driver of several nodes shows how RoCE ports mark their traffic (MLNX_OFED, DOCA)."""
    told = [isinstance(each, RoceQos) and any(map(_told, each.ports.values())) for _, each in marks.items()]
    return job.backend == "nccl" and sum(told) > 1


@check(
    slows=True,
    bad=lambda: [
        (Every({"n0": _NODE, "n1": RoceQos({**_NODE.ports, "mlx5_1:1": replace(_SET, notifies=(0, 3))})}), DGXS, H100S)
    ],
    good=lambda: [(Every({"n0": _NODE, "n1": _NODE}), DGXS, H100S)],
    applies=marks_shown,
)
def roce_qos(marks: Every[RoceQos], machines: Every[Machine | Absent], gpus: Every[Gpus | Absent]) -> Iterator[Finding]:
    """RoCE ports of nodes of one kind mark or slow their traffic differently.

    Right: RoCE ports of nodes of one kind mark and slow their traffic in one way.
    Why: switches queue and pause by what the packets are marked with: a node whose traffic class is another is dropped
    where the others are paused, and one that does not slow down by ECN takes the rate that the others give up.
    Fix: set the same everywhere at boot: /sys/class/infiniband/*/tc/1/traffic_class, mlnx_qos -i INTERFACE --pfc and
    --trust dscp, ecn/roce_np/enable and ecn/roce_rp/enable; NCCL_IB_TC gives NCCL's own packets their class.
    """
    known = {node: each for node, each in marks.items() if any(map(_told, each.ports.values()))}
    for part in of_one_kind(known, kinds(machines, gpus)):
        for name in dict.fromkeys(name for each in part.values() for name in each.ports):
            here = {node: each.ports[name] for node, each in part.items() if name in each.ports}
            yield from _compared(name, {node: each for node, each in here.items() if _told(each)})


def _told(marks: RoceMarks) -> bool:
    return not all(isinstance(each, Absent) for each in (marks.traffic_class, marks.slows, marks.notifies))


def _compared(name: str, ports: dict[str, RoceMarks]) -> Iterator[Finding]:
    ballot = vote({node: _words(each) for node, each in ports.items()})
    if not ballot.agreed:
        outliers = ballot.outliers
        seen = ("/sys/class/infiniband/*/tc/*/traffic_class", "/sys/class/net/*/ecn")
        where = f"{named(outliers)} {name}" if outliers else name
        yield warn(where, describe(ballot), blame="image", action="fix-image", nodes=outliers, evidence=seen)


def _words(marks: RoceMarks) -> str:
    """Return what is known of a port; what its driver does not show is not held against it."""
    words = [] if isinstance(marks.traffic_class, Absent) else [marks.traffic_class or "no traffic class"]
    for what, priorities in (("slows down by ECN", marks.slows), ("notifies", marks.notifies)):
        if not isinstance(priorities, Absent):
            words.append(f"{what} on {', '.join(map(str, priorities)) or 'no priority'}")
    return ", ".join(words)
