"""What the checks by a store of reports must object to, and what they must accept."""

from ncclprobe.checks.trend.history import _DAY_S, _GOOD, _LOST, _NOW_S, _faults, _series
from ncclprobe.model.fleet import History, Sum
from ncclprobe.model.values import replace
from tests.checks.cases import Cases

_SPELLS = tuple((_NOW_S - day * _DAY_S, _NOW_S - (day - 2) * _DAY_S, -0.1) for day in (20, 12, 6))

CASES = {
    "trend.rate": Cases(
        bad=[("WARN node: rail 3 rails out", History(_GOOD, _series(Sum(spells=_SPELLS))))],
        good=[
            (History(_faults(3.0), _series(Sum())),),
            (History(_GOOD, _series(Sum(spells=_SPELLS[:2]))),),
            (History(_GOOD, _series(Sum(height=5.0, tests=3, lost=-0.03, since_s=_NOW_S))),),
            (History(replace(_GOOD, last_s=_NOW_S + 31 * _DAY_S), _series(_LOST)),),  # not measured for a month
        ],
    ),
    "trend.flapping": Cases(
        bad=[("WARN link: ib.state mlx5_3:1", History(_faults(25.0, 9.0, 1.0, there=False)))],
        good=[(History(_faults(70.0, 50.0, 1.0)),), (History(_GOOD, _series(_LOST)),)],
    ),
}
