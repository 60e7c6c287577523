"""The Python stack that shows a rank's position: of its first thread, or of the thread that this one waits for."""

from collections.abc import Sequence

from ncclprobe.facts.field import attempt
from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.facts.job.meeting import decoded
from ncclprobe.host import Host
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

C10D = "/torch/distributed/distributed_c10d.py"
_OF_THREADS = ("/threading.py", "/concurrent/futures/_base.py", "/queue.py", "/concurrent/futures/thread.py")
"""Functions in which a thread waits for another one."""
_FOR_ITS_END = ("join", "result", "shutdown")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python")


class _Stack(Struct, frozen=True):
    os_thread_id: int | None
    frames: tuple[FlightFrame, ...]


def stack(host: Host, pid: int, number: int) -> tuple[FlightFrame, ...] | Absent:
    """Return the stack of a process, innermost frame first, or why it is not known."""

    def read() -> tuple[FlightFrame, ...]:
        threads: tuple[_Stack, ...] = decoded(host.ask("stacks", pid, number), tuple[_Stack, ...])
        return _stuck(next((thread.frames for thread in threads if thread.os_thread_id == pid), ()), threads)

    return attempt(read)


def _stuck(first: tuple[FlightFrame, ...], threads: Sequence[_Stack]) -> tuple[FlightFrame, ...]:
    """Return the stack of the first thread, or of the thread that it waits for: one in a collective, or if it waits for
    an end or a result the only other one in the program.
    """
    if not first or not first[0].filename.endswith(_OF_THREADS):
        return first
    others = [thread.frames for thread in threads if thread.frames is not first]
    calls = [each for each in others if any(frame.filename.endswith(C10D) for frame in each)]
    own = [each for each in others if any(not _is_library(frame.filename) for frame in each)]
    ends = any(frame.name in _FOR_ITS_END and frame.filename.endswith(_OF_THREADS) for frame in first)
    return calls[0] if calls else own[0] if ends and len(own) == 1 else first


def _is_library(path: str) -> bool:
    return path.startswith("<") or any(words in path for words in _LIBRARIES)
