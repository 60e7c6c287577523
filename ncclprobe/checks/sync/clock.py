"""Clocks that tell different times."""

from collections.abc import Iterator

from ncclprobe.checks import several
from ncclprobe.checks.sync import named
from ncclprobe.errors import Unlearned
from ncclprobe.facts.reach import ClockOffset, Gathering
from ncclprobe.layout import first_of
from ncclprobe.model.findings import Finding, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Every

_APART_S = 1.0  # clocks that are kept by NTP are within hundredths of a second
_MOST_TOLD = 5

_ASKED = Gathering(4, 0.1)
_SELF: ClockOffset | Absent = Absent("rank 0 is what others compare with")
_HUB: Every[Gathering | Absent] = Every({"n0": _ASKED, "n1": Absent("not rank 0")})


def _offsets(*seconds: float) -> Every[ClockOffset | Absent]:
    """Of n1, n2 … against n0."""
    return Every({"n0": _SELF, **{f"n{i}": ClockOffset(s, 0.001) for i, s in enumerate(seconds, start=1)}})


@check(
    bad=lambda: [(_offsets(-1.5), _HUB)],
    good=lambda: [(Every({"n0": _SELF, "n1": ClockOffset(1.4, 1.2)}), _HUB)],
    applies=several,
)
def clock(offsets: Every[ClockOffset | Absent], gatherings: Every[Gathering | Absent]) -> Iterator[Finding]:
    """The clocks of the nodes are more than a second apart.

    Right: The clocks of the nodes are within a second of each other.
    Why: no NCCL job breaks by it; but logs of several nodes cannot be put in order then, which is how a hang is found,
    and files and certificates that one node writes are from the future for another.
    Fix: on the nodes named `systemctl enable --now chronyd` (or systemd-timesyncd); `chronyc tracking` shows the
    offset.
    """
    known = {node: each for node, each in offsets.items() if isinstance(each, ClockOffset)}
    if not known:
        raise Unlearned("no clock was compared with rank 0's")
    ahead = {node: 0.0 for node, each in gatherings.items() if isinstance(each, Gathering)}
    ahead |= {node: each.offset_s for node, each in known.items()}
    middle = sorted(ahead, key=lambda node: ahead[node])[(len(ahead) - 1) // 2]  # a mean would be the time of neither
    unsure = dict.fromkeys(ahead, 0.0) | {node: each.rtt_s / 2 for node, each in known.items()}
    apart = {node: s - ahead[middle] for node, s in ahead.items()}
    off = {node: s for node, s in apart.items() if abs(s) > _APART_S + unsure[node] + unsure[middle]}
    seen = "pings to rank 0, the shortest round trip of several"
    blamed = {"blame": "image", "action": "fix-image", "evidence": seen}
    if 2 * len(off) < len(ahead):
        if off:
            words = [f"{node} {abs(s):.3g} s {'ahead' if s > 0 else 'behind'}" for node, s in off.items()]
            differ = "differs" if len(off) == 1 else "differ"
            message = f"{len(off)} of {len(ahead)} {differ}: {first_of(words, _MOST_TOLD)}"
            yield warn(named(tuple(off)), message, nodes=tuple(off), **blamed)
    else:
        spread = max(ahead.values()) - min(ahead.values())
        first, last = min(ahead, key=lambda node: ahead[node]), max(ahead, key=lambda node: ahead[node])
        message = f"no majority among {len(ahead)} nodes: up to {spread:.3g} s apart, {first} behind and {last} ahead"
        yield warn("clocks", message, **blamed)
    unknown = [node for node, each in offsets.items() if node not in ahead]
    if unknown and not off:
        raise Unlearned(f"the clock of {named(unknown)} was not compared with rank 0's")
