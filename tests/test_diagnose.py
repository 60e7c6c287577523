"""One way from facts to a report: which checks a question asks, what a run was to measure and did not, what counts."""

import json
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from ncclprobe.checks.env import fixtures
from ncclprobe.checks.run.rows import ROW
from ncclprobe.commands.bandwidth import parse
from ncclprobe.engine import collect
from ncclprobe.engine.diagnose import HISTORY, LEFT, MACHINE, MEASURED, Judging, ask, diagnose, every_check
from ncclprobe.engine.measured import (
    counted,
    expecting,
    node_rows,
    rejudged,
    run_facts,
    unused_devices,
    weighed,
)
from ncclprobe.expect import bands
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.machine import System
from ncclprobe.facts.plugins import Plugin, Plugins
from ncclprobe.facts.run.samples import Expected, ExpectedCopies, Localised, Notes, Participants, RunRequest
from ncclprobe.facts.software import NcclLibrary, Software
from ncclprobe.host.capture import load
from ncclprobe.host.run_log import RunLog
from ncclprobe.logs.read import JobFiles
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Finding, Severity, Status, Verdict, fail
from ncclprobe.model.measurement import Expectation, SkippedRow
from ncclprobe.model.pair_results import PairRow
from ncclprobe.model.registry import Collector, Source, discover, source_of
from ncclprobe.model.report import NodeEnvironment, Report, placed
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.traffic import CopyRow
from ncclprobe.model.values import replace
from ncclprobe.report import text
from tests.each_row import each_row

CAPTURES = Path(__file__).parent / "captures"
WHO = Participants("self", 2, ("hgx",) * 2, "nccl", nnodes=1, gpus=(0, 1))
ONE_SIZE = RunRequest(ops=("all_reduce",), sizes=(1 << 20,))
RUN_CHECKS = [c for c in every_check(MEASURED) if c.of_run]


@cache
def machine() -> Snapshot:
    """A node with eight GPUs and their NICs."""
    found = collect.capture_facts(load(CAPTURES / "hgx-h100.jsonl"), discover("ncclprobe.facts", Collector, MACHINE))
    return Snapshot("hgx", found.facts, found.ranks)


def log(*samples: tuple[str, Any]) -> RunLog:
    found = RunLog()
    for name, value in samples:
        found.add(name, msgspec.to_builtins(value, str_keys=True))
    return found


def measured(*more: tuple[str, Any], **changes: Any) -> RunLog:
    """The log of a run that measured what it was asked for, and `more`."""
    row = replace(ROW, ranks=2, wrong=0)
    asked = replace(ONE_SIZE, **changes)
    found = log(("asked", asked), ("participants", WHO), ("arrivals", {"expected": 2}), ("row", row), *more)
    found.close()
    return found


def report_on(run: RunLog, *snapshots: Snapshot, argv: tuple[str, ...] = ()) -> Report:
    return diagnose(ask(parse(argv).judging, ("bandwidth", *argv), Job(), MEASURED), snapshots, run_facts(run))


def of_run(report: Report) -> dict[str, str]:
    """The run checks that were not skipped."""
    return {v.id: v.status.value for v in report.checks if v.id.startswith("run.") and v.status is not Status.SKIP}


# sources


def test_a_fact_has_the_source_of_the_folder_it_lies_in() -> None:
    produced = {c.produces: c.run.__module__ for c in discover("ncclprobe.facts", Collector)}
    for fact, module in produced.items():
        assert (source_of(fact) == "run") is module.startswith("ncclprobe.facts.run")
    assert source_of(Job) is None


@each_row("sources", [MACHINE, MEASURED, LEFT], ids=lambda sources: "+".join(sorted(sources)))
def test_where_nothing_is_known_nothing_passes(sources: frozenset[Source]) -> None:
    facts: dict[type, Any] = {JobFiles: JobFiles({}, ())} if sources == LEFT else {}
    report = diagnose(ask(Judging(), ("doctor",), Job(), sources), facts=facts)
    assert "pass" not in {verdict.status for verdict in report.checks}
    assert report.status == ("pass" if sources == LEFT else "unknown")  # explain is no gate: no cause was found


def test_each_source_belongs_to_a_question() -> None:
    assert set(get_args(Source)) == MACHINE | MEASURED | LEFT | HISTORY


