"""Make the page of what `ncclprobe attach` said of jobs that hang, from the rows that scripts/hangs.py has written."""

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from hang_rank import HEALTHY
from hangs import EXPECTED, MODES, PLACES, WITH_NCCL

Row = dict[str, Any]
NOT_MADE = """\
## Not made here

- **Swap**: this machine has none, and a swap area would be everybody's. That a rank is in swap is said as evidence
  (64 MiB and more), by a test.
- **Another size**: gloo ends all ranks with an error, so there is no hang to look at; with NCCL it hangs (last table).
- **Rights**: another user's ranks were not played; what is missing then is in the tests.
- A NIC, a GPU or a switch that is broken: hosts here are network namespaces of one kernel.
"""


def page(rows: Sequence[Row]) -> str:
    """Return the page. Of a way that was played twice in a mode the later row counts, and that is said."""
    last = {(row["way"], row["mode"]): row | {"place": _placed(row)} for row in rows}
    again = sorted(
        {each["way"] for at, each in enumerate(rows) if any(_key(each) == _key(one) for one in rows[at + 1 :])}
    )
    ways = list(dict.fromkeys(row["way"] for row in rows))
    gloo = [row for row in last.values() if row["mode"] in MODES]
    nccl = [row for row in last.values() if row["mode"] not in MODES]
    return "\n".join((*_head(gloo, again, _first(rows)), *_table([way for way in ways if way not in HEALTHY], last),
                      *_healthy([way for way in ways if way in HEALTHY], last), *_of_nccl(nccl), NOT_MADE))  # fmt: skip


def _first(rows: Sequence[Row]) -> str:
    """Return what became of the answers that were asked for again."""
    replaced = [each for at, each in enumerate(rows) if any(_key(each) == _key(one) for one in rows[at + 1 :])]
    return f"of their {len(replaced)} first answers {sum(each['verdict'] == 'right' for each in replaced)} were right"


def _key(row: Row) -> tuple[str, str]:
    return row["way"], row["mode"]


def _placed(row: Row) -> bool:
    """Return whether the line, or what is waited for, is said: rows may be older than the words that are wanted."""
    return bool(row["place"]) or any(word in row["said"] for word in PLACES.get(row["way"], ()))


def _head(rows: Sequence[Row], again: Sequence[str], first: str) -> Iterator[str]:
    yield "# Jobs that hang, and what attach says of them"
    loads = sorted(row["load"] for row in rows)
    yield f"""
Played by `scripts/hangs.py` on two cores that other programs used too (load {loads[0]:.0f} to {loads[-1]:.0f}, median
{statistics.median(loads):.0f}): three ranks of torch with gloo, of which rank 1 does what is named after six steps.
Jobs of hosts have each rank on a host of network namespaces, and what the hosts kept is read together by `explain`.
*Right*: the class that is wanted, rank 1 and no other. *+*: its line of the program, or what it waits for (file, lock,
process, connection, rank), is said too. Looked at 12 s after the last step (a loop 65 s, hosts 15 to 40 s). Of the
seconds, which are those of the whole command, most went into waiting for a processor.
"""
    if again:
        yield f"Played again, at a lower load, and counted as then: {', '.join(again)}; {first}.\n"
    yield "| | goal | " + " | ".join(MODES.values()) + " |"
    yield "|---|---|" + "---|" * len(MODES)
    by_mode = {mode: [row for row in rows if row["mode"] == mode] for mode in MODES}
    hangs = {mode: [row for row in found if row["way"] not in HEALTHY] for mode, found in by_mode.items()}
    healthy = {mode: [row for row in found if row["way"] in HEALTHY] for mode, found in by_mode.items()}
    for name, goal, verdict in (
        ("class and rank right", "27 of 30", "right"),
        ("cannot tell", "3 at most", "cannot tell"),
        ("another class, or nothing", "", "missed"),
        ("a wrong rank", "never", "WRONG RANK"),
    ):
        cells = (f"{sum(row['verdict'] == verdict for row in hangs[mode])} of {len(hangs[mode])}" for mode in MODES)
        yield f"| {name} | {goal} | {' | '.join(cells)} |"
    places = (f"{sum(row['place'] for row in hangs[mode])} of {len(hangs[mode])}" for mode in MODES)
    yield f"| line, or what it waits for | 23 of 30 | {' | '.join(places)} |"
    silent = (f"{sum(row['verdict'] == 'right' for row in healthy[mode])} of {len(healthy[mode])}" for mode in MODES)
    yield f"| healthy jobs of which nothing is said | 10 of 10 | {' | '.join(silent)} |"
    took = (_seconds([row["seconds"] for row in by_mode[mode]]) for mode in MODES)
    yield f"| seconds, median and most | | {' | '.join(took)} |\n"


def _seconds(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.1f}, {max(found):.1f}" if found else ""


def _table(ways: Sequence[str], last: dict[tuple[str, str], Row]) -> Iterator[str]:
    yield "| way | wanted | " + " | ".join(MODES.values()) + " | says, with the most that was given |"
    yield "|---|---|" + "---|" * len(MODES) + "---|"
    for way in ways:
        rows = [last.get((way, mode)) for mode in MODES]
        said = next((row["said"] for row in (rows[1], rows[0], rows[2], rows[3]) if row), "")
        if any(rows):
            yield f"| {way} | {EXPECTED.get(way, 'stuck outside')} | {' | '.join(map(_cell, rows))} | {_said(said)} |"
    yield ""


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['verdict']}{' +' if row['place'] else ''}, {row['seconds']:.1f} s"


def _said(text: str) -> str:
    return text.replace("|", "\\|").replace(f"{tempfile.gettempdir()}/", "")[:400]


def _healthy(ways: Sequence[str], last: dict[tuple[str, str], Row]) -> Iterator[str]:
    yield "| healthy | " + " | ".join(MODES.values()) + " | says |"
    yield "|---|" + "---|" * len(MODES) + "---|"
    for way in ways:
        rows = [last.get((way, mode)) for mode in MODES]
        said = next((row["said"] for row in (rows[1], rows[0], *rows) if row), "")
        cells = (f"{row['verdict']}, {row['seconds']:.1f} s" if row else "" for row in rows)
        yield f"| {way} | {' | '.join(cells)} | {_said(said)} |"
    yield ""


def _of_nccl(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what was said of jobs with NCCL, of which RAS tells and no worker server."""
    if not rows:
        return
    yield "## With NCCL, by RAS, and by torch's pipe too\n"
    yield "torch and NCCL on a processor (`scripts/torch_on_cpu.py`), three ranks, neither worker server nor stacks."
    yield "A rank that has not written its records in time still looks up the names of its stacks, and is at work.\n"
    yield "| way | wanted | RAS | RAS and `--dumps` | says |"
    yield "|---|---|---|---|---|"
    for way in dict.fromkeys(row["way"] for row in rows):
        found = {row["mode"]: row for row in rows if row["way"] == way}
        wanted = "nothing" if way in HEALTHY else EXPECTED.get(way, "stuck outside")
        cells = " | ".join(_cell(found.get(mode)) for mode in ("ras", "dumps"))
        said = _said((found.get("dumps") or found["ras"])["said"])
        yield f"| {way}{' (gloo ends it)' if way in WITH_NCCL else ''} | {wanted} | {cells} | {said} |"
    yield ""
