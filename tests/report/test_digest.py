"""What is gathered of a report: whose fault a finding is, in words."""

from typing import get_args

from ncclprobe.checks.run.rows import ROW
from ncclprobe.model.findings import NOTHING_TO_SET, ONCE, Action, Blame, Finding, Status, fail, note, warn
from ncclprobe.model.measurement import Fingerprint
from ncclprobe.model.report import Scope
from ncclprobe.model.values import replace
from ncclprobe.report import digest, text
from tests.each_row import each_row

from . import samples

SLOW = fail("mlx5_3:1", "runs at 200 Gb/s")


@each_row(
    ("finding", "words"),
    [
        (
            replace(SLOW, blame="job", action="fix-job"),
            "The job's settings are at fault; correct them.",
        ),
        (
            replace(SLOW, blame="node", action="retest", confidence=ONCE),
            "This node is at fault (seen once); test again before you act.",
        ),
        (
            replace(SLOW, blame="link", action="repair"),
            "A link of this node is at fault; repair it.",
        ),
        (replace(SLOW, blame="node", nodes=("n3", "n4")), "n[3-4] are at fault."),
        (replace(SLOW, blame="node", action="fix-image"), "This node is at fault; correct its settings."),
    ],
)
def test_blame_is_a_sentence(finding: Finding, words: str) -> None:
    assert digest.blamed(finding) == words


def test_blame_names_the_nodes_that_are_known() -> None:
    finding = replace(SLOW, blame="link", action="repair")
    assert digest.blamed(finding, ("n0", "n1")) == "A link of n[0-1] is at fault; repair it."
    assert digest.blamed(replace(finding, blame="node"), ("n0",)).startswith("n0 is at fault; ")


@each_row("blame", get_args(Blame))
@each_row("action", get_args(Action))
def test_every_blame_and_action_has_words(blame: Blame, action: Action) -> None:
    words = digest.blamed(replace(SLOW, blame=blame, action=action))
    assert "-" not in words.partition(" (")[0]
    assert (action == "none") is ("; " not in words)


def test_what_stops_a_job_comes_before_what_slows_it_and_that_before_risks() -> None:
    slow, slower = (replace(SLOW, subject=name, loss=loss) for name, loss in (("a", 0.1), ("b", 0.6)))
    stops, risk = fail("c", "is missing"), warn("d", "may break")
    costly = replace(slower, severity=risk.severity, subject="e")
    verdict = samples.verdict(Status.FAIL, risk, slow, costly, slower, stops)
    assert [p.subject for p in digest.problems(samples.report(verdict))] == ["c", "b", "a", "e", "d"]


def test_one_finding_of_several_subjects_is_one_problem_with_a_folded_list() -> None:
    alike = [fail(f"GPU{n}", "x8 of 16 lanes", evidence=f"/sys/{n}") for n in (4, 5, 6, 7)]
    other = fail("GPU0", "x4 of 16 lanes")
    found = digest.problems(samples.report(samples.verdict(Status.FAIL, *alike, other)))
    assert [problem.subject for problem in found] == ["GPU[4-7]", "GPU0"]


@each_row(
    ("remedy", "typed"),
    [
        ("reset it (`nvidia-smi --gpu-reset -i N`), or reboot.", ["nvidia-smi --gpu-reset -i N"]),
        ("unset it, or name the function: NCCL_ALGO=allreduce:tree,ring.", ["NCCL_ALGO=allreduce:tree,ring"]),
        ("look at `numactl` and FOO.", []),
    ],
)
def test_commands_and_settings_of_a_remedy_can_be_copied(remedy: str, typed: list[str]) -> None:
    assert digest.copyable(remedy) == typed


def test_a_headline_names_the_culprits_on_their_nodes() -> None:
    verdict = samples.verdict(Status.FAIL, fail("mlx5_0:1", "is DOWN: the cable is out"), node="n2", id="ib.state")
    report = samples.report(verdict, samples.verdict(Status.PASS, node="n1"))
    assert digest.headline(report) == "n2 mlx5_0:1 is DOWN: the cable is out"
    assert digest.conclusion(report) == "Not ready for NCCL jobs on 2 nodes: fix the failures above first. (exit 4)"


