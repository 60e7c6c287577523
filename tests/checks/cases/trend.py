"""What the checks by a store of reports must object to, and what they must accept."""

from ncclprobe.checks.trend.history import DAY_S, GOOD, LOST, NOW_S, faults_of, series_of
from ncclprobe.model.fleet import History, Sum
from ncclprobe.model.values import replace
from tests.checks.cases import Cases

_SPELLS = tuple((NOW_S - day * DAY_S, NOW_S - (day - 2) * DAY_S, -0.1) for day in (20, 12, 6))

CASES: Cases = {
    "trend.rate": [
        ("NOTE unknown: rail 3 rails out", History(GOOD, series_of(replace(LOST, state="watch")))),
        ("WARN node: rail 3 rails out", History(GOOD, series_of(replace(LOST, since_s=None)))),
        ("WARN node: rail 3 rails out", History(GOOD, series_of(Sum(spells=_SPELLS)))),
        (History(GOOD, series_of(Sum(spells=_SPELLS[:2]))),),
        (History(replace(GOOD, last_s=NOW_S + 31 * DAY_S), series_of(LOST)),),  # not measured for a month
    ],
    "trend.flapping": [
        ("WARN link: ib.state mlx5_3:1", History(faults_of(25.0, 9.0, 1.0, there=False))),
        (History(faults_of(70.0, 50.0, 1.0)),), (History(GOOD, series_of(LOST)),),
    ],
}  # fmt: skip
