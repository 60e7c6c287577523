"""The doctor's word against the deed: right after it, on the same hosts, the job initialises and reduces 4 MiB.

The job is torch's gloo; rows with GPUs are not played. What dies, or has not ended within a minute, may not be called
Ready; a healthy lab is Ready and ends well.
"""

import datetime
import fnmatch
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ncclprobe.model.values import Struct

from . import run
from .hosts import Host
from .matrix import Outcome, Row, Setup
from .matrix_deed import NEW
from .matrix_healthy import HEALTHY
from .matrix_table import ROWS
from .processes import Completed, LabError, Running

BOUND_S, IMPORT_S = 60, 120.0
COUNT = 1 << 20
"""Elements of 4 bytes."""
GLOO = f"""
import signal
import torch
import torch.distributed as dist
signal.alarm({BOUND_S})
dist.init_process_group("gloo")
whole = torch.ones({COUNT})
dist.all_reduce(whole)
print("right" if bool(whole.eq(dist.get_world_size()).all()) else "wrong", flush=True)
dist.destroy_process_group()  # else a thread of its may outlive the interpreter: "terminate called"
"""
_ENDS = {True: "well", False: "dead", None: "not played"}
_DECORATION = re.compile(r"^\[(rank\d+|[WEI]\d{4} [\d:.]+ \d* ?\S*)\]:?\[?[^\]]*\]?\s*|\x1b\[[\d;]*m")
_NOISE = re.compile(
    r"^\s*(frame #|File |Exception raised from|\^|~|Traceback|<omitting)|^\s*$"
    r"|hostname of the client socket cannot be retrieved"  # said in every run here: no name server
)


class Deed(Struct, frozen=True):
    """One row: whether the doctor let the job go, whether the job ended well (None: not played), and its last words."""

    name: str
    count: int
    ready: bool
    well: bool | None
    last_words: str
    healthy: bool

    @property
    def agrees(self) -> bool:
        """Whether word and deed do not contradict each other: who is stricter than the deed does not."""
        return not (self.ready and self.well is False) and (self.ready or not self.healthy)


def play(row: Row, count: int, healthy: bool = False) -> Deed:
    """The doctor, and then the job, under one fault."""
    with run.prepared(row, count) as setup:
        outcome = run.examine(setup, row)
        jobs = _start(setup)
        if jobs is None:
            well, words = None, "there is no GPU"
        else:
            with suppress(LabError):  # whom a fault strikes while it connects may be through before
                for hook in setup.after:
                    hook(jobs)
            well, words = _end(jobs)
        return Deed(row.name, count, ready(outcome), well, words, healthy)


def _played(row: Row) -> Deed:
    try:
        return play(row, row.hosts[0], healthy=row in HEALTHY)
    except LabError as error:
        return Deed(row.name, row.hosts[0], ready=False, well=None, last_words=f"the lab: {error}", healthy=False)


def ready(outcome: Outcome) -> bool:
    """Whether a gate would start the job: by node 0's exit code, or the worst where it has none."""
    return outcome.codes.get("n0", max(outcome.codes.values())) == 0


def _start(setup: Setup) -> dict[str, Running] | None:
    """One rank on every host that takes part; None where this job cannot be played here."""
    if setup.gpus:
        return None
    present = [host for host in setup.lab.hosts if host.name not in setup.absent]
    commands = {host.name: _gloo(setup, host) for host in present}
    return {name: setup.lab[name].start(*command) for name, command in commands.items()}


def _rank(setup: Setup, host: Host) -> dict[str, str]:
    given = run.flags(setup, host)
    own = {"RANK": given["node_rank"], "WORLD_SIZE": given["nnodes"], "LOCAL_RANK": "0"}
    return own | {"MASTER_ADDR": given["master_addr"], "MASTER_PORT": given["master_port"], "OMP_NUM_THREADS": "1"}


def _gloo(setup: Setup, host: Host) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-c", GLOO], _rank(setup, host)


def _end(jobs: Mapping[str, Running]) -> tuple[bool, str]:
    """Whether all ranks ended well, and the last words of the first that did not."""
    end_s = time.monotonic() + BOUND_S + IMPORT_S
    while time.monotonic() < end_s:
        codes = {name: job.popen.poll() for name, job in jobs.items()}
        if all(code == 0 for code in codes.values()) or any(codes.values()):
            break
        time.sleep(0.05)
    dead = [name for name, job in jobs.items() if job.popen.poll() != 0]
    first = next((name for name in dead if jobs[name].popen.poll()), dead[0] if dead else "")
    words = f"{first}: {_last_words(jobs[first].wait(0.0))}" if first else ""
    for job in jobs.values():
        job.wait(0.0)
    return not dead, words


def _last_words(done: Completed) -> str:
    """The last line that tells something, without torch's decoration."""
    if done.timed_out or done.code in (-14, 124):
        return f"has not ended in {BOUND_S} s"
    lines = [line for line in (*done.out.splitlines(), *done.err.splitlines()) if not _NOISE.search(line)]
    return _DECORATION.sub("", lines[-1]).strip()[:300] if lines else f"exit {done.code}"


def played(select: str, at_once: int, tell: Callable[[Deed], None], *, gpus_alone: bool) -> list[Deed]:
    """Play the rows whose names fit, so many at a time: a job that is dead costs a minute of waiting."""
    rows = [row for row in (*HEALTHY, *ROWS, *NEW) if fnmatch.fnmatchcase(row.name, select)]
    rows = [row for row in rows if row.gpus or not gpus_alone]
    found = []
    with ThreadPoolExecutor(at_once) as pool:
        for deed in pool.map(_played, rows):
            found.append(deed)
            tell(deed)
    return found


def line(deed: Deed) -> str:
    """One row for the terminal."""
    return (
        f"{'Ready    ' if deed.ready else 'not Ready'}  {_ENDS[deed.well]:10}  {deed.name}  {deed.last_words}".rstrip()
    )


def page(deeds: Sequence[Deed], version: str) -> str:
    """The report: how many rows disagree, and all rows, those first."""
    known = [each for each in deeds if each.well is not None]
    odd = [each for each in deeds if not each.agrees]
    strict = sum(bool(each.well) and not each.ready for each in known)
    lines = [
        "# The doctor's word and the deed\n",
        f"ncclprobe {version}, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}, {run.machine()}. Written by "
        "`scripts/lab deed --write PATH`. On the hosts of each row, right after the doctor, a job initialises and "
        "reduces 4 MiB: torch's gloo, unless the row has GPUs. Dead: a rank failed, or had not ended in "
        f"{BOUND_S} s.\n",
        f"{len(known)} of {len(deeds)} rows were played to the deed. "
        f"{sum(not each.well for each in known)} jobs died. **{len(odd)} rows disagree**: called Ready and dead, or "
        f"healthy and not called Ready. {strict} went well and were not called Ready: the doctor may be stricter.\n",
        "| row | hosts | the doctor | the deed | last words of the first that died |",
        "|---|---|---|---|---|",
    ]
    for each in (*odd, *(each for each in deeds if each.agrees)):
        cells = [each.name, str(each.count), "Ready" if each.ready else "not Ready", _ENDS[each.well], each.last_words]
        cells[3] += "" if each.agrees else ", **disagrees**"
        lines.append(f"| {' | '.join(cell.replace('|', '/')[:160] for cell in cells)} |")
    return "\n".join([*lines, ""])
