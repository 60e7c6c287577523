"""What the checks of a job that runs must object to, and what they must accept."""

from ncclprobe.checks.job.ranks import standing
from tests.checks.cases import Cases

CASES = {
    "job.absent": Cases(good=[(standing("working"),)]),
    "job.gone": Cases(good=[(standing("working"),)]),
    "job.outside": Cases(good=[(standing("slow, not stuck"),)]),
    "job.apart": Cases(good=[(standing("working"),)]),
    "job.inside": Cases(good=[(standing("working"),)]),
    "job.untold": Cases(good=[(standing("stuck outside"),)]),
}
