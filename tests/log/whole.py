"""Logs as text, and all that `explain` makes of each but its wording, which tests/data/command_values keeps.

A line "%% NAME" begins a case, "%- FILE" a further file of it. Behind the name may stand " -> well" (a good end) or
" -> none" (no cause), which tests/log/test_texts.py demands of it, and options: " -- --slow --exit-code".
"""

import contextlib
import io
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ncclprobe.commands import explain

TRACE = 'Traceback (most recent call last):\n  File "x.py", line 3, in f'
CLOSING = "2026-11-20 08:20:00 INFO train: training finished after 90 iterations"
INFO, RULE = "n1:7:7 [0] NCCL INFO", "-" * 74
CLOSED = "RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:34217."
WAITED = (
    "RuntimeError: [third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv "
    "operation to complete")  # fmt: skip


class Case(NamedTuple):
    """One job: what it shows, what it must end as, the options of the command, and its files."""

    name: str
    demanded: str
    options: list[str]
    files: dict[str, str]


def cases(text: str) -> Iterator[Case]:
    """Yield the cases of a text."""
    for block in re.split(r"(?m)^%% ", f"{text.rstrip()}\n")[1:]:
        head, _, body = block.partition("\n")
        named, _, options = head.partition(" -- ")
        name, _, demanded = named.partition(" -> ")
        first, *more = re.split(r"(?m)^%- (.*)\n", body)
        files = {"train.log": first} if first or not more else {}
        files |= dict(zip(more[::2], more[1::2], strict=True))
        yield Case(
            name, demanded, options.split(), {each: said.removesuffix("<cut>\n") for each, said in files.items()}
        )


def of(rows: Mapping[str, str], before: str = "", after: str = "", ending: str = "") -> str:
    """Return the text of a case for each row, between the same others. `ending`: what follows its name."""
    around = [f"{said}\n" if said else "" for said in (before, after)]
    return "".join(f"%% {name}{ending}\n{around[0]}{said}\n{around[1]}" for name, said in rows.items()).rstrip("\n")


def each(name: str, lines: str, before: str = "", after: str = "", ending: str = "") -> str:
    """Return the text of a case for each line, as :func:`of` does."""
    return of({f"{name}, {at}": line for at, line in enumerate(lines.strip("\n").split("\n"))}, before, after, ending)


def steps(first: int, last: int) -> str:
    return "\n".join(f"iteration {step:8d}/ 100 | loss 2.1" for step in range(first, last))


def repeated(numbers: Iterable[int], line: str) -> str:
    """Return a line for each number, which stands in it as <>."""
    return "\n".join(line.replace("<>", str(number)) for number in numbers)


def watchdog(*ranks: int, ms: int = 600001, number: int = 7, when: str = "1122 10:00:00.5") -> str:
    """Return what ranks print who gave up a collective of torch."""
    return repeated(
        ranks,
        f"[rank<>]:[E{when} ProcessGroupNCCL.cpp:607] [Rank <>] Watchdog caught collective operation timeout: WorkNCCL("
        f"SeqNum={number}, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)={ms // 1000 * 1000}) ran for {ms} "
        "milliseconds before timing out.",
    )


def said_by(rank: int, text: str) -> str:
    """Return an exception of a rank."""
    return "\n".join(f"[rank{rank}]: {line}" for line in f"{TRACE}\n{text}".split("\n"))


def ranks(said: Mapping[int, str], count: int = 7) -> str:
    """Return the files of ranks that make steps and then raise what is given."""
    made = "\n".join(f"2026-11-23 10:00:{step:02d} step {step} loss 2.0" for step in range(count))
    raised = {rank: f"\n{said_by(rank, text)}" if text else "" for rank, text in said.items()}
    return "\n".join(f"%- rank{rank}.log\n{made}{text}" for rank, text in raised.items())


def explained(folder: Path, case: Case) -> dict[str, Any]:
    """Return the report on a case whose files are written to a folder."""
    for name, text in case.files.items():
        (folder / name).write_text(text)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        explain.main([*(str(folder / name) for name in case.files), "--json", "-", "--no-config", *case.options])
    found: dict[str, Any] = json.loads(printed.getvalue())
    return found


def outcomes(texts: Iterable[str]) -> Iterator[tuple[str, object]]:
    """Yield each case of some texts with what is kept of its report."""
    for case in (case for text in texts for case in cases(text)):
        with tempfile.TemporaryDirectory() as folder:
            report = explained(Path(folder), case)
        yield case.name, json.loads(json.dumps(_kept(report)).replace(f"{Path(folder)}/", ""))


def _kept(report: dict[str, Any]) -> dict[str, Any]:
    answers = [f"{each['when']}/{each['kind']}/{each['known']}/{each['code']}" for each in report["answers"]]
    seen = [f"{_listed(each['ranks'])}@{each['step']}" for each in report["last_seen"]]
    return {
        "job": f"{report['outcome']}/{report['status']}/{report['exit_code']}",
        **{"answers": answers, "well": _places(report["ended_well"]), "causes": [*map(_cause, report["causes"])]},
        **{"seen": seen, "stands": report["stands"], "notes": report["notes"]},
        "ranks": [f"{each['rank']}:{each['host']}:{each['state']}".replace(" ", "-") for each in report["ranks"]],
    }


def _cause(cause: dict[str, Any]) -> dict[str, Any]:
    quoted, after = cause["evidence"][0]["text"] if cause["evidence"] else "", cause["consequences"]
    suspects = [f"{each['rank']}:{each['step']}:{each['source']}:{each['line']}" for each in cause["suspects"]]
    return {
        **{name: cause[name] for name in ("code", "id", "confidence", "severity", "blame", "action", "doctor")},
        **{name: _listed(cause[name]) for name in ("could_be", "ranks", "nodes")},
        **{"at": ",".join(_places(cause["evidence"])), "said": quoted[:40], "says": cause["message"]},
        **{"advice": "-".join(cause["fix"].split()[:3]), "fix": cause["fix"], "collect": " ".join(cause["collect"])},
        **{"after": ",".join(f"{each['id']}*{each['count']}" for each in after), "silent": ",".join(suspects)},
    }


def _places(evidence: list[dict[str, Any]]) -> list[str]:
    return [f"{each['source']}:{each['line']}" for each in evidence]


def _listed(values: list[Any]) -> str:
    return ",".join(map(str, values))
