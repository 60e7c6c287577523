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
