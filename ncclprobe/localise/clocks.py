"""How far the clocks of hosts are apart, from moments that their logs share.

The ranks of a communicator finish its initialisation together, after a last exchange with all others (bootstrap.cc,
initTransportsRank): a second or less apart. So where the lines have times, the difference between two hosts is that of
their clocks. Where no such line is in the logs of two hosts, their times are compared with nothing, and order is known
within each log alone.
"""

from collections.abc import Mapping
from statistics import median

from ncclprobe.facts.files.job_log import JobLog
from ncclprobe.model.values import Struct, field
from ncclprobe.units import plural

_APART_S = 1.0


class Clocks(Struct, frozen=True):
    """By how many seconds each host's clock is ahead of one of them. `shared`: how many moments that rests on."""

    ahead_s: Mapping[str, float] = field(default_factory=dict)
    shared: int = 0
    nhosts: int = 0

    def in_words(self) -> str:
        """Return what a reader must know of the times; empty: all are of one host."""
        if self.nhosts < 2:
            return ""
        if not self.ahead_s:
            return "times of different hosts are not compared: no moment is in the logs of two of them"
        late = {host: each for host, each in self.ahead_s.items() if abs(each) > _APART_S}
        how = f"by {plural(self.shared, 'communicator')} that several hosts initialised together"
        if not late:
            return f"the clocks of the hosts agree within a second, {how}"
        first, most = max(late.items(), key=lambda each: abs(each[1]))
        return f"the clock of {first} is {abs(most):.0f} s {'ahead' if most > 0 else 'behind'}, {how}"


def clocks(log: JobLog) -> Clocks:
    """Return how far apart the clocks of the hosts in `log` are."""
    hosts = {event.host for event in log.events if event.host and event.time_s is not None}
    moments: dict[str, dict[str, float]] = {}
    for event in log.events:
        if "- Init COMPLETE" in event.text and event.time_s is not None and event.host:
            name = event.text.partition("commId ")[2].partition(" ")[0]
            if name:
                own = moments.setdefault(name, {})
                own[event.host] = max(event.time_s, own.get(event.host, event.time_s))
    shared = [each for each in moments.values() if len(each) > 1]
    if not shared:
        return Clocks(nhosts=len(hosts))
    first = max(shared, key=len)
    base = next(iter(first))
    return Clocks(_ahead(shared, base), len(shared), len(hosts))


def _ahead(shared: list[dict[str, float]], base: str) -> dict[str, float]:
    """Return each host's clock against that of `base`, of the moments that both have."""
    apart: dict[str, list[float]] = {}
    for moment in shared:
        if base in moment:
            for host, when in moment.items():
                apart.setdefault(host, []).append(when - moment[base])
    return {host: median(each) for host, each in apart.items()}
