"""Every way in which a command may end, made to happen: the table of exit codes is held against the program itself.

What judges is judged on made-up facts: a machine of which a check says what an outcome needs, and a log of a run.
"""

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations, product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_diagnose import WHO, log, machine, pair

from ncclprobe.checks.run import pairs, ranks, rows, traffic
from ncclprobe.checks.run.rows import BAND, ROW
from ncclprobe.commands import COMMANDS, main
from ncclprobe.commands.arguments import judging
from ncclprobe.engine.diagnose import MACHINE, MEASURED, Question, ask, diagnose
from ncclprobe.engine.measured import run_facts
from ncclprobe.facts.run.samples import Arrivals, ExpectedCopies, LostRank
from ncclprobe.model import outcomes
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Finding, Severity, fail, warn
from ncclprobe.model.measurement import Band
from ncclprobe.model.outcomes import EXIT_CODE, FAIL_ON_WARN, OUTCOMES, REQUIRE_JUDGED, Outcome
from ncclprobe.model.registry import Check, check
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Job, Snapshot
from ncclprobe.model.traffic import CopyRow
from ncclprobe.model.values import Struct, replace
from ncclprobe.report import digest
from ncclprobe.session.measure.recorder import asked
from tests.each_row import each_row, some

MEASURING = ("bandwidth", "pairs", "copies", "workload", "accept")
IDLE = "GPU7"  # of eight, of which two ranks use the first two
ACCEPTED = {"workload": ["-e", "4K"]}  # so that any machine has room


class Told(Struct, frozen=True):
    """What the check of this test finds on a machine."""

    findings: tuple[Finding, ...] = ()


class Other(Struct, frozen=True):
    """What the advisory check of this test looks at."""


@check(bad=list, good=list, required=True)
def told(fact: Told) -> Iterator[Finding]:
    """Something is wrong.

    Right: Nothing is wrong.
    Why: reasons.
    Fix: none.
    """
    yield from fact.findings


@check(bad=list, good=list)
def other(fact: Other) -> Iterator[Finding]:
    """Something else is wrong.

    Right: Nothing else is wrong.
    Why: reasons.
    Fix: none.
    """
    yield from ()


OF_THE_RUN = {
    "bandwidth": (ranks.init, ranks.rank_lost, rows.data, rows.bandwidth),
    "pairs": (ranks.init, ranks.rank_lost, pairs.pairs), "copies": (ranks.init, ranks.rank_lost, traffic.copies),
    "workload": (ranks.init, ranks.rank_lost), "accept": (ranks.init, ranks.rank_lost, rows.data, rows.bandwidth),
}  # fmt: skip


def on_the_machine(name: str, number: int = 0) -> dict[type, Any]:
    """The facts of one machine in outcome `name`."""
    kind, _, blame = name.partition(": ")
    found: dict[str, tuple[Finding, ...]] = {
        "fails": (fail("GPU0", "is broken", blame=blame or "node"),),
        "idle device": (fail(IDLE, "is broken", blame="node"),),
        "absent node": (fail("n1", "did not come in 60 s", action="retest"),),
        "warns": (warn("GPU0", "is odd"),)}  # fmt: skip
    known: dict[type, Any] = {Told: Told(found.get(kind, ())), Other: Other()}
    gone = {"required unknown": Told, "advisory unknown": Other}.get(name)
    return {fact: value for fact, value in known.items() if fact is not gone}


def question(command: str, options: Sequence[str], checks: Sequence[Check], sources: Any) -> Question:
    module = importlib.import_module(f"ncclprobe.commands.{command}")
    measures = command in MEASURING
    asked = module.parse(options).judging if measures else judging(module._parser().parse_args(options))
    return replace(ask(asked, (command, *options), Job(), sources), checks=tuple(checks))


def looked(command: str, name: str, options: Sequence[str]) -> Report:
    """The report of a command that looks at machines."""
    nodes = [Snapshot("n0", on_the_machine(name))]
    missing = ("n1",) if name in ("missing node", "absent node") else ()
    return diagnose(question(command, options, (told, other), MACHINE), nodes, missing=missing)


COPY = CopyRow(
    node="hgx", rank=0, kind="h2d", device="GPU0", nbytes=1 << 20, GBps=50.0, min_GBps=49.0, max_GBps=51.0, samples=5
)
ROW_OF_TWO = replace(ROW, ranks=2, wrong=0, interval_us=(19.8, 20.2))


def samples(command: str, name: str) -> Iterator[tuple[str, Any]]:
    """What a run that ended as `name` wrote down, beside what it was asked for."""
    who, nodes = WHO, 2 if name == "unjudged" else 3  # of two nodes no pair is judged
    if command == "pairs":
        who = replace(WHO, ranks=nodes, hosts=("hgx", "n1", "n2")[:nodes], nnodes=nodes, gpus=(0,) * nodes)
    yield "participants", who
    if name == "late rank":
        yield "arrivals", Arrivals(2, (1,), 2.0, 60.0)
        return
    yield "arrivals", Arrivals(who.ranks)
    if name == "lost":
        yield "lost", LostRank(1, "hgx", "timing", "its heartbeat stopped")
    if command == "pairs":
        yield "pair_ranks", {"hosts": who.hosts}
        for src, dst in permutations(range(nodes), 2):
            yield "pair", pair(src, dst, 20.0)
        if name != "cut short":
            yield "pairs_complete", True
    elif command == "copies" and name != "cut short":
        if name not in ("unjudged", "lost"):
            yield "expected_copies", ExpectedCopies({"hgx": {"host": replace(BAND, value=50.0, threshold=40.0)}})
        yield "copies", [COPY]
    elif command in ("bandwidth", "accept") and name != "cut short":
        if name not in ("unjudged", "lost"):
            least = ROW_OF_TWO.busbw_GBps * (1.0 if name == "noise" else 0.5)  # reached at one end alone, or at both
            yield "expected", Band("all_reduce", 1 << 20, 1 << 20, replace(BAND, threshold=least, value=least))
        yield "row", ROW_OF_TWO


