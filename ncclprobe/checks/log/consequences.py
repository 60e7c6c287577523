"""Lines that follow from something else: what ranks say when another rank, or another layer, has failed."""

from collections.abc import Iterator

from ncclprobe.checks.log import cause, consequence
from ncclprobe.facts.files.job_log import JobLog
from ncclprobe.model.findings import Finding

_UNHANDLED = (
    "unhandled system error",
    "unhandled cuda error",
    "internal error - please report",
    "remote process exited or",
)


@cause(
    signs=_UNHANDLED,
    bad=lambda: ["[rank3]: torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled system error"],
    good=lambda: ["node1:77:77 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>"],
)
def nccl_returned_an_error(log: JobLog) -> Iterator[Finding]:
    """NCCL returned an error to the program.

    Right: no log says that NCCL returned an error.
    Why: the text of a return code (ncclGetErrorString in src/init.cc) says only of which kind the error was; the line
    that says why is an earlier one, of this rank or of another.
    Fix: look at the first NCCL WARN line of this rank; without one, start again with NCCL_DEBUG=INFO.
    """
    for event in log.having(*_UNHANDLED):
        yield consequence(log, event, "NCCL returned an error to the program", action="none")
