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
