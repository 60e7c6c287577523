"""What a measuring run was asked for: a checked command line, which every rank holds."""

from dataclasses import dataclass
from pathlib import Path

from ncclprobe.model.measurement import Mode
from ncclprobe.ops import DTYPES
from ncclprobe.session.measure import intra_node, training
from ncclprobe.session.ranks.identity import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A checked command line. Names are those of the options; `command` and `argv` are what was typed.

    `sizes` are the bytes that -b, -e and -f lead to, `notes` what the reader must know of how they were understood.
    `pairs` are the rounds of pairs to measure instead of collectives: 0 for all of them, None for no pairs; `training`
    is what of real training to play instead, if anything; `aside` what to measure within nodes instead, `road` whether
    to find out which way the bytes went.
    `mode` and `backend` are None where nobody said, `precision` is None where -n or --batches fix the number of calls.
    """

    command: str
    argv: tuple[str, ...]
    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    iters: int
    warmup: int
    batches: int
    precision: float | None
    budget_s: float
    dtype: str
    redop: str
    mode: Mode | None
    backend: Backend | None
    pairs: int | None
    training: training.Training | None
    aside: intra_node.Aside | None
    road: bool
    nproc: int | None
    expect: str | None
    baseline: str | None
    repeat: int
    tolerance: float
    require_judged: bool
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    config: Path | None
    keep: Path | None
    timeout_s: float
    phase_timeout_s: float
    json: str | None
    junit: str | None
    markdown: str | None
    html: str | None
    prometheus: str | None
    nodes_out: Path | None
    fail_on: str
    quiet: bool
    verbose: bool
    no_color: bool
    notes: tuple[str, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype]

    @property
    def writes_files(self) -> bool:
        """Whether a file is to hold the report."""
        paths = (self.json, self.junit, self.markdown, self.html, self.prometheus)
        return self.nodes_out is not None or any(path not in (None, "-") for path in paths)
