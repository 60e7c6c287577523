"""What a watch of a running job tells: a line for each look, who kept the others waiting, and whether it is another."""

from collections import Counter

from ncclprobe.model.report import Report
from ncclprobe.report import causes
from ncclprobe.report.digest import when
from ncclprobe.units import plural, printable

_NAMES_RANKS = ("dead or gone", "desync", "stuck outside", "stuck inside")
_MOST_NAMED = 4


class Watch:
    """The looks of a watch: the last of them, and whether its answer is another than that of the first.

    A job at work alternates between WORKING and SLOW; that is one answer.
    """

    def __init__(self) -> None:
        self.last: Report | None = None
        self.changed = False
        self._first: object = None
        self._looks = 0
        self._slow: Counter[str] = Counter()

    def add(self, report: Report) -> str:
        """Take the next look; return it in a line."""
        standing, before = report.standing, self.last
        assert standing is not None
        word = "" if standing.word in ("WORKING", "SLOW") else standing.word
        key = word, [(each.name, each.ranks, each.processes) for each in report.classes if each.name in _NAMES_RANKS]
        self._first = self._first if self._looks else key
        self.last, self.changed, self._looks = report, key != self._first, self._looks + 1
        self._slow.update(
            causes.who(each.ranks, each.nodes) for each in report.classes if each.name == "slow, not stuck"
        )
        made = standing.calls - before.standing.calls if before and before.standing and before.standing.calls else None
        calls = f"; {plural(max(made, 0), 'call')} since the look before" if made is not None else ""
        return printable(f"{when(standing.looked_at)}  {standing.word}  {standing.message}{calls}")

    def notes(self) -> list[str]:
        """Return how many looks there were, and which ranks were slow in most of them."""
        slow = [f"{who} in {number}" for who, number in self._slow.most_common(_MOST_NAMED)]
        named = f"; others waited for {', '.join(slow)} of them" if slow else ""
        return [f"watched: {plural(self._looks, 'look')}{named}"]
