"""What stands before a program's own words in a line of a log: launcher, container, time, colour, NCCL's own head.

Sources: torch/distributed/elastic/multiprocessing/tail_log.py (``[default3]:``), torch/csrc/distributed/c10d/socket.cpp
and c10/util/Logging.cpp (``[rank3]:``, ``[E103 10:00:00.1 ProcessGroupNCCL.cpp:607] [Rank 3]``), srun(1) ``--label``,
mpirun(1) ``--tag-output``, NCCL's src/debug.cc.
"""

import re

from ncclprobe.model.values import Struct

MOST_TEXT = 4096
"""Characters of a line that are kept: NCCL cuts its own at 1,023 bytes, Python's tracebacks may be long."""

_ANSI = re.compile(r"\x1b\[[0-9;]{0,32}[A-Za-z]")
_LAUNCHER = re.compile(
    r"\[(?:default|rank)?(?P<torchrun>\d{1,7})\]:? ?"  # torchrun's [default3]: and torch's own [rank3]:
    r"|(?P<srun>\d{1,7}): "
    r"|\[\d{1,7},(?P<mpirun>\d{1,7})\]<std(?:out|err|diag)>: ?"
)
_NCCL = re.compile(
    r"(?P<host>[^\s:\[\]>]{1,256}):(?P<pid>\d{1,10}):\d{1,10} (?:\[-?\d{1,4}\] )?"
    r"(?:(?P<place>[^\s:]{1,256}:\d{1,6})(?: \([^)]{0,128}\))? )?NCCL (?P<level>INFO|WARN|TRACE|CALL|VERSION) "
)


class LogLine(Struct, frozen=True):
    """One line without what stood before it; see :class:`ncclprobe.facts.files.job_log.LogEvent` for the fields."""

    text: str
    rank: int | None = None
    host: str = ""
    pid: int | None = None
    time_s: float | None = None
    level: str = ""
    place: str = ""


def cleaned(raw: bytes) -> LogLine:
    """Return what one line says and who wrote it, as far as the line itself tells. Never fails."""
    text = _ANSI.sub("", raw[: 4 * MOST_TEXT].decode("utf-8", "replace")).replace("\0", "").rstrip()
    rank = None
    while found := _LAUNCHER.match(text):
        rank = int(found["torchrun"] or found["srun"] or found["mpirun"])
        text = text[found.end() :]
    if nccl := _NCCL.search(text[:MOST_TEXT]):
        message = text[nccl.end() :][:MOST_TEXT].strip()
        return LogLine(message, rank, nccl["host"], int(nccl["pid"]), None, nccl["level"], nccl["place"] or "")
    return LogLine(text[:MOST_TEXT], rank)
