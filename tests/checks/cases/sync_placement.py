"""Where nodes may stand without a word."""

from checks.cases import Cases

CASES = {"sync.location/placement": Cases(good=[])}
