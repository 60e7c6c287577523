"""Is a node by itself slow, and was the ladder climbed to its end?"""

from collections.abc import Iterator

from ncclprobe.checks.run.conditions import rungs_of_the_ladder
from ncclprobe.errors import Unlearned
from ncclprobe.facts.run.samples import Asked, Expected, Ladder, Participants
from ncclprobe.model.findings import Certainty, Finding, fail, seen, warn
from ncclprobe.model.measurement import Band, Conditions, Expectation
from ncclprobe.model.registry import check
from ncclprobe.model.traffic import LadderRow
from ncclprobe.model.values import replace
from ncclprobe.training import climbed
from ncclprobe.units import size

_ONE = LadderRow(
    rung="rank", ranks=1, groups=16, slowest=(0,), step_bytes=64 << 20, step_us=2000.0, samples_us=(2000.0,) * 9,
    nbytes=1 << 30,
)  # fmt: skip
_NODE = replace(_ONE, rung="node", ranks=8, groups=2, slowest=tuple(range(8)), busbw_GBps=472.0, best_GBps=474.0)
_SLOW = replace(_NODE, busbw_GBps=210.0, best_GBps=214.0)
_JOB = replace(_NODE, rung="job", ranks=16, groups=1, slowest=tuple(range(16)), step_us=2300.0, busbw_GBps=370.0)
_REACHES = Expectation(480.0, 440.0, "GB/s", "published", "8 H100 joined by NVSwitch", "https://github.com/NVIDIA/nccl")
_EIGHT_OF_ONE = Conditions(8, 1, "float32", "sum", "in", "queued", "nccl")
_BY_NODE = Expected((Band("all_reduce", 1 << 30, 1 << 30, _REACHES, _EIGHT_OF_ONE),))
_TWO = Participants("torchrun", 16, ("n0",) * 8 + ("n1",) * 8, "nccl", nnodes=2)
_ASKED = Asked(what=("ladder",))


@check(
    bad=lambda: [(Ladder((_ONE, _SLOW, _JOB)), _BY_NODE, _TWO, _ASKED)],
    good=lambda: [(Ladder((_ONE, _SLOW, _JOB)), Expected(), _TWO, _ASKED)],
    required=True,
    applies=rungs_of_the_ladder,
)
def ladder(measured: Ladder, expected: Expected, participants: Participants, asked: Asked) -> Iterator[Finding]:
    """A node by itself is slower than it should be.

    Right: Every rung of the ladder was measured, and no judged node is slower than expected.
    Why: what a job loses between nodes is only known by what its nodes reach by themselves. Speed-up and
    efficiency are shown and not judged: what a network should leave of them depends on the model that is trained.
    Fix: run `ncclprobe accept` on the named node alone; look at its NVLinks, its GPUs' clocks and its PCIe links.
    """
    rows = climbed(measured.rows, expected.bands)
    for row in rows:
        if row.expectation and row.status in ("fail", "warn"):
            host = participants.hosts[row.slowest[0]]
            finding = fail if row.status == "fail" else warn
            yield finding(
                host,
                f"its own all_reduce of {size(row.nbytes)} reaches {row.busbw_GBps:.4g} GB/s, at least "
                f"{row.expectation.threshold:.4g} expected ({row.expectation.why})",
                blame="node",
                action="retest",
                confidence=Certainty("medium", f"the slowest of {row.groups} nodes, measured at the same time"),
                evidence=(
                    seen(f"{row.ranks} ranks of one node", f"its fastest batch reached {row.best_GBps:.4g} GB/s"),
                    seen(row.expectation.source, f"expected {row.expectation.value:.4g} {row.expectation.unit}"),
                ),
                nodes=(host,),
            )
    noise = [row for row in rows if row.status == "inconclusive"]
    if noise:
        raise Unlearned(f"too noisy to say: {noise[0].busbw_GBps:.4g} to {noise[0].best_GBps:.4g} GB/s within a node")
