"""The Python stack that shows a rank's position: its first thread's, or that of the thread which the
first waits for.
"""

from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.facts.field import attempt
from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.facts.job.meeting import decoded
from ncclprobe.host import Host
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field

C10D = "/torch/distributed/distributed_c10d.py"
_OF_THREADS = ("/threading.py", "/concurrent/futures/_base.py", "/queue.py", "/concurrent/futures/thread.py")
"""Files whose functions wait for another thread."""
_FOR_ITS_END = ("join", "result", "shutdown", "_shutdown")


FIRST = "the first thread"


class LiveFrame(FlightFrame, frozen=True):
    """A frame of a running process. `values` are the variables that show what its call waits for."""

    values: Mapping[str, str] = field(default_factory=dict)


class ThreadPlace(Struct, frozen=True):
    """The position of a thread in the program: its innermost frame there, and its stack."""

    name: str
    frame: FlightFrame
    first: bool = False
    frames: tuple[FlightFrame, ...] = ()

    @property
    def call(self) -> str:
        """Return the function of torch.distributed that it is in; empty: it is in none."""
        return next((each.name for each in reversed(self.frames) if each.filename.endswith(C10D)), "")

    def __str__(self) -> str:
        """Return ``saver in barrier, train.py:12 in save``."""
        name, call = FIRST if self.first else self.name, f"{self.call}, " if self.call else ""
        return f"{name} in {call}{self.frame.place} in {self.frame.name}"


class ThreadStack(Struct, frozen=True):
    """The stack that shows a rank's position, innermost frame first, and the positions of the program's
    other threads.
    """

    frames: tuple[LiveFrame, ...] = ()
    others: tuple[ThreadPlace, ...] = ()


class _Thread(Struct, frozen=True):
    os_thread_id: int | None
    frames: tuple[LiveFrame, ...]
    thread_name: str | None = None


def stack(host: Host, pid: int, number: int) -> ThreadStack | Absent:
    """Return a process's stack, or why it is unknown."""

    def read() -> ThreadStack:
        threads: tuple[_Thread, ...] = decoded(host.ask("stacks", pid, number), tuple[_Thread, ...])
        chosen = _decisive_thread(next((thread for thread in threads if thread.os_thread_id == pid), None), threads)
        return ThreadStack(chosen.frames, tuple(_positions(threads, chosen, pid))) if chosen else ThreadStack()

    return attempt(read)


def _decisive_thread(first: _Thread | None, threads: Sequence[_Thread]) -> _Thread | None:
    """Return the first thread, or the thread it waits for.

    That is a thread in a collective; or, if the first waits for an end or a result, the thread that it joins, or the
    only other thread of the program.
    """
    if first is None or not first.frames or not first.frames[0].filename.endswith(_OF_THREADS):
        return first
    others = [thread for thread in threads if thread is not first]
    calls = [each for each in others if any(frame.filename.endswith(C10D) for frame in each.frames)]
    own = [each for each in others if not all(frame.of_library for frame in each.frames)]
    ends = [frame for frame in first.frames if frame.function in _FOR_ITS_END and frame.filename.endswith(_OF_THREADS)]
    joined = {frame.values.get("self", "") for frame in ends} - {""}
    same = [each for each in others if joined & {frame.values.get("self") for frame in each.frames}]
    return next(iter(same or calls), None) or (own[0] if ends and len(own) == 1 else first)


def _positions(threads: Sequence[_Thread], chosen: _Thread, pid: int) -> Iterator[ThreadPlace]:
    for each in threads:
        first = each.os_thread_id == pid
        own = (frame for frame in each.frames if not frame.of_library)
        frame = next(own, each.frames[0] if first and each.frames else None)
        if each is not chosen and frame is not None:
            yield ThreadPlace(each.thread_name or "a thread", frame, first, each.frames)