def test_a_check_is_asked_if_the_sources_of_all_its_needs_are() -> None:
    doctors, all_of_them = every_check(MACHINE), every_check()
    of_logs, trends = ({c.id for c in every_check(sources)} for sources in (LEFT, HISTORY))
    others = {c.id for c in all_of_them} - {c.id for c in doctors}
    assert others == {c.id for c in all_of_them if c.of_run} | of_logs | trends
    assert {c.id for c in every_check(MEASURED)} == {c.id for c in all_of_them} - of_logs - trends
    assert {name.partition(".")[0] for name in trends} == {"trend"}
    assert {name.partition(".")[0] for name in of_logs} == {"job", "log"}
    assert {c.id.partition(".")[0] for c in all_of_them if c.of_run} == {"run"}


def test_the_doctor_does_not_know_a_check_of_a_run_and_a_run_knows_all() -> None:
    with pytest.raises(UsageError, match=r"--ignore: 'run\.data' is not a known check"):
        ask(parse(["--ignore", "run.data"]).judging, (), Job(), MACHINE)
    asked = ask(parse(["--ignore", "run.data", "--ignore", "ib.*"]).judging, (), Job(), MEASURED)
    assert not [c.id for c in asked.checks if c.id == "run.data" or c.id.startswith("ib.")]
    assert "run.data" in asked.left_out
    full = [
        ask(Judging(pictures=each), (command,), Job()).pictures for each in (True, False) for command in ("accept", "x")
    ]
    assert full == [True, True, True, False]


# what was asked for and did not come


@each_row("what", ["collectives", "pairs", "copies", "training"])
def test_a_run_that_was_killed_before_it_measured_is_inconclusive_beside_a_machine_that_passes(what: Any) -> None:
    report = report_on(log(("asked", replace(ONE_SIZE, what=what, groups=what == "training"))), machine())
    passes = [v for v in report.checks if v.status is Status.PASS]
    assert len(passes) > 20
    assert (report.status, report.exit_code) == (Status.UNKNOWN, 3)
    assert set(of_run(report).values()) == {"unknown"}
    assert all(v.required for v in report.checks if v.id.startswith("run.") and v.status is Status.UNKNOWN)


@each_row("what", ["pairs", "copies", "training"])
def test_a_run_without_collectives_lacks_no_row(what: Any) -> None:
    asked = report_on(log(("asked", replace(ONE_SIZE, what=(what,))), ("participants", WHO)))
    assert {"run.data", "run.bandwidth", "run.straggler"}.isdisjoint(of_run(asked))


@each_row(
    ("late", "changes", "id_", "why"),
    [
        (SkippedRow("pairs", None, "time", "20 s were left"), {"what": ("collectives", "pairs")}, "run.pairs", None),
        (SkippedRow("all_reduce", 1 << 30, "time", "a row of it would take 12 s"), {"sizes": (1 << 30, 1 << 20)},
         "run.data", "all_reduce 1 GiB was left out: a row of it would take 12 s"),
        (None, {"sizes": (1 << 20, 1 << 22)}, "run.data", "1 of 2 rows are missing: all_reduce 4 MiB, in place, …"),
    ],
    ids=["a part", "a size", "a row"],
)  # fmt: skip
def test_what_was_left_out_is_unknown_and_named_and_the_others_stand(
    late: SkippedRow | None, changes: dict[str, Any], id_: str, why: str | None
) -> None:
    report = report_on(measured(*([("skipped", late)] if late else []), **changes))
    found = {v.id: v for v in report.checks}
    assert (found[id_].status, found[id_].required, report.exit_code) == (Status.UNKNOWN, True, 3)
    assert why in (None, found[id_].why)
    assert found["run.data"].status is (Status.PASS if id_ == "run.pairs" else Status.UNKNOWN)
    assert ("pairs was left out: 20 s were left" in report.notes) is (id_ == "run.pairs")


def test_a_rank_lost_before_the_ranks_met_is_named() -> None:
    lost = {"rank": 1, "host": "hgx", "phase": "import torch", "why": "it was ended by SIGKILL"}
    run = log(("asked", ONE_SIZE), ("participants", WHO), ("lost", lost))
    run.close("ranks were lost")
    report = report_on(run)
    assert (report.exit_code, of_run(report)["run.rank-lost"]) == (4, "fail")


# what of the machine counts


def test_a_machine_check_that_could_not_look_is_advisory_in_a_run() -> None:
    blind = Snapshot("hgx", {})
    alone = diagnose(ask(parse([]).judging, (), Job(), MACHINE), [blind])
    assert alone.exit_code == 3
    report = report_on(measured(), blind)
    assert report.exit_code == 0
    assert not any(v.required for v in report.checks if not v.id.startswith("run."))


def weighed_in(verdict: Verdict, run: RunLog | None = None) -> Verdict:
    """`verdict` as it stands in the report of a run."""
    facts = run_facts(run or measured())
    (found,) = weighed([verdict], every_check(), {"hgx": unused_devices(machine(), facts)}, facts)
    return found


