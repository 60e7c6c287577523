"""Redaction of who a user is and of serial numbers, however a text says it; and of words that only look like that."""

import json
from pathlib import Path

import pytest
from report.samples import SICK

from ncclprobe.commands import main
from ncclprobe.model.values import replace
from ncclprobe.redact.redactor import Redactor
from tests.each_row import each_row

TOLD = (
    "SLURM_JOB_USER=zblatt42",
    "USER=zblatt42",
    "user=zblatt42",
    "user 'zblatt42'",
    "user: zblatt42 of the queue",
    "user zblatt42 may not read",
    "UserId=zblatt42(1001)",
    "uid=1001(zblatt42) gid=100(zblattgroup)",
    "ssh zblatt42@gpu-quux-0417",
    "ssh -p 22 zblatt42@gpu-quux-0417 hostname",
    "zblatt42@gpu-quux-0417: Permission denied (publickey)",
    "zblatt42@gpu-quux-0417:~$ srun",
    "account=zblatt_x",
    "account zblatt_x over limit",
    "/home/zorkmeister/run.py: user zorkmeister may not read",
    "User zorkmeister cannot submit",
    "GPU serial number 1654922011873",
    "SN MT2249X01234",
    "S/N 1654922011873",
    "curl -u zblatt42:hunter2 http://host",
    "sshpass -p hunter2 ssh",
    "docker login -u zblatt42 -p hunter2 registry",
    "machine git.example login zblatt42 password hunter2",
    "  password 379b501e43bf546c58dfb053dba18c3c416dceb0",
    "passwd 501e43bf546c58dfb053",
    "pwd Kx501e43bf546c58dfb053/z==",
    "token 501e43bf546c58dfb053",
    "passphrase 501e43bf546c58dfb053",
    "Unable to find image 'nvcr.io/zorklabs/trainer:1' locally",
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAB zblatt42@quux-gpu-quux-0417",
    "mysql -u root -phunter2 db",
)
SECRETS = ("zblatt", "zork", "gpu-quux", "1654922011873", "MT2249X01234", "hunter2", "501e43bf")


@each_row("told", TOLD)
def test_who_a_user_is_stands_in_no_redacted_text(told: str) -> None:
    assert [secret for secret in SECRETS if secret in Redactor("key").text(told)] == []


@each_row("word", ["ab", "train", "root"])
def test_a_login_that_is_a_common_or_a_short_word_is_replaced_in_no_other_place(word: str) -> None:
    assert f"{word} of 3" in Redactor("key").text(f"/home/{word}/x USER={word} {word} of 3")


def test_a_login_that_one_text_tells_is_replaced_in_all_others() -> None:
    notes = ("zorkmeister reads", "no rank of Zorkmeister's", "zorkmeisters stay", "of /home/zorkmeister/x.py")
    redacted = Redactor("key").report(replace(SICK, notes=notes)).notes
    (pseudonym,) = {note.split("/")[2] for note in redacted if "/home/" in note}
    assert redacted[0] == f"{pseudonym} reads"
    assert redacted[1].startswith("no rank of user-")
    assert redacted[2] == notes[2]
    row = json.dumps({"ask": ["read", "/x"], "said": "zorkmeister reads\nLOGNAME=zorkmeister"})
    assert json.loads(Redactor("key").capture(row))["said"] == f"{pseudonym} reads\nLOGNAME={pseudonym}"


@each_row("piece", ["user a", "ssh a ", "a@b", "uid=1(", "account-", "curl x ", "SN A", "serial A1-"])
def test_a_text_that_says_user_over_and_over_takes_one_pass(piece: str) -> None:
    """Were it quadratic, 64 KiB would take minutes, and the test's own limit would end it."""
    assert Redactor("key").text(piece * ((1 << 16) // len(piece)))


@each_row("told", TOLD)
def test_who_a_user_is_stands_in_no_redacted_answer_about_a_log(
    told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "rank0.log"
    log.write_text(
        f'Traceback (most recent call last):\n  File "/opt/x/t.py", line 3, in <module>\nRuntimeError: {told}\n'
    )
    assert main(["explain", str(log), "--redact", "-v", "--json", str(tmp_path / "out")]) == 0
    shown = (tmp_path / "out").read_text() + capsys.readouterr().out
    assert "RuntimeError" in shown
    assert [secret for secret in SECRETS if secret in shown] == []
