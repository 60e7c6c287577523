"""How a running job stands: its ranks in classes, and the answer in one line."""

from typing import Literal

from ncclprobe.model.findings import Evidence
from ncclprobe.model.values import Struct

ClassName = Literal[
    "stuck outside",
    "stuck inside",
    "desync",
    "dead or gone",
    "slow, not stuck",
    "waiting",
    "working",
    "cannot tell",
]
"""Never came to the call that others wait in; all came and none goes on; made other calls; has no process any more;
late and at work; waits for others; at work; not known."""


class RankClass(Struct, frozen=True):
    """Ranks of one class. `doing` is what they do, in words, such as ``sleeps in nanosleep, train.py:212 in step``.

    `ranks` are numbers of the job; a process whose rank is not known is in `processes` alone, as NODE:PID.
    """

    name: ClassName
    ranks: tuple[int, ...]
    nodes: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    doing: str = ""
    evidence: tuple[Evidence, ...] = ()


class Standing(Struct, frozen=True):
    """The answer: ``STUCK``, ``SLOW``, ``WORKING`` or ``CANNOT TELL``, and what stands where in one line.

    `looked_at` is in ISO 8601, `looked_s` how long looking took, `prepare` what would have told more.
    """

    word: str
    message: str
    looked_at: str = ""
    looked_s: float = 0.0
    prepare: str = ""
