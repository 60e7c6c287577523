"""The runs whose reports are kept: how each is started, and when and how it is hit.

What the other measuring commands report, and what else may end a run, is in tests/test_*_ranks.py.
"""

import signal
from collections.abc import Sequence
from typing import Literal

from launching import ENDLESS

from ncclprobe.model.values import Struct

Kind = Literal["self", "hand", "torchrun", "mpirun"]
Moment = Literal["first row", "import"]
"""When the first row has been saved, or ``import torch`` begins."""

TINY = ["-b", "1K", "-e", "4K", "-n", "3", "-w", "1"]


class Hit(Struct, frozen=True):
    """At `moment` the parent (None) or a rank is sent `number`."""

    number: signal.Signals
    rank: int | None
    moment: Moment = "first row"


class Case(Struct, frozen=True):
    """One run of ``ncclprobe bandwidth`` over two ranks."""

    name: str
    kind: Kind
    argv: Sequence[str]
    hit: Hit | None = None


KILL, TERM = signal.SIGKILL, signal.SIGTERM
CASES = (
    Case("an-operation-is-refused", "hand", ["--op", "reduce_scatter,gather", *TINY, "--dtype", "int8", "--redop",
         "avg"]),
    Case("own-rank-1-terminated", "self", ENDLESS, hit=Hit(TERM, 1)),
    Case("own-parent-terminated-in-import", "self", TINY, hit=Hit(TERM, None, "import")),
    Case("torchrun-rank-1-killed", "torchrun", ENDLESS, hit=Hit(KILL, 1)),
    Case("torchrun-terminated", "torchrun", ENDLESS, hit=Hit(TERM, None)),
    Case("mpirun-rank-1-killed", "mpirun", ENDLESS, hit=Hit(KILL, 1)),
    Case("mpirun-terminated", "mpirun", ENDLESS, hit=Hit(TERM, None)),
    Case("wrong-under-mpirun", "mpirun", ["--redop", "median"]),
)  # fmt: skip
