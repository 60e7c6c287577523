"""What the checks of paths between nodes must object to, and what they must accept."""

from ncclprobe.checks.launch.mesh import HEALTHY
from ncclprobe.checks.path import NICS, UNCROWDED, altered
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.model.snapshot import Absent, Every
from tests.checks.cases import Cases, rows_of

_GIGABIT = Interface("eth1", 2, frozenset({"up", "running"}), 9000, 10_000, virtual=False)
_TEN_GIGABIT: Every[Interfaces | Absent] = Every({f"n{i}": Interfaces((_GIGABIT,)) for i in range(3)})


_rate = rows_of(
    paths=altered(lambda one, to: {"rate_gbps": 0.2} if (one, to) == (0, 1) else None), nics=NICS, gatherings=UNCROWDED
)
CASES: Cases = {
    "path.mtu": [
        ("FAIL link: n1 on n1", altered(lambda one, _: {"outcome": "stalled-out"} if one == 1 else None), _TEN_GIGABIT),
        (altered(lambda one, _: {"outcome": "filtered"} if one == 1 else None), NICS),
    ],
    "path.rate": [
        _rate("WARN fabric: n0 -> n1 on n0 n1"),
        _rate("WARN fabric: all nodes", paths=altered(lambda one, _: {"rate_gbps": 0.9}), nics=_TEN_GIGABIT),
        _rate(paths=HEALTHY, nics=_TEN_GIGABIT),
        _rate(
            paths=altered(lambda one, _: {"rate_gbps": 0.2, "resent": 900} if one == 1 else None)
        ),  # path.loss says it
    ],
    "path.loss": [
        (
            "WARN fabric: n0 -> n1 on n0 n1",
            altered(lambda one, to: {"resent": 600} if (one, to) == (0, 1) else None),
            NICS,
        ),
        (
            altered(lambda one, to: {"resent": 180} if (one, to) == (0, 1) else None),
            NICS,
        ),  # four bursts on one path
        (altered(lambda one, _: {"resent": 60} if one == 1 else None), NICS),
        (altered(lambda one, _: {"resent": 2, "segments": 150}), NICS),
    ],
    "path.delay": [
        ("WARN fabric: n1 on n1", altered(lambda one, to: {"rtt_s": 0.02} if 1 in (one, to) else None)),
    ],
}
