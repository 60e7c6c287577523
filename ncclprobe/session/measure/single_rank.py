"""A run of one process without a store or other ranks: it only examines the node."""

import socket
import time

from ncclprobe.engine.diagnose import Question, diagnose
from ncclprobe.engine.doctor import look_s
from ncclprobe.facts.run.samples import Participants
from ncclprobe.model.measurement import SkippedRow
from ncclprobe.model.values import replace
from ncclprobe.report.progress import Waiting
from ncclprobe.session.measure.node_snapshot import NodeSnapshot, write_captures
from ncclprobe.session.measure.recorder import Publisher, Recorder
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.identity import Backend


def look(options: Options, question: Question, kind: str, why: str, backend: Backend) -> int:
    """Judge this node without measuring, report, and return the exit code.

    `why`: why some of the requested parts cannot be measured; empty: none were requested. Raises UsageError if a file
    of the report cannot be written.
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