def counts(finding: Finding, run: RunLog | None = None, node: str | None = "hgx") -> bool:
    """Whether a machine finding is in the verdicts that make the exit code; else it is printed as a NOTE."""
    status = Status.FAIL if finding.severity is Severity.FAIL else Status.WARN
    verdict = weighed_in(Verdict("pci.width", node, status, "t", findings=(finding,)), run)
    found = bool(counted([verdict], every_check(), run_facts(run or measured())))
    assert found is (verdict.findings[0].severity is not Severity.NOTE)
    return found


def test_what_the_run_finds_of_one_node_is_in_that_nodes_row_alone() -> None:
    run = run_facts(log(("participants", replace(WHO, hosts=("n0", "n1"), nnodes=2))))
    named = Verdict("run.pairs", None, Status.FAIL, "t", findings=(fail("n1", "is slow", blame="node", nodes=("n1",)),))
    fine = Verdict("run.data", None, Status.PASS, "t")
    assert [row.status for row in node_rows(run, [named, fine])] == [Status.PASS, Status.FAIL]
    whole = Verdict("run.bandwidth", None, Status.FAIL, "t", findings=(fail("all_reduce 1 GiB", "is slow"),))
    assert [row.status for row in node_rows(run, [whole, fine])] == [Status.FAIL, Status.FAIL]


def test_a_run_that_accepts_the_machines_asks_of_them_what_the_doctor_asks() -> None:
    accepts = measured(accepts=True)
    assert counts(fail("GPU7", "x", blame="node"), accepts)
    assert weighed_in(Verdict("ib.state", "hgx", Status.UNKNOWN, "t", required=True), accepts).required
    blind = diagnose(ask(parse([]).judging, ("accept",), Job(), MEASURED), [Snapshot("hgx", {})], run_facts(accepts))
    assert (blind.status, blind.exit_code) == (Status.UNKNOWN, 3)


def test_a_measuring_report_has_machine_verdicts_and_its_own_status() -> None:
    report = report_on(measured(), machine())
    assert of_run(report) == {"run.init": "pass", "run.rank-lost": "pass", "run.data": "pass"}
    assert {v.node for v in report.checks if v.id.startswith("run.")} == {None}
    assert {v.node for v in report.checks if v.id.startswith("pci.")} == {"hgx"}
    assert [(row.name, row.rank) for row in report.nodes] == [("hgx", 0)]
    assert (report.launch.world_size, 0 <= report.duration_s < 99) == (2, True)


def test_select_and_ignore_mean_in_a_run_what_they_mean_to_the_doctor() -> None:
    only = report_on(measured(), machine(), argv=("--select", "run.*"))
    assert {v.id.partition(".")[0] for v in only.checks} == {"run"}
    without = report_on(measured(), machine(), argv=("--ignore", "run.data"))
    assert "run.data" not in of_run(without)
    left = [(each.id, each.subject, each.reason) for each in without.suppressed]
    assert left == [("run.data", "every subject", "--ignore")]


def test_a_report_on_captures_says_when_they_were_taken_and_one_on_this_machine_does_not(tmp_path: Path) -> None:
    header = {"capture": 1, "node": "n1", "taken": "2026-03-01T10:00:00+02:00", "tool": "0.1.0", "origin": "synthetic"}
    made = {"n1": header, "n2": header | {"node": "n2", "taken": "2026-03-02T08:00:00Z"}}
    made["n3"] = header | {"node": "n3", "taken": "soon"}
    for name, first in made.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(first) + "\n")
    question = ask(Judging(), ("doctor", "a.jsonl"), Job(local=True))
    report = diagnose(question, collect.replayed([tmp_path / f"{name}.jsonl" for name in made], ()))
    assert report.taken == {"n1": "2026-03-01T08:00:00+00:00", "n2": "2026-03-02T08:00:00+00:00"}
    heading = text.render(report).splitlines()[0]
    assert heading.endswith("captured 2026-03-01 08:00:00 UTC to 2026-03-02 08:00:00 UTC")
    assert placed(report, "report.json") == datetime(2026, 3, 2, 8, tzinfo=timezone.utc).timestamp()
    now = diagnose(question, [Snapshot("n1", {})])
    assert now.taken == {}
    assert "captured" not in text.render(now).splitlines()[0]


def environment(*facts: Any) -> NodeEnvironment:
    found = {type(fact): fact for fact in facts}
    return diagnose(ask(Judging(), ("doctor",), Job()), [Snapshot("n0", found)]).environment["n0"]