def test_a_headline_is_not_cut_within_what_a_rank_said_in_parentheses() -> None:
    said = "it failed (rank 1: all_reduce warm-up: CUDA error: an illegal memory access); it was last seen on n0"
    report = samples.report(samples.verdict(Status.FAIL, fail("rank 1", said), id="run.rank-lost"))
    assert digest.headline(report).endswith("CUDA error: an illegal memory access)")


def test_a_machine_without_a_driver_is_told_what_to_ask_for() -> None:
    report = samples.report(samples.verdict(Status.UNKNOWN, required=True), status=Status.UNKNOWN)
    blind = replace(report, scope=Scope(driver=False))
    assert "--backend gloo" in digest.headline(blind)
    assert "--backend gloo" not in digest.headline(report)
    rails = replace(report, scope=Scope(driver=False), command="ncclprobe rails --nnodes 2")
    assert "--backend gloo" not in digest.headline(rails)
    assert digest.conclusion(rails).startswith("Could not confirm readiness for NCCL over rails")


@each_row("rows", ["measurements", "pairs", "copies", "groups", "steps", "ladder"])
def test_what_was_measured_on_gpus_is_of_no_machine_without_one_whatever_nvml_says(rows: str) -> None:
    report = samples.report(samples.verdict(Status.UNKNOWN, required=True), status=Status.UNKNOWN)
    blind, row = replace(report, scope=Scope(driver=False)), {rows: (ROW,)}
    assert "no GPU" not in digest.headline(replace(blind, **row))
    by_gloo = Fingerprint(software={"backend": "gloo"})
    assert "no GPU" in digest.headline(replace(blind, fingerprint=by_gloo, **row))


def test_a_headline_names_a_device_once_though_two_checks_find_it() -> None:
    own = samples.verdict(Status.FAIL, fail("mlx5_0:1", "is DOWN"), node="n2", id="ib.state")
    compared = fail("n2 mlx5_0:1", "is DOWN, and ACTIVE on 7 other nodes", nodes=("n2",))
    report = samples.report(own, samples.verdict(Status.FAIL, compared, node=None, id="sync.network"),
                            samples.verdict(Status.PASS, node="n1"))  # fmt: skip
    assert digest.headline(report) == "n2 mlx5_0:1 is DOWN"


@each_row("before", ["", "the ranks had not met when the run ended: "])
def test_a_run_that_a_signal_ended_begins_with_interrupted(before: str) -> None:
    why = f"{before}ended by SIGTERM in phase 'pairs'"
    unmeasured = samples.verdict(Status.UNKNOWN, id="run.data", why="no row was measured", required=True)
    cut = samples.verdict(Status.UNKNOWN, id="run.rank-lost", why=why, required=True)
    report = samples.report(unmeasured, cut, status=Status.UNKNOWN)
    assert digest.headline(report) == "INTERRUPTED: ended by SIGTERM in phase 'pairs'"


def test_what_ranks_of_several_nodes_have_in_common_is_one_problem() -> None:
    said = [note(f"rank {rank}", "has two processors") for rank in (0, 2)]
    report = samples.report(*(samples.verdict(Status.PASS, each, node=f"n{n}") for n, each in enumerate(said)))
    (problem,) = digest.problems(report)
    assert (problem.subject, problem.nodes) == ("rank [0,2]", ("n0", "n1"))


def test_ports_of_one_name_on_nodes_are_one_problem_and_other_ports_are_their_own() -> None:
    said = {"n0": "mlx5_0:1", "n1": "mlx5_0:1", "n2": "mlx5_3:1"}
    report = samples.report(*(samples.verdict(Status.FAIL, fail(s, "is DOWN"), node=n) for n, s in said.items()))
    assert [(each.subject, each.nodes) for each in digest.problems(report)] == [
        ("mlx5_0:1", ("n0", "n1")),
        ("mlx5_3:1", ("n2",)),
    ]


def test_a_note_of_what_cannot_be_changed_is_for_the_curious() -> None:
    idle = note("processors", "this machine has no more", remedy=f"{NOTHING_TO_SET}: take another machine")
    useful = note("processors", "few of many", remedy="give ranks more")
    report = samples.report(samples.verdict(Status.PASS, idle, useful), status=Status.PASS)
    assert "this machine has no more" not in text.render(report)
    assert "few of many" in text.render(report)
    assert "this machine has no more" in text.render(report, verbose=True)
