"""What the checks of a job that runs must object to, and what they must accept."""

from ncclprobe.checks.job.ranks import _standing
from tests.checks.cases import Cases

CASES = {
    "job.absent": Cases(good=[(_standing("working"),)]),
    "job.gone": Cases(good=[(_standing("working"),)]),
    "job.outside": Cases(good=[(_standing("slow, not stuck"),)]),
    "job.apart": Cases(good=[(_standing("working"),)]),
    "job.inside": Cases(good=[(_standing("working"),)]),
    "job.untold": Cases(good=[(_standing("stuck outside"),)]),
}