def test_the_environment_of_a_node_has_its_versions_counters_and_a_digest_of_its_gpus() -> None:
    ports = [fixtures.port(f"mlx5_{n}", counters=(("link_downed", n), ("x", 9))) for n in range(3)]
    devices = [replace(each, firmware="30" if n == 0 else "28")
               for n, each in enumerate(fixtures.fabric(*ports).devices)]  # fmt: skip
    lost = Interfaces(tuple(replace(fixtures.interface(f"eth{n}", n, "10.0.0.5"), carrier_changes=n)
                            for n in range(6)))  # fmt: skip
    gpus = fixtures.gpus(3)
    gpus = replace(gpus, all=tuple(replace(each, ecc_ever=n or Absent("no")) for n, each in enumerate(gpus.all)))
    system = System("n0", "6.8", "x86_64", "Rocky 9", "0123456789")
    software = Software({"torch": "2.9.1", "nvidia-nccl-cu12": "2.28.9"}, (NcclLibrary((2, 28, 9), "x"),))
    plugins = Plugins(
        (Plugin("/p", "net", "ofi", True, ("Libfabric",), (11, 10), "1.17"), Plugin("/q", "net", "", True))
    )
    whole = environment(system, software, gpus, Fabric(tuple(devices)), lost, plugins)
    assert whole.versions == {
        "kernel": "6.8", "distribution": "Rocky 9", "torch": "2.9.1", "nvidia-nccl-cu12": "2.28.9", "nccl": "2.28.9",
        "driver": "550.127.08", "cuda": "12.4", "NIC firmware": "28 (mlx5_[1-2]), 30 (mlx5_0)",
        "net plugin": "Libfabric v11, 1.17",
    }  # fmt: skip
    assert whole.counters == {
        "mlx5_1:1 link_downed": 1, "mlx5_2:1 link_downed": 2, "eth3 carrier lost": 1, "eth4 carrier lost": 1,
        "eth5 carrier lost": 2, "GPU1 uncorrectable ECC": 1, "GPU2 uncorrectable ECC": 2,
    }  # fmt: skip
    assert (whole.boot, len(whole.gpus)) == ("01234567", 8)
    assert environment(replace(gpus, all=gpus.all[::-1])).gpus == whole.gpus
    assert environment(replace(gpus, all=gpus.all[1:])).gpus not in (whole.gpus, "")
    assert environment(replace(gpus, all=(*gpus.all[:2], replace(gpus.all[2], uuid="")))).gpus == ""
    some = (devices[1], devices[2], replace(devices[0], firmware=Absent("no")), replace(devices[0], firmware=""))
    assert environment(Fabric(some)).versions["NIC firmware"] == "28"
    bare = environment(replace(system, distribution="", boot_id=None), Software({}, ()))
    assert (bare.versions["nccl"], bare.versions["distribution"], bare.boot) == ("none found", None, "")
    assert environment() == NodeEnvironment(dict.fromkeys(("kernel", "torch", "nccl", "driver")))


def pair(src: int, dst: int, GBps: float, **more: Any) -> PairRow:
    given: dict[str, Any] = {"nbytes": 1 << 26, "latency_nbytes": 8, "latency_us": 9.0, "time_us": 1.0, **more}
    ends = {"src_end": f"n{src}", "dst_end": f"n{dst}"}
    return PairRow(src=src, dst=dst, **ends, GBps=GBps, min_us=1.0, max_us=1.0, samples_us=(1.0,) * 5, **given)


def run_of_pairs(*more: tuple[str, Any], slow: float = 5.0, steps: int = 3) -> RunLog:
    """Four nodes of one rank: pairs of 20 GB/s but for those of node 3, `slow`, in the round-robin and its retests."""
    who = Participants("self", 4, ("n0", "n1", "n2", "n3"), "nccl", nnodes=4)
    ways = [(src, dst) for src in range(4) for dst in range(4) if src != dst]
    pairs = [pair(src, dst, slow if 3 in (src, dst) else 20.0, step=step) for step in range(steps) for src, dst in ways]
    begun = [("asked", RunRequest(what=("pairs",))), ("participants", who), ("arrivals", {"expected": 4})]
    return log(*begun, ("pair_ranks", {"hosts": who.hosts}), *(("pair", each) for each in pairs), *more)


def test_who_is_slow_is_found_from_the_pairs_whenever_a_run_is_judged() -> None:
    run = run_of_pairs(("pairs_complete", True))
    run.close()
    report = report_on(run)
    assert report.localisation
    assert [each.where for each in report.localisation.culprits] == ["n3"]
    assert of_run(report)["run.pairs"] == "fail"
    assert run_facts(run).keys().isdisjoint({Localised})


