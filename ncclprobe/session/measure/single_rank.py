"""What one process does without a store or other ranks: copies, or only a look at the node."""

import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from ncclprobe.engine.diagnose import Question, diagnose
from ncclprobe.engine.doctor import look_s
from ncclprobe.facts.run.samples import Participants
from ncclprobe.host import Host
from ncclprobe.lifetime import leave
from ncclprobe.model.errors import ProbeError, UsageError, reason, without_torch
from ncclprobe.model.measurement import SkippedRow
from ncclprobe.model.values import replace
from ncclprobe.report.progress import Progress, Waiting
from ncclprobe.session.measure.node_snapshot import NodeSnapshot, write_captures
from ncclprobe.session.measure.recorder import Publisher, Recorder
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.identity import Backend, RankIdentity, gpu_identity
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
    progress, look = Progress(wanted=not options.output.quiet), NodeSnapshot(name)
    recorder = Recorder(options, question, Participants(kind, 1, (name,), backend, nnodes=1), (), progress)
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
        return recorder.close(Ending(why=reason(error)))
    finally:
        timer.cancel()
    return recorder.close()


def look(options: Options, question: Question, kind: str, why: str, backend: Backend) -> int:
    """Judge this node by a look at it alone, report, and return the exit code.

    `why`: what keeps everything that was asked from being measured; empty: nothing was asked to be. Raises UsageError
    where a file of the report cannot be written.
    """
    name = socket.gethostname()
    node = NodeSnapshot(name, max(0.0, question.clock + look_s(options.timeout_s) - time.monotonic()))
    with Waiting("looking at this machine", wanted=not options.output.quiet):
        node.start()
        snapshot, capture = node.snapshot(), node.capture()
    unkept = write_captures(options.keep, [(name, capture)]) if options.keep and capture else []
    if not why:
        publisher = Publisher(options)
        publisher.lose(unkept)
        return publisher.publish(diagnose(question, [snapshot]))
    left_out = tuple(SkippedRow(part, None, "unable", why) for part in options.what)
    unable = replace(options, what=(), left_out=left_out)
    recorder = Recorder(unable, question, Participants(kind, 1, (name,), backend, nnodes=1, fallback=why))
    recorder.lose_files(unkept)
    recorder.snapshots = lambda: [snapshot]
    recorder.meet()
    return recorder.close()


def _measure(
    recorder: Recorder, identity: RankIdentity, look: NodeSnapshot, host: Host, progress: Progress, backend: Backend
) -> None:
    progress.show("import torch")
    try:
        import torch
    except ImportError as error:
        raise without_torch(error) from None
    if backend == "nccl" and not torch.cuda.is_available():
        raise UsageError("copies need a GPU that torch can use, or --backend gloo for the host's own memory")
    from ncclprobe.session.measure.copies import Copies

    if backend == "nccl":
        recorder.take_part(replace(recorder.participants, gpus=(gpu_identity(0),)))
    measuring = Copies(identity, host, NoExchange(), progress.show, look, "cuda:0" if backend == "nccl" else "cpu")
    rows = measuring.play()
    recorder.add_copies(rows, measuring.expected)
    if measuring.note:
        recorder.note(measuring.note)
