"""What happened, and what would explain trouble: two answers, of which the second never makes a failure."""

from pathlib import Path

from tests.log.test_outcome import explained, steps

SLOW = "n0:7:9 [0] NCCL INFO NET/OFI GDR disabled on GDR-supported instance type p5.48xlarge\n"
REFUSED = "n0:7:9 [0] NCCL WARN Bootstrap : no socket interface found\n"


def test_what_only_costs_time_is_a_condition_until_the_user_says_that_the_job_was_slow(tmp_path: Path) -> None:
    report = explained(tmp_path, SLOW, "--exit-code")
    slow = [each for each in report["answers"] if each["when"] == "slow"]
    assert (report["outcome"], report["exit_code"]) == ("unknown", 0)
    assert [(each["kind"], each["known"]) for each in slow] == [("named", False)]
    report = explained(tmp_path, SLOW, "--slow", "--exit-code")
    assert (report["exit_code"], report["answers"][0]["when"], report["answers"][0]["known"]) == (4, "slow", True)


def test_a_failure_is_answered_before_what_only_costs_time(tmp_path: Path) -> None:
    report = explained(tmp_path, SLOW + REFUSED, "--exit-code")
    assert (report["outcome"], report["exit_code"]) == ("failed", 4)
    assert [each["when"] for each in report["answers"]][:1] == ["failed"]


def test_what_the_user_knows_and_no_line_explains_is_unknown(tmp_path: Path) -> None:
    for option in ("--hung", "--slow"):
        report = explained(tmp_path, "n0:7:9 [0] NCCL INFO NCCL version 2.28.9+cuda12.9\n", option, "--exit-code")
        assert report["exit_code"] == 3, option
        assert {(each["kind"], each["known"]) for each in report["answers"] if each["when"] == option[2:]} == {
            ("none", True)
        }, option


def test_a_log_that_proves_success_has_no_conditional_answer(tmp_path: Path) -> None:
    ended = SLOW + steps(0, 9) + "Training completed\n"
    report = explained(tmp_path, ended)
    assert (report["outcome"], report["answers"], report["causes"]) == ("ended-well", [], [])
    assert explained(tmp_path, ended, "--slow", "--exit-code")["exit_code"] == 4


def test_a_line_of_another_layer_brings_the_next_step_of_that_layer_and_not_of_nccl(tmp_path: Path) -> None:
    """Who looks after a step of Slurm, or after UCX, is not helped by NCCL's lines."""
    rows = {
        "slurmstepd: error: frob of the step went odd\n": "the scheduler",
        "[1700000000.1] [n0:7 :0] ib_frob.c:12 UCX  ERROR uct_frob() failed: odd\n": "UCX",
    }
    wrong = []
    for line, layer in rows.items():
        cause = explained(tmp_path, f"starting\n{line}", "--failed")["causes"][0]
        steps_of_nccl = [each for each in cause["collect"] if "NCCL_DEBUG=" in each]
        if layer not in cause["message"] or not cause["remedy"].startswith("look at") or steps_of_nccl:
            wrong.append((line, cause))
    assert wrong == []
    cause = explained(tmp_path, "n0:7:9 [0] frob.cc:9 NCCL WARN Frob of 7 went odd\n", "--failed")["causes"][0]
    assert [each for each in cause["collect"] if "NCCL_DEBUG=INFO" in each]


WARNED = (
    "n0:7:9 [0] frob.cc:9 NCCL WARN NET/Frob Could not find any optimal frob\nn0:7:9 [0] NCCL INFO Using network Frob\n"
)
WRAPPED = (
    "slurmstepd: error: pyxis: container start failed with error code: 1\n"
    "slurmstepd: error: pyxis: printing enroot log file:\n"
    "slurmstepd: error: pyxis:     frobctl: failed to open slot 3: not mounted\n"
    "srun: error: Task launch for StepId=96.0 failed on node n2: Invalid job credential\n"
)


def test_a_line_that_no_rule_knows_is_shown_as_a_condition_where_nothing_failed(tmp_path: Path) -> None:
    report = explained(tmp_path, WARNED, "--exit-code")
    cause = report["causes"][0]
    assert (report["outcome"], report["exit_code"], cause["severity"]) == ("unknown", 0, "note")
    assert "optimal frob" in cause["evidence"][0]["text"]
    assert [(each["kind"], each["known"]) for each in report["answers"] if each["when"] == "failed"] == [
        ("line", False)
    ]
    report = explained(tmp_path, WARNED, "--failed", "--exit-code")
    assert (report["outcome"], report["exit_code"], report["causes"][0]["severity"]) == ("failed", 3, "fail")


def test_what_a_wrapper_repeats_is_no_cause_beside_a_line_of_what_it_wraps(tmp_path: Path) -> None:
    """Slurm's refusal is a named cause by itself; what the container said before it says why."""
    alone = explained(tmp_path, WRAPPED.splitlines(keepends=True)[-1], "--exit-code")
    assert (alone["causes"][0]["confidence"], alone["exit_code"]) == ("named", 4)
    report = explained(tmp_path, WRAPPED, "--exit-code")
    assert "not mounted" in report["causes"][0]["evidence"][0]["text"]
    assert (report["causes"][0]["confidence"], report["exit_code"]) == ("unknown", 3)
    assert any("Slurm" in each["message"] for each in report["causes"][0]["consequences"])


def test_what_another_rank_says_contradicts_no_cause(tmp_path: Path) -> None:
    text = "[rank0]: torch.OutOfMemoryError: CUDA out of memory.\n"
    other = "[rank1]: [1.2] [n1:7:0] ib_frob.c:3 UCX  ERROR frob of slot 3 not found\n"
    assert explained(tmp_path, other + text)["causes"][0]["code"] == "oom"
