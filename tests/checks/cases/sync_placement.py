"""Where nodes may stand without a word."""

from checks.cases import Cases
from ncclprobe.checks.sync.roster import below

CASES = {"sync.location/placement": Cases(good=[(below("s1", "s1", "s2", "s2"),)])}
