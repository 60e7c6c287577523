"""What ranks started by ``--nproc`` leave behind for the process that started them, in a folder that outlives them.

``rank.N`` is where rank N is or last was, and its last words; ``run.jsonl`` is rank 0's run log, the other ``.jsonl``
the nodes' captures; ``ends.json`` is what torch's agent saw of the ranks that ended badly.
"""

import contextlib
import ctypes
import json
import os
import signal
from pathlib import Path

from ncclprobe.model.values import Struct, asdict, replace

FOLDER = "NCCLPROBE_FOLDER"
"""Set for the agent and the ranks: the folder."""
STARTED = "NCCLPROBE_STARTED"
"""Set likewise: when the user's clock started to run (time.time()), for --timeout is theirs and not the ranks'."""

START = "start"
"""The phase of a rank that has said nothing else yet."""
IMPORTED, ENDS = "imported", "ends.json"

_RECORD_BYTES = 2048  # of a fixed size, so that one write replaces all of it
_MOST_CHARACTERS = 128  # of a text; escaped as JSON it may have six bytes for each
_PR_SET_PDEATHSIG = 1  # prctl(2)


class Trace(Struct, frozen=True):
    """Where a rank is, or was when it ended. `words`: why it left, if that is somebody else's doing."""

    rank: int
    host: str
    phase: str = START
    words: str = ""


class Trail:
    """This rank's own trace, kept up to date. Costs one short write per phase."""

    def __init__(self, folder: str, rank: int, host: str) -> None:
        self._file = os.open(Path(folder, f"rank.{rank}"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._trace = Trace(rank, host)
        self._write(self._trace)

    def phase(self, phase: str) -> None:
        """This rank is in `phase` from now on."""
        self._write(replace(self._trace, phase=phase[:_MOST_CHARACTERS]))

    def words(self, why: str) -> None:
        """This rank leaves, and says why."""
        self._write(replace(self._trace, words=why[:_MOST_CHARACTERS]))

    def _write(self, trace: Trace) -> None:
        self._trace = trace
        with contextlib.suppress(OSError):  # a full disk: the run itself needs no trail
            os.pwrite(self._file, json.dumps(asdict(trace)).ljust(_RECORD_BYTES).encode()[:_RECORD_BYTES], 0)


def trace(folder: Path, rank: int, host: str) -> Trace:
    """What `rank` left; where it left nothing, it never got beyond its start on `host`."""
    try:
        return Trace(**json.loads((folder / f"rank.{rank}").read_text()))
    except (OSError, ValueError):
        return Trace(rank, host)


def note_ends(folder: Path, codes: dict[int, int]) -> None:
    """Say which ranks ended with which codes, below 0 for a signal as in subprocess."""
    (folder / ENDS).write_text(json.dumps(codes))


def ends(folder: Path) -> dict[int, int]:
    """What `note_ends` said; empty where nobody did."""
    try:
        return {int(rank): code for rank, code in json.loads((folder / ENDS).read_text()).items()}
    except (OSError, ValueError):
        return {}


def end_with_parent(number: signal.Signals, parent: int | None = None) -> bool:
    """Ask Linux for signal `number` when the parent ends, however it does; False: it already has.

    `parent`: its process id, where this process knows whom to expect.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    return parent is None or os.getppid() == parent
