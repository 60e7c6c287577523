"""Run the user's own script on one rank, then on the ranks of one node, then on all (``accept --ladder -- CMD``).

Each rank starts the command as torchrun would: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR
and a MASTER_PORT that was free a moment ago; what launchers set besides is taken away. The first rank whose command
ends badly has the others ended, as has the end of the rung's time, which is an equal share of what is left.
"""

import contextlib
import json
import math
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

from ncclprobe.host import opener
from ncclprobe.host.command import abandon, start
from ncclprobe.host.settings import as_started
from ncclprobe.model import training
from ncclprobe.model.measurement import SkippedRow
from ncclprobe.model.traffic import ScriptRung
from ncclprobe.model.training import Rung
from ncclprobe.model.values import Struct
from ncclprobe.report.traffic import RUNGS
from ncclprobe.session.measure.context import RankContext
from ncclprobe.session.options import Options
from ncclprobe.session.ranks import rank_files
from ncclprobe.session.ranks.store import free_port

_LAUNCHERS = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE"),
    *("SLURM_STEP_", "OMPI_COMM_WORLD_", "OMPI_MCA_", "PMI_", "PMIX_", "TORCHELASTIC_", "PET_", "NCCLPROBE_"),
    *("GROUP_", "ROLE_", "NNODES", "NODE_RANK", "CROSS_", "LOCAL_SIZE"),
)
"""How names begin that say how many ranks there are: a script that reads them would wait for those that do not run."""
_POLL_S, _ASK_S = 0.1, 1.0  # for its own end, and for that of others: thousands of ranks ask one store
_REPORT_S = 3.0
"""What a rung leaves of the time to those after it and to the report, besides their shares."""
_TAIL_BYTES = 4096
_MOST_SAID = 300


By = Literal["seconds", "metric", "metric per rank"]
Ended = Literal["well", "badly", "late"]


def by(options: Options) -> By:
    """Return what rungs are compared by."""
    if not options.script_metric:
        return "seconds"
    return "metric per rank" if options.script_per_rank else "metric"


def play(run: RankContext) -> bool:
    """Run the command on each rung, lowest first, until one does not end well."""
    hosts = tuple(run.exchange.share(list(run.hosts)))
    rungs = training.plan(hosts, pairs=False)
    for place, rung in enumerate(rungs):
        run.set_phase(f"ladder, {RUNGS[rung.name]}: the command")
        left_s = run.watchdog.left_s() if run.watchdog else run.options.timeout_s
        limit_s, port = run.exchange.share([(left_s - _REPORT_S) / (len(rungs) - place), free_port()])
        members = rung.groups[0]
        flag = f"script/{place}"
        mine = _end(run, hosts, rung, limit_s, port, flag) if run.identity.rank in members else None
        run.set_phase(f"ladder, {RUNGS[rung.name]}: wait for the ranks")
        ends = run.exchange.collect(mine)
        row = _row(rung, hosts, [(rank, ends[rank]) for rank in members], by(run.options)) if ends else None
        run.record([row] if row else [])
        if not run.exchange.share(row is not None and row.ended == "well"):
            run.record(SkippedRow(f"script on {RUNGS[each.name]}", None, "lost", "the rung below did not end well")
                       for each in rungs[place + 1 :])  # fmt: skip
            break
    return True


class End(Struct, frozen=True):
    """The end of one rank's command: after how many seconds, with which code (null: we ended it), its last line of
    output, and the number of --ladder-metric.
    """

    seconds: float
    code: int | None
    late: bool = False
    said: str = ""
    metric: float | None = None


def _end(run: RankContext, hosts: Sequence[str], rung: Rung, limit_s: float, port: int, flag: str) -> dict[str, Any]:
    """Run the command on this rank to its end, or until it is ended; return how it ended, as JSON's types."""
    rank = run.identity.rank
    variables = of_rank(_as_given(as_started()), hosts, rung.groups[0], rank) | {"MASTER_PORT": str(port)}
    variables["MASTER_ADDR"] = run.identity.address
    with _output(run.options.keep, f"ladder-{rung.name}-rank{rank}.log") as output:
        began = time.monotonic()
        process = start(run.options.script, stdout=output, stderr=output, whole=variables)
        try:
            code = _wait(process, began + limit_s, lambda: run.exchange.raised(flag))
        finally:
            abandon(process)
        seconds = time.monotonic() - began
        if code:
            run.exchange.raise_flag(flag)
        late = code is None and seconds >= limit_s
        return {
            "seconds": seconds,
            "code": code,
            "late": late,
            **_told(output, run.options.script_metric, bad=code != 0),
        }


