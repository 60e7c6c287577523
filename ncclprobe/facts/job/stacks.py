"""The Python stack of a rank that says where it is: of its first thread, or of that for which this one waits."""

from collections.abc import Sequence

from ncclprobe.facts.field import attempt
from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.facts.job.meeting import decoded
from ncclprobe.host import Host
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

C10D = "/torch/distributed/distributed_c10d.py"
_OF_THREADS = ("/threading.py", "/concurrent/futures/_base.py", "/queue.py", "/concurrent/futures/thread.py")
"""Where a thread waits for another one."""


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
    """Return the stack of the first thread, or of that in a collective for which the first one waits."""
    if not first or not first[0].filename.endswith(_OF_THREADS):
        return first
    others = (thread.frames for thread in threads if thread.frames is not first)
    return next((each for each in others if any(frame.filename.endswith(C10D) for frame in each)), first)
