"""What settings cost: the most that is left of a machine's bandwidth with each of them."""

from collections.abc import Iterator

from ncclprobe.checks.env import TRANSPORT_GROUP, evidence, jobs_fail, jobs_note, jobs_warn
from ncclprobe.checks.env.fixtures import PLAIN, setting
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.model.findings import WORTH_SAYING, Finding, Severity, severity_of
from ncclprobe.model.registry import applies, check
from ncclprobe.model.report import AttainableRate
from ncclprobe.model.snapshot import Absent, Job

_TELL = {Severity.FAIL: jobs_fail, Severity.WARN: jobs_warn, Severity.NOTE: jobs_note}
_FEW = AttainableRate(82.8, 459.0, 2, {"NCCL_MAX_NCHANNELS": 82.8})


@applies
def priced(job: Job, predicted: AttainableRate | Absent) -> bool:
    """to jobs on GPUs with a setting that can take bandwidth away, on machines whose bandwidth is known."""
    return job.backend == "nccl" and isinstance(predicted, AttainableRate)


@check(
    group=TRANSPORT_GROUP,
    slows=True,
    bad=lambda: [(_FEW, setting("NCCL_MAX_NCHANNELS", "2"))],
    good=lambda: [(AttainableRate(459.0, 459.0, 2), PLAIN)],
    last=True,
    applies=priced,
)
def cost(predicted: AttainableRate, settings: Settings) -> Iterator[Finding]:
    """A setting takes away bandwidth that the machine has.

    Right: No setting takes away bandwidth of this machine that is known.
    Why: what is left is computed of the links that the setting leaves (NICs, sockets, channels, host memory between
    GPUs, the network between nodes of a rack), beside what a healthy machine of this type reaches in an all-reduce of
    1 GiB. Half lost fails, a tenth warns. A machine with NICs for a fabric is judged for two nodes at least.
    Fix: unset the variable; if it is meant, accept it with --ignore env.transport=NAME or in ncclprobe.toml.
    """
    for name in predicted.settings:
        lost = predicted.lost(name)
        if lost >= WORTH_SAYING:
            message = f"is {settings.get(name)!r}, which leaves {predicted.cost(name)}"
            yield _TELL[severity_of(lost)](name, message, evidence(settings, name))