def _wait(process: "subprocess.Popen[bytes]", deadline: float, others_ended: Callable[[], bool]) -> int | None:
    """Return the code of `process`; None: it is time, or the command of another rank ended badly."""
    ask_at = time.monotonic() + _ASK_S
    while (code := process.poll()) is None:
        now = time.monotonic()
        if now >= deadline or (now >= ask_at and others_ended()):
            return None
        ask_at = ask_at if now < ask_at else now + _ASK_S
        time.sleep(_POLL_S)
    return code


def _as_given(variables: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` with what a rank of --nproc was given in another form than its user has."""
    given = json.loads(variables.get(rank_files.GIVEN, "{}"))
    kept = {name: value for name, value in variables.items() if name not in given}
    return kept | {name: value for name, value in given.items() if value is not None}


def of_rank(variables: Mapping[str, str], hosts: Sequence[str], members: Sequence[int], rank: int) -> dict[str, str]:
    """Return the environment of `rank`, of the ranks `members`, as torchrun makes it but for rank 0's address."""
    kept = {name: value for name, value in variables.items() if not name.startswith(_LAUNCHERS)}
    own = [each for each in members if hosts[each] == hosts[rank]]
    nodes = list(dict.fromkeys(hosts[each] for each in members))
    place = {
        "RANK": members.index(rank),
        "WORLD_SIZE": len(members),
        "LOCAL_RANK": own.index(rank),
        "LOCAL_WORLD_SIZE": len(own),
        "GROUP_RANK": nodes.index(hosts[rank]),
        "GROUP_WORLD_SIZE": len(nodes),
    }
    return kept | {name: str(value) for name, value in place.items()}


def _output(keep: Path | None, name: str) -> IO[bytes]:
    """Open the file that the command writes to: one in --keep, otherwise one without a name, which ends with us."""
    if keep is not None:
        with contextlib.suppress(OSError), opener.place(keep / name, follow=False) as end:
            end.refuse_makers()
            return os.fdopen(end.open(os.O_RDWR | os.O_CREAT | os.O_TRUNC), "w+b")
    return tempfile.TemporaryFile()


def _told(output: IO[bytes], metric: str, *, bad: bool) -> dict[str, Any]:
    size = output.seek(0, os.SEEK_END)
    said = ""
    if bad:
        output.seek(max(0, size - _TAIL_BYTES))
        tail = [line.strip() for line in output.read().decode(errors="replace").splitlines()]
        said = next((line for line in reversed(tail) if line), "")[:_MOST_SAID]
    output.seek(0)
    lines = iter(partial(output.readline, _LINE_BYTES), b"")
    return {"said": said, "metric": metric_of(lines, metric) if metric else None}


def _row(rung: Rung, hosts: Sequence[str], ends: Sequence[tuple[int, Any]], by: By) -> ScriptRung:
    """Return the row of a rung, from how the command ended on each of its ranks."""
    by_rank = {rank: End(**end) for rank, end in ends if end is not None}
    failed = {rank: end for rank, end in by_rank.items() if end.code}
    first = min(failed or by_rank, key=lambda rank: by_rank[rank].seconds) if failed else next(iter(by_rank))
    ended: Ended = "badly" if failed else "late" if any(end.code is None for end in by_rank.values()) else "well"
    order = [first_rank := ends[0][0], *(rank for rank, _ in reversed(ends) if rank != first_rank)]
    metrics = (by_rank[rank].metric for rank in order if rank in by_rank)
    return ScriptRung(
        rung=rung.name,
        ranks=len(ends),
        nodes=len({hosts[rank] for rank, _ in ends}),
        seconds=max(end.seconds for end in by_rank.values()),
        metric=next((each for each in metrics if each is not None), None),
        by=by,
        ended=ended,
        rank=first if failed else None,
        host=hosts[first] if failed else "",
        code=by_rank[first].code if failed else None,
        said=by_rank[first].said if ended != "well" else "",
    )


_DIGITS = r"([-+]?[0-9](?:[0-9,_]{0,24}[0-9])?(?:\.[0-9]{1,24})?(?:[eE][-+]?[0-9]{1,3})?)([kKM](?![A-Za-z]))?"
_AFTER = re.compile(rf"[ \t:=]{{0,8}}{_DIGITS}")
_BEFORE = re.compile(rf"(?:^|[^\w.]){_DIGITS}[ \t]{{0,8}}$")
_TIMES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6}
_WITHIN = 64
_LINE_BYTES = 1 << 16


def metric_of(output: Iterable[bytes], text: str) -> float | None:
    """Return the last number right after `text`, behind blanks, a colon or an equals sign, or right before it, as in
    ``8607 samples/s``; ``12.5k`` is 12,500. None: none was found.
    """
    found = None
    for line in output:
        before, there, after = line.decode(errors="replace").rpartition(text)
        number = (_AFTER.match(after) or _BEFORE.search(before[-_WITHIN:])) if there else None
        if number:
            found = float(number[1].replace(",", "").replace("_", "")) * _TIMES[number[2] or ""]
    return found if found and math.isfinite(found) and found > 0 else None
