"""The runs whose reports are kept: how each is started, when and how it is hit, and what a busy machine may change."""

import signal
from collections.abc import Sequence
from typing import Literal

from launching import ENDLESS

from ncclprobe.model.values import Struct

Kind = Literal["self", "one", "hand", "torchrun", "mpirun"]
Moment = Literal["met", "import"] | int
"""A number of saved rows, all ranks connected and calling, or the start of ``import torch``."""

TINY = ["-b", "1K", "-e", "4K", "-n", "3", "-w", "1"]
BEFORE_ANY_ROW = ["-b", "16M", "-e", "16M", "-n", "2000", "-w", "1", "--batches", "1"]
TWO_ROWS = ["-b", "1K", "-e", "16M", "-f", "128", "-n", "1000", "-w", "1", "--batches", "1"]
"""Two rows after seconds, and a third that takes minutes."""
STEP = ["--params", "40K", "--layers", "2", "--tokens", "16", "--micro-batches", "2", "--compute", "0.002"]
BANDS = "bands.toml"


class Hit(Struct, frozen=True):
    """At `moment` the parent (None) or a rank is sent `number`."""

    number: signal.Signals
    rank: int | None
    moment: Moment = 1


class Case(Struct, frozen=True):
    """One run. `bands`: what --expect reads; `free`: checks whose verdict on a speed may be any."""

    name: str
    kind: Kind
    argv: Sequence[str]
    ranks: int = 2
    hit: Hit | None = None
    bands: str = ""
    free: tuple[str, ...] = ()
    command: str = "bandwidth"


def band(op: str, nbytes: str, low: str) -> str:
    return (
        f'[[expect]]\nop = "{op}"\nnbytes = "{nbytes}"\nbusbw_GBps = {low}\ntolerance = 0.1\n'
        'source = "a test"\nwhy = "to be judged"\n'
    )


EVERY_ROW = "".join(band(op, size, "1e-9") for op in ("all_reduce", "broadcast") for size in ("1K", "4K"))
TWO_OPS = ["--op", "all_reduce,broadcast", *TINY]

WHOLE = (
    Case("every-row-passes", "self", TWO_OPS, bands=EVERY_ROW),
    Case("one-row-fails", "self", TINY, bands=band("all_reduce", "4K", "9e9")),
    Case("expectations-cover-nothing", "hand", TINY, bands=band("all_reduce", "1M", "1e-9")),
    Case("some-rows-covered", "hand", TINY, bands=band("all_reduce", "1K", "1e-9")),
    Case("report-only", "hand", ["--op", "all_gather,reduce_scatter,sendrecv", *TINY, "--dtype", "int32", "--redop",
         "max"], ranks=3),
    Case("an-operation-is-refused", "hand", ["--op", "reduce_scatter,gather", *TINY, "--dtype", "int8", "--redop",
         "avg"]),
    Case("nothing-judges-under-torchrun", "torchrun", TINY),
    Case("report-only-under-mpirun", "mpirun", TINY),
    Case("pairs", "self", ["-e", "64K"], ranks=3, free=("run.pairs",), command="pairs"),
    Case("copies", "one", [], command="copies"),
    Case("affinity", "hand", ["-e", "4K"], command="affinity"),
    Case("groups-report-only", "hand", ["--groups", "tp=2", "-e", "64K"], command="workload"),
    Case("training-step", "self", ["ddp", *STEP], command="workload"),
)  # fmt: skip

KILL, STOP, TERM, INT = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT
BROKEN = (  # what else may end a run is in tests/test_bandwidth_ranks.py
    Case("own-rank-1-killed", "self", ENDLESS, hit=Hit(KILL, 1)),
    Case("own-rank-1-terminated", "self", ENDLESS, hit=Hit(TERM, 1)),
    Case("own-rank-0-interrupted", "self", ENDLESS, hit=Hit(INT, 0)),
    Case("own-parent-terminated", "self", ENDLESS, hit=Hit(TERM, None)),
    Case("own-rank-1-killed-before-any-row", "self", BEFORE_ANY_ROW, hit=Hit(KILL, 1, "met")),
    Case("own-parent-terminated-in-import", "self", TINY, hit=Hit(TERM, None, "import")),
    Case("hand-rank-1-killed-after-two-rows", "hand", TWO_ROWS, hit=Hit(KILL, 1, 2)),
    Case("hand-rank-0-terminated", "hand", ENDLESS, hit=Hit(TERM, 0)),
    Case("torchrun-rank-1-killed", "torchrun", ENDLESS, hit=Hit(KILL, 1)),
    Case("torchrun-terminated", "torchrun", ENDLESS, hit=Hit(TERM, None)),
    Case("mpirun-rank-1-killed", "mpirun", ENDLESS, hit=Hit(KILL, 1)),
    Case("mpirun-terminated", "mpirun", ENDLESS, hit=Hit(TERM, None)),
)  # fmt: skip

WRONG = (
    Case("wrong-operation", "self", ["--op", "allreduce"]),
    Case("wrong-sizes", "self", ["-b", "1G", "-e", "1M"]),
    Case("pairs-of-one-rank", "one", [], command="pairs"),
    Case("one-rank", "one", []),
    Case("broken-bands", "self", TINY, bands="[[expect]\n"),
    Case("wrong-under-mpirun", "mpirun", ["--redop", "median"]),
)
