"""What the checks of a job that runs must object to, and what they must accept."""

from tests.checks.cases import Cases

CASES = {
    "job.absent": Cases(good=[]),
    "job.gone": Cases(good=[]),
    "job.outside": Cases(good=[]),
    "job.apart": Cases(good=[]),
    "job.inside": Cases(good=[]),
    "job.untold": Cases(good=[]),
}