def measured(command: str, name: str, options: Sequence[str]) -> Report:
    """The report of a command that measures, on a node of which two GPUs have ranks."""
    put = question(command, (*ACCEPTED.get(command, ()), *options), (told, other, *OF_THE_RUN[command]), MEASURED)
    module = importlib.import_module(f"ncclprobe.commands.{command}")
    request = asked(module.parse((*ACCEPTED.get(command, ()), *options)), "nccl")
    what = tuple(each for each in request.what if command != "accept" or each == "collectives")
    run = log(("asked", replace(request, what=what, ops=request.ops[:1], sizes=(1 << 20,), nic_traffic=False)))
    for key, value in samples(command, name):
        run.add(key, msgspec.to_builtins(value, str_keys=True))
    run.close("ended by SIGTERM" if name == "cut short" else "")
    facts = {**machine().facts, **on_the_machine(name)}
    return diagnose(put, [Snapshot("hgx", facts)], run_facts(run))


NO_INTERFACE = "n1:1:1 [0] NCCL WARN Bootstrap : no socket interface found\n"
WATCHDOG = (
    "[rank{r}]:[E1120 10:00:00.000000000 ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 "
    "milliseconds before timing out.\n"
)
LEFT_BEHIND = {
    "named": NO_INTERFACE, "untold": WATCHDOG.format(r=0) + WATCHDOG.format(r=1),
    "ended well": "n0:7:9 [0] NCCL INFO NCCL version 2.28.9+cuda12.9\n"}  # fmt: skip

JUDGED = [
    (command, name, options)
    for command, ends in OUTCOMES.items()
    if command in ("doctor", "rails", *MEASURING)
    for name, outcome in ends.items()
    if outcome.status is not None
    for options in product(("", FAIL_ON_WARN), ("", REQUIRE_JUDGED))
    if REQUIRE_JUDGED not in options or any(REQUIRE_JUDGED in each.under for each in ends.values())
]


def worst_word(report: Report) -> Severity | None:
    """The worst that the report prints."""
    order = (Severity.FAIL, Severity.WARN)
    said = {finding.severity for verdict in report.checks for finding in verdict.findings}
    return next((each for each in order if each in said), None)


@each_row(("command", "name", "options"), JUDGED)
def test_what_judges_ends_as_the_table_says_and_by_the_worst_word_it_prints(
    command: str, name: str, options: tuple[str, ...]
) -> None:
    outcome: Outcome = OUTCOMES[command][name]
    words = tuple(word for option in options for word in option.split())
    report = (measured if command in MEASURING else looked)(command, name, words)
    code = next((outcome.under[each] for each in options if each in outcome.under), outcome.code)
    assert report.exit_code == code
    if code == outcome.code:
        assert report.status is outcome.status
    assert digest.conclusion(report).endswith(f"(exit {int(code)})")
    worst = worst_word(report)
    assert (code == 4) is (worst is Severity.FAIL or (worst is Severity.WARN and FAIL_ON_WARN in options))


@each_row(("name", "gate"), list(product(LEFT_BEHIND, (False, True))))
def test_files_are_explained_with_one_code_for_the_process_and_every_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, gate: bool
) -> None:
    outcome = OUTCOMES["explain"][name]
    (tmp_path / "log").write_text(LEFT_BEHIND[name])
    paths = {form: tmp_path / f"report.{form}" for form in ("json", "prometheus")}
    written = [word for form, path in paths.items() for word in (f"--{form}", str(path))]
    expected = outcome.under.get(EXIT_CODE, outcome.code) if gate else outcome.code
    assert main(["explain", str(tmp_path / "log"), *written, *([EXIT_CODE] if gate else [])]) == expected
    report = json.loads(paths["json"].read_text())
    assert (report["exit_code"], report["status"]) == (expected, outcome.status and outcome.status.value)
    assert f'ncclprobe_exit_code{{command="explain"}} {float(expected)}' in paths["prometheus"].read_text()
    assert main(["report", str(paths["json"]), "-q"]) == expected
    capsys.readouterr()


@each_row("command", [name for name, ends in OUTCOMES.items() if "too large" in ends])
def test_no_room_for_what_is_asked_is_wrong_usage_at_once(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    more = ["--groups", "tp=2"] if command == "workload" else []
    module = importlib.import_module(f"ncclprobe.commands.{command}")
    for launcher in ("RANK", "WORLD_SIZE", "SLURM_JOB_ID"):
        monkeypatch.delenv(launcher, raising=False)
    with pytest.raises(UsageError, match=r"two buffers of 900 GiB for 2 ranks are more than .* choose smaller sizes"):
        module.main(["--backend", "gloo", "--nproc", "2", "-e", "900G", *more])


@each_row("command", COMMANDS)
def test_every_command_has_its_lines_of_the_table_and_says_them(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10000")
    with pytest.raises(SystemExit):
        importlib.import_module(f"ncclprobe.commands.{command}").main(["--help"])
    assert capsys.readouterr().out.rstrip().endswith(outcomes.epilog(command))


def test_every_outcome_is_made_somewhere() -> None:
    made: dict[str, Callable[..., Any]] = {"too large": UsageError, "typo": UsageError}
    for command in some(("doctor", "rails", "explain", *MEASURING)):
        for name, outcome in OUTCOMES[command].items():
            judged = (command, name) in {(each, end) for each, end, _ in JUDGED}
            assert judged or name in LEFT_BEHIND or (name in made and outcome.status is None), (command, name)