def test_a_new_expectation_judges_the_pairs_of_a_kept_run_too() -> None:
    run = run_of_pairs(("pairs_complete", True), slow=20.0)
    run.close()
    (band,) = bands.from_toml(
        '[[expect]]\nop = "sendrecv"\nmin_bytes = 1\nbusbw_GBps = 50\nsource = "s"\nwhy = "w"\n', "new.toml"
    )
    facts = expecting(run_facts(run), [band], "new.toml")
    again = diagnose(ask(parse(()).judging, ("doctor",), Job(), MEASURED), (), facts)
    before = report_on(run)
    assert before.localisation
    assert again.localisation
    assert (before.localisation.all_slow, again.localisation.all_slow) == (False, True)
    assert of_run(again)["run.pairs"] == "warn"


def test_pairs_of_a_run_that_was_cut_short_are_judged_as_far_as_they_came() -> None:
    report = report_on(run_of_pairs(slow=20.0, steps=1))
    assert report.localisation
    assert not report.localisation.complete
    assert of_run(report)["run.pairs"] == "unknown"


@each_row("row", [pair(0, 7, 20.0), pair(0, 1, -3.0), pair(2, 2, 20.0), pair(0, 7, 20.0, inside=True)])
def test_pairs_that_no_run_can_have_measured_are_unknown_and_break_nothing(row: PairRow) -> None:
    report = report_on(run_of_pairs(("pair", row), ("pairs_complete", True)))
    (found,) = [v for v in report.checks if v.id == "run.pairs"]
    assert found.status is Status.UNKNOWN
    assert "pairs: " in found.why


def test_a_kept_run_is_judged_anew_by_the_machines_that_are_known() -> None:
    who, machines = replace(WHO, ranks=16, hosts=("hgx",) * 8 + ("n1",) * 8, nnodes=2), [machine()]
    both, known = [machine(), replace(machine(), node="n1")], "judged without --expect: this is DGX H100"
    ladder, pairs = (replace(ONE_SIZE, what=(each,)) for each in ("ladder", "pairs"))
    met = (("pair_ranks", {"hosts": who.hosts}), ("pair", pair(0, 8, 20.0)), ("pairs_complete", True))
    of_gloo = log(("asked", ONE_SIZE), ("participants", replace(WHO, backend="gloo")))
    for run, nodes, ops, note, copied in (
        (measured(), machines, ["all_reduce"], known, ["hgx"]),
        (measured(), [], [], "no expectation: hgx: it has no capture", []),
        (log(("asked", ONE_SIZE), ("participants", who)), machines, [], "no expectation: n1: it has no capture",
         ["hgx"]),
        (log(("asked", ladder), ("participants", who)), both, ["all_reduce"] * 2, known, ["hgx", "n1"]),
        (log(("asked", ONE_SIZE), ("participants", who)), [*both, replace(machine(), node="n2")], ["all_reduce"], known,
         ["hgx", "n1"]),
        (log(("asked", pairs), ("participants", who), *met), both, ["all_reduce", "pairs"], known, ["hgx", "n1"]),
    ):  # fmt: skip
        facts = rejudged(run_facts(run), nodes)
        assert [band.op for band in facts[Expected].bands] == ops
        assert facts[Notes].texts == (f"judged again: {note}",)
        assert [*facts[ExpectedCopies].nodes] == copied
    assert rejudged(run_facts(of_gloo), machines) == run_facts(of_gloo)


def test_copies_are_judged_by_what_the_run_expected_and_again_by_what_the_node_should_reach() -> None:
    rates = {"GBps": 12.0, "min_GBps": 12.0, "max_GBps": 12.0}
    copy = CopyRow(node="hgx", rank=0, kind="h2d", device="GPU0", near=True, nbytes=1, samples=7, **rates)
    low = {"nodes": {"hgx": {"host": Expectation(11.0, 10.0, "GB/s", "datasheet", "a slot", "s")}}}
    run = measured(("copies", [copy]), ("expected_copies", low), what=("collectives", "copies"))
    assert of_run(report_on(run, machine()))["run.copies"] == "pass"
    facts = rejudged(run_facts(run), [machine()])
    again = diagnose(ask(parse(()).judging, ("doctor",), Job(), MEASURED), [machine()], facts)
    assert of_run(again)["run.copies"] == "fail"
    assert [(row.status, row.threshold_GBps) for row in again.copies] == [("fail", pytest.approx(49.8, abs=0.1))]
