"""Copies with one rank, without a store or other ranks."""

import socket
import threading
from collections.abc import Sequence
from typing import Any

from ncclprobe.engine.diagnose import Question
from ncclprobe.errors import ProbeError, UsageError, without_torch
from ncclprobe.facts.run.ranks import Participants
from ncclprobe.host import Host
from ncclprobe.interrupt import leave
from ncclprobe.report.progress import Progress
from ncclprobe.session.measure.look import Look
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.identity import Backend, RankIdentity
from ncclprobe.session.watchdog.ending import Ending, reserve_s


class NoExchange:
    """The exchange of a run with one rank."""

    def collect(self, value: Any) -> Sequence[Any]:
        """Return the only value."""
        return [value]

    def share(self, value: Any) -> Any:
        """Return `value`."""
        return value


def copies(options: Options, question: Question, kind: str, host: Host, backend: Backend) -> int:
    """Measure this node's copies, report, and return the exit code. Raises UsageError without torch.

    At --timeout the report says so, and the process ends at once: a copy with a wedged driver never returns.
    """
    name = socket.gethostname()
    progress, look = Progress(wanted=not options.quiet), Look(name)
    gpus = (0,) if backend == "nccl" else ()
    recorder = Recorder(options, question, Participants(kind, 1, (name,), backend, nnodes=1, gpus=gpus), (), progress)
    recorder.snapshots = lambda: [look.snapshot()]
    recorder.meet()
    recorder.open()
    look.start()

    def end_now() -> None:
        leave(recorder.close(Ending(why="--timeout ran out while memory was copied")))

    timer = threading.Timer(options.timeout_s - reserve_s(options.timeout_s), end_now)
    timer.daemon = True
    timer.start()
    try:
        _measure(recorder, RankIdentity(kind, 0, 1, 0, 1, 1, "127.0.0.1", 0), look, host, progress, backend)
    except (ProbeError, RuntimeError) as error:
        return recorder.close(Ending(why=str(error).strip().partition("\n")[0]))
    finally:
        timer.cancel()
    return recorder.close()


def _measure(
    recorder: Recorder, identity: RankIdentity, look: Look, host: Host, progress: Progress, backend: Backend
) -> None:
    progress.show("import torch")
    try:
        import torch
    except ImportError as error:
        raise without_torch(error) from None
    if backend == "nccl" and not torch.cuda.is_available():
        raise UsageError("copies need a GPU that torch can use, or --backend gloo for the host's own memory")
    from ncclprobe.session.measure.copies import Copies

    measuring = Copies(identity, host, NoExchange(), progress.show, look, "cuda:0" if backend == "nccl" else "cpu")
    rows = measuring.play()
    recorder.add_copies(rows, measuring.expected)
    if measuring.note:
        recorder.note(measuring.note)
