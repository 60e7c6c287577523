"""Files that ranks leave for the process that started them.

For ``--nproc``, in a folder that outlives them: ``rank.N`` is the current or last phase of rank N, and why it exited;
``run.jsonl`` is rank 0's run log, the other ``.jsonl`` files are the nodes' captures.

For torchrun, which prints a traceback for every exit code but 0 below our report, the meaning of the code: that
traceback ends with the file that torchrun makes each rank write for it
(torch/distributed/elastic/multiprocessing/errors/error_handler.py, record_exception).
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ncclprobe.model.findings import ExitCode
from ncclprobe.model.values import Struct, asdict, replace

FOLDER = "NCCLPROBE_FOLDER"
"""The variable that passes the folder to the ranks."""
STARTED = "NCCLPROBE_STARTED"
"""The variable with the time of the command's start: --timeout counts from then.

It holds a time.monotonic(), which is the same for all processes of a host and unaffected by clock corrections.
"""

START = "start"
"""The phase of a rank that has not entered any other yet."""
IMPORTING = "import torch"
"""The last phase during which the parent of the ranks still shows their progress."""

_RECORD_BYTES = 2048  # of a fixed size, so that one write replaces all of it
_MOST_CHARACTERS = 128  # of a text; escaped as JSON it may have six bytes for each
_GENERATIONS = 5


class RankState(Struct, frozen=True):
    """The current or last `phase` of a rank.

    `exit_reason` is set if it exited because of another rank, with the `exit_code` that distinguishes a rank known to
    be lost (4) from a timeout (3); `signal` is the first of SIGINT, SIGTERM and SIGHUP that it received.
    """

    rank: int
    host: str
    phase: str = START
    exit_reason: str = ""
    exit_code: int = ExitCode.FAIL
    signal: str = ""


class RankFile:
    """This rank's own state in its file. Costs one short write per phase."""

    def __init__(self, folder: str, rank: int, host: str) -> None:
        self._file = os.open(Path(folder, f"rank.{rank}"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._trace = RankState(rank, host)
        self._write(self._trace)

    def set_phase(self, phase: str) -> None:
        """Write this rank's new phase."""
        self._write(replace(self._trace, phase=phase[:_MOST_CHARACTERS]))

    def leave(self, why: str, code: int) -> None:
        """Write why this rank exits, and the exit code."""
        self._write(replace(self._trace, exit_reason=why[:_MOST_CHARACTERS], exit_code=int(code)))

    def signalled(self, name: str) -> None:
        """Write that this rank received signal `name`."""
        self._write(replace(self._trace, signal=name))

    def _write(self, read_state: RankState) -> None:
        self._trace = read_state
        with contextlib.suppress(OSError):  # a full disk: the run itself does not need the file
            os.pwrite(self._file, json.dumps(asdict(read_state)).ljust(_RECORD_BYTES).encode()[:_RECORD_BYTES], 0)


def read_state(folder: Path, rank: int, host: str) -> RankState:
    """Read the state of `rank`; without a readable file, that of a rank on `host` that has just started."""
    try:
        return RankState(**json.loads((folder / f"rank.{rank}").read_text()))
    except (OSError, ValueError):
        return RankState(rank, host)


def end_processes_of(folder: str) -> None:
    """Kill every process that was started to work in `folder`, identified by its environment.

    Such processes may outlive their parents. This repeats until none is found: one that is being killed may just have
    started another.
    """
    mark = f"{FOLDER}={folder}\0".encode()
    for _ in range(_GENERATIONS):
        found = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in _environment(path)]
        for pid in found:
            if pid != os.getpid():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        if not found:
            return


def environment(path: Path) -> dict[str, str]:
    """Read the environment of a process; empty if that is not permitted or the process has exited, as a zombie has."""
    pairs = (each.partition("=") for each in _environment(path).decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs}


def _environment(path: Path) -> bytes:
    try:
        return path.read_bytes() + b"\0"
    except OSError:
        return b""


_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_MEANINGS = {
    ExitCode.BROKEN: "the fault of ncclprobe named above",
    ExitCode.USAGE: "the wrong usage named above, not a crash",
    ExitCode.INCONCLUSIVE: "the verdict UNKNOWN (inconclusive) above, not a crash",
    ExitCode.FAIL: "the verdict FAIL above, not a crash",
}


def explain_exit(code: int, variables: Mapping[str, str] = os.environ, *, fail_on: str = "fail") -> None:
    """Print on standard error what torchrun's ``exitcode: CODE`` will mean: once per node, because each has an agent.

    Every rank also reports it to torchrun, which ends its traceback with the first report. Does nothing for 0, for
    another launcher, or if our own --nproc has started the ranks.
    """
    meaning = explanation(code, variables, fail_on=fail_on)
    if not meaning:
        return
    with contextlib.suppress(OSError, ValueError):
        text = f"none: that is {meaning}"
        path = variables.get(_ERROR_FILE)
        if path:
            more = {"py_callstack": text, "timestamp": str(int(time.time()))}
            Path(path).write_text(json.dumps({"message": {"message": text, "extraInfo": more}}), encoding="utf-8")
        if variables.get("LOCAL_RANK", "0") == "0":
            line = f'ncclprobe: torchrun will now print "exitcode  : {code}": that is {meaning}'
            print(line, file=sys.stderr, flush=True)


def explanation(code: int, variables: Mapping[str, str], *, fail_on: str = "fail") -> str:
    """Return what the exit code means; empty: torchrun needs no explanation."""
    if not variables.get("TORCHELASTIC_RUN_ID") or FOLDER in variables or code not in _MEANINGS:
        return ""
    meaning = _MEANINGS[ExitCode(code)]
    return meaning.replace("FAIL", "FAIL or WARN") if fail_on == "warn" else meaning
