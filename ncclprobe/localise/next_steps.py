"""What to collect where the cause of a failure is not named: the exact command or setting, and of whom."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from ncclprobe.facts.files.job_log import JobLog
from ncclprobe.facts.files.log_prefix import names_year
from ncclprobe.model.causes import Cause, Suspect
from ncclprobe.model.hostlist import fold
from ncclprobe.model.values import replace

_MOST_NAMED = 4
_MINUTE_S = 60.0
_SLURM_JOB = re.compile(r"(?:slurm-|StepId=|STEP |JOB )(\d{1,10})\b")
INFO = (
    "start again with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET NCCL_DEBUG_FILE=/tmp/nccl.%h.%p, and "
    "explain these files too"
)
RECORDS = (
    "start again with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 "
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/tmp/flight_ (from torch 2.9 on TORCH_FR_BUFFER_SIZE, TORCH_FR_DUMP_TEMP_FILE), "
    "and explain /tmp/flight_* of all ranks"
)


def with_next_steps(found: Sequence[Cause], log: JobLog | None, *, records: bool) -> tuple[Cause, ...]:
    """Return the causes, those that are not named with what would name them. `records`: flight records were given.

    Of ranks that fell silent their host and minute come first: what the kernel and the scheduler say of them.
    """
    steps = tuple(_steps(found, log, records))
    return tuple(
        replace(each, collect=(*_of_suspects(each.suspects, log), *(() if each.confidence == "named" else steps)))
        for each in found
    )


def _of_suspects(suspects: Sequence[Suspect], log: JobLog | None) -> Iterator[str]:
    for each in suspects[:_MOST_NAMED]:
        span = ""
        if each.time is not None and names_year(each.time):
            begin, end = (datetime.fromtimestamp(each.time + by, timezone.utc) for by in (-_MINUTE_S, 5 * _MINUTE_S))
            span = f" --utc --since '{begin:%Y-%m-%d %H:%M:%S}' --until '{end:%Y-%m-%d %H:%M:%S}'"
        on = f"on {each.host}" if each.host else f"on the host of rank {each.rank}"
        yield f"{on}, as root: `journalctl -k{span} | grep -iE 'oom|killed|xid|segfault|nvrm|mce'`"
    if suspects and log:
        if job := _slurm_job(log):
            yield f"what the scheduler saw: `sacct -j {job} -o JobID,State,ExitCode,DerivedExitCode,NodeList,MaxRSS`"
        elif any(host for host in {each.host for each in suspects} if "-worker-" in host or "-master-" in host):
            pods = ", ".join(f"`kubectl describe pod {each.host}`" for each in suspects[:_MOST_NAMED])
            yield f"what the scheduler saw: {pods}: its last state, OOMKilled and exit code"


def _slurm_job(log: JobLog) -> str:
    """Return the number of the Slurm job, of a log's name or of a line; empty: none says it."""
    names = (stream.name for stream in log.streams)
    lines = (event.text for event in log.having("slurmstepd: error", "srun: "))
    found = next((each for text in (*names, *lines) if (each := _SLURM_JOB.search(text))), None)
    return found[1] if found else ""


def _steps(found: Sequence[Cause], log: JobLog | None, records: bool) -> Iterator[str]:
    if log is None:
        yield "explain the logs of the ranks together with these files"
        return
    if missing := missing_ranks(log):
        yield f"explain the logs of {_ranks(missing)} too: what they said last is not known"
    if not records and any(_waited(each) for each in found):
        yield RECORDS
    if not any(event.level == "INFO" and event.pid is not None for event in log.events):
        yield INFO
    hosts = [host for host in dict.fromkeys(event.host for event in log.events) if host]
    on = f" on {fold(hosts)}" if 0 < len(hosts) <= _MOST_NAMED else " on every host"
    yield f"explain the kernel's log too: `journalctl -k --since -1d > kernel.$(hostname).log`{on}, as root"


def missing_ranks(log: JobLog) -> tuple[int, ...]:
    """Return the ranks of the job of which there is no line, as far as a line says how many there are."""
    return tuple(rank for rank in range(log.world_size or 0) if rank not in log.ranks)


def _waited(cause: Cause) -> bool:
    """Return whether a line speaks of a collective that took too long."""
    texts = [each.text for each in cause.evidence] + [e.text for c in cause.consequences for e in c.evidence]
    return any("Watchdog" in text or "imeout" in text or "imed out" in text for text in texts)


def _ranks(ranks: Sequence[int]) -> str:
    numbers = fold([str(rank) for rank in ranks]).strip("[]")
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"
