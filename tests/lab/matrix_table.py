"""Plays the fault matrix, or a part of it, and writes the table."""

import datetime
import fnmatch
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import faults
from .hosts import Lab
from .matrix import Outcome, Row, Setup
from .matrix_gloo import GLOO
from .matrix_healthy import HAND_COUNTS, HEALTHY
from .matrix_meeting import MEETING
from .matrix_nodes import NODES, new_connections
from .run import TOKEN, by_hand, ended, files_opened, give_gpus, machine, play

ROWS = (*MEETING, *NODES, *GLOO)
AT_ONCE = 2
Runs = list[tuple[Row, int]]


def chosen(rows: Iterable[Row], select: str, every: bool) -> Runs:
    """Rows whose name fits, each at all its numbers of hosts, or at the smallest only."""
    fitting = [row for row in rows if fnmatch.fnmatchcase(row.name, select)]
    return [(row, count) for row in fitting for count in (row.hosts if every else row.hosts[:1])]


def played(runs: Runs, tell: Callable[[Outcome], None]) -> list[Outcome]:
    """Play them, two at a time where time is not what is measured."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = {}
        patient = [run for run in runs if not run[0].timed]
        for run, outcome in zip(patient, pool.map(lambda run: play(*run), patient), strict=True):
            found[run] = outcome
            tell(outcome)
    for run in runs:
        if run[0].timed:
            found[run] = play(*run)
            tell(found[run])
    return [found[run] for run in runs]


def line(outcome: Outcome) -> str:
    """One outcome for the terminal."""
    state = "ok  " if outcome.well else "ODD "
    return f"{state} {outcome.count:3} hosts {outcome.seconds:6.1f} s  {outcome.row.name}  {outcome.told()}".rstrip()


def table(outcomes: Sequence[Outcome]) -> str:
    """The faults, as Markdown."""
    counts = Counter(each.verdict for each in outcomes)
    alarms = sum(len(each.false_alarms) for each in outcomes)
    outlived = sum(bool(each.outlived) for each in outcomes)
    codes = sum(bool(each.wrong_codes) for each in outcomes)
    lines = [
        f"{len(outcomes)} runs of {len({each.row.name for each in outcomes})} faults: "
        f"{counts['exact']} named exactly (id, node, direction), {counts['misnamed']} misnamed, "
        f"{counts['missed']} missed; {alarms} false alarms, {codes} with another exit code than wanted, "
        f"{outlived} outlived --timeout by more than 2 s. Slowest verdict {max(o.seconds for o in outcomes):.1f} s.",
        "",
        "| fault | hosts | says (first of what is wanted) | blame | exit n0/victim/others | verdict | s | deadline |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        wanted = each.row.expect[0]
        codes_said = "/".join("any" if code is None else str(code) for code in each.row.codes)
        verdict = "exact" if each.well else each.told() or each.verdict
        lines.append(
            f"| {each.row.name} | {each.count} | {_cell(each.headline or wanted.id)} | {wanted.blame or 'any'} "
            f"| {codes_said} | {_cell(verdict)} | {each.seconds:.1f} | {each.row.deadline_s:g} |"
        )
    return "\n".join(lines)


def healthy_table(outcomes: Sequence[Outcome]) -> str:
    """Wall times of healthy runs, and what was found."""
    lines = ["| lab | " + " | ".join(f"{n} hosts, s" for n in HAND_COUNTS) + " | above a note |", "|---|" + "---|" * 5]
    for name in dict.fromkeys(each.row.name for each in outcomes):
        mine = {each.count: each for each in outcomes if each.row.name == name}
        cells = [f"{mine[n].seconds:.1f}" if n in mine else "" for n in HAND_COUNTS]
        odd = "; ".join(f"{n}: {each.told()}" for n, each in mine.items() if not each.well)
        lines.append(f"| {name.removeprefix('healthy: ')} | {' | '.join(cells)} | {_cell(odd) or 'nothing'} |")
    return "\n".join(lines)


def opened_table(counts: Sequence[int] = HAND_COUNTS) -> str:
    """Files opened per node."""
    lines = ["| hosts | files opened by node 0 | by another node, median |", "|---|---|---|"]
    for count in counts:
        hub, *others = files_opened(count)
        lines.append(f"| {count} | {hub} | {sorted(others)[len(others) // 2]} |")
    return "\n".join(lines)


def two_faults(folder: Path, count: int = 8) -> None:
    """One run with two faults at once: its report as text and as JSON, without a path of this machine."""
    row = Row("two faults", lambda setup: None, (), timeout_s=60.0)
    with Lab(hosts=count) as lab:
        give_gpus(lab)
        for host in lab.hosts:
            host.env["NCCLPROBE_TOKEN"] = TOKEN
        lab.stack.enter_context(faults.environment(lab.hosts[2], NCCL_BUFFSIZE="8388608"))
        lab.stack.enter_context(faults.rules(lab.hosts[5], new_connections("drop"), "in"))
        setup = Setup(lab, lab.hosts[5], gpus=True)
        done = ended(by_hand(setup, row), time.monotonic() + row.timeout_s)
        texts = {"txt": done["n0"].out, "json": (lab.folder / "n0.json").read_text()}
        others = "".join(f"{name} exits {each.code}: {each.err}" for name, each in done.items() if name != "n0")
        texts["txt"] += f"\nWhat the other nodes say:\n{others}"
        for suffix, text in texts.items():
            clean = text.replace(f"{lab.folder}/", "").replace(str(Path(sys.prefix)), "venv")
            (folder / f"eight-hosts-two-faults.{suffix}").write_text(clean)


def page(tell: Callable[[Outcome], None], version: str, every: bool) -> str:
    """The report of all rows: with `every` at all their numbers of hosts, else at the smallest."""
    began = time.monotonic()
    bad = played(chosen(ROWS, "*", every), tell)
    well = played(chosen(HEALTHY, "*", every), tell)
    parts = [
        "# The fault matrix\n",
        f"ncclprobe {version}, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}, {machine()}. "
        f"Written by `scripts/lab matrix {'--all ' if every else ''}--write PATH`; rows are in tests/lab/matrix_*.py"
        + (".\n" if every else ", here each at its smallest number of hosts.\n"),
        "## Faults\n", table(bad), "\n## The healthy lab: seconds from the first start to the last end\n",
        healthy_table(well),
        "\n## Files opened (open, openat, openat2 under strace, by hand)\n",
        opened_table(HAND_COUNTS if every else HAND_COUNTS[:1]),
        f"\nAll of it took {(time.monotonic() - began) / 60:.0f} minutes.\n",
    ]  # fmt: skip
    return "\n".join(parts)


def _cell(text: str) -> str:
    text = re.sub(r"\S{0,64}/ncclprobe-lab-[^/ ]{1,64}/", "", text)  # the lab's own folder
    return text.replace("|", "\\|").replace("\n", " ")
