"""Make the page of what `ncclprobe attach` said of jobs that hang, from the rows that scripts/hangs.py has written."""

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hang_rank import HEALTHY
from hangs import EXPECTED, MODES, PLACES
from tables import table

Row = dict[str, Any]
WITH_NCCL = {"ras": "RAS", "dumps": "RAS and `--dumps`"}
NOT_MADE = """\
## Not made here

- **Swap**: this machine has none, and a swap area would be everybody's. That a rank is in swap is said as evidence
  (64 MiB and more), by a test.
- **Another size**: gloo ends all ranks with an error, so there is no hang to look at; with NCCL it hangs (last table).
- **Rights**: another user's ranks were not played; what is missing then is in the tests.
- A NIC, a GPU or a switch that is broken: hosts here are network namespaces of one kernel.
"""
HEAD = """\
# Jobs that hang, and what attach says of them

Played by `scripts/hangs.py` on two cores that other programs used too (load {:.0f} to {:.0f}, median
{:.0f}): three ranks of torch with gloo, of which rank 1 does what is named after six steps.
Jobs of hosts have each rank on a host of network namespaces, and what the hosts kept is read together by `explain`.
*Right*: the class that is wanted, rank 1 and no other. *+*: its line of the program, or what it waits for (file, lock,
process, connection, rank), is said too. Looked at 12 s after the last step (a loop 65 s, hosts 15 to 40 s). Of the
seconds, which are those of the whole command, most went into waiting for a processor.
"""
OF_NCCL = """\
## With NCCL, by RAS, and by torch's pipe too

torch and NCCL on a processor (`scripts/torch_on_cpu.py`), three ranks, neither worker server nor stacks.
A rank that has not written its records in time still looks up the names of its stacks, and is at work.
"""


def page(rows: Sequence[Row]) -> str:
    """Return the page. Of a way that was played twice in a mode the later row counts, and that is said."""
    last = {_key(row): row | {"place": _placed(row)} for row in rows}
    replaced = [row for at, row in enumerate(rows) if _key(row) in map(_key, rows[at + 1 :])]
    gloo, ways = [row for row in last.values() if row["mode"] in MODES], list(dict.fromkeys(row["way"] for row in rows))
    loads = sorted(row["load"] for row in gloo)
    lines = [HEAD.format(loads[0], loads[-1], statistics.median(loads))]
    if replaced:
        right = sum(row["verdict"] == "right" for row in replaced)
        names = ", ".join(sorted({row["way"] for row in replaced}))
        lines.append(f"Played again, at a lower load, and counted as then: {names}; of their {len(replaced)} first "
                     f"answers {right} were right.\n")  # fmt: skip
    lines += table(("", "goal", *MODES.values()), _sums(gloo))
    lines += _answers([way for way in ways if way not in HEALTHY], MODES, last)
    lines += _answers([way for way in ways if way in HEALTHY], MODES, last)
    return "\n".join([*lines, OF_NCCL, *_answers(ways, WITH_NCCL, last), NOT_MADE])


def _key(row: Row) -> tuple[str, str]:
    return row["way"], row["mode"]


def _placed(row: Row) -> bool:
    """Return whether the line, or what is waited for, is said: rows may be older than the words that are wanted."""
    return bool(row["place"]) or any(word in row["said"] for word in PLACES.get(row["way"], ()))


def _sums(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield what was counted in each mode."""

    def of(name: str, goal: str, counts: Callable[[Row], bool], healthy: bool = False) -> Sequence[object]:
        found = ([counts(row) for row in rows if row["mode"] == mode and (row["way"] in HEALTHY) == healthy]
                 for mode in MODES)  # fmt: skip
        return (name, goal, *(f"{sum(each)} of {len(each)}" for each in found))

    yield of("class and rank right", "27 of 30", lambda row: row["verdict"] == "right")
    yield of("cannot tell", "3 at most", lambda row: row["verdict"] == "cannot tell")
    yield of("another class, or nothing", "", lambda row: row["verdict"] == "missed")
    yield of("a wrong rank", "never", lambda row: row["verdict"] == "WRONG RANK")
    yield of("line, or what it waits for", "23 of 30", lambda row: row["place"])
    yield of("healthy jobs of which nothing is said", "10 of 10", lambda row: row["verdict"] == "right", healthy=True)
    seconds = ([row["seconds"] for row in rows if row["mode"] == mode] for mode in MODES)
    yield ("seconds, median and most", "",
           *(f"{statistics.median(each):.1f}, {max(each):.1f}" if each else "" for each in seconds))  # fmt: skip


def _answers(ways: Sequence[str], modes: Mapping[str, str], last: Mapping[tuple[str, str], Row]) -> Iterator[str]:
    """Yield the answer of each way in each mode, and what was said where the most was given: in the second mode."""
    rows = []
    for way in ways:
        found = [last.get((way, mode)) for mode in modes]
        said = next((row["said"] for row in (found[1], found[0], *found[2:]) if row), None)
        if said is not None:
            wanted = "nothing" if way in HEALTHY else EXPECTED.get(way, "stuck outside")
            rows.append((way, wanted, *map(_cell, found), said.replace(f"{tempfile.gettempdir()}/", "")[:400]))
    yield from table(("way", "wanted", *modes.values(), "says, with the most that was given"), rows)


def _cell(row: Row | None) -> str:
    return f"{row['verdict']}{' +' if row['place'] else ''}, {row['seconds']:.1f} s" if row else ""
