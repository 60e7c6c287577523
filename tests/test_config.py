"""The project file: what may stand in it, and what becomes of a finding that it names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncclprobe.commands import main
from ncclprobe.engine import suppressions
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Severity, Status, Verdict, fail, note
from ncclprobe.model.registry import Check, discover
from tests.each_row import each_row


def checks(_folder: str = "") -> tuple[Check, ...]:
    return discover("ncclprobe.checks", Check)


CAPTURE = str(Path(__file__).parent / "captures" / "hgx-h100.jsonl")
ENTRY = '[[ignore]]\ncheck = "env.value"\nsubject = "NCCL_IB_DISABLE"\nreason = "meant for the next release"\n'


def test_an_entry_is_a_check_a_subject_and_a_reason() -> None:
    (entry,) = suppressions.parse(ENTRY, "p.toml").entries
    assert (entry.check, entry.subject, entry.where) == ("env.value", "NCCL_IB_DISABLE", "p.toml: ignore 1")
    (every,) = suppressions.parse('[[ignore]]\ncheck = "env.*"\nreason = "because"\n', "p.toml").entries
    assert every.subject == "*"
    assert suppressions.parse("", "p.toml") == suppressions.Accepted()


@each_row(
    ("text", "says"),
    [
        ("x = ", "p.toml: not TOML"),
        ("a = " + "1" * 4400, "p.toml: a line of 4404 characters"),
        (".".join(["a"] * 4000) + " = 1", "p.toml: a line of 8003 characters"),
        ("ignored = 1\n", "p.toml: unknown key 'ignored'"),
        ('ignore = "env.*"\n', "p.toml: ignore: write \\[\\[ignore\\]\\]"),
        ("ignore = [1]\n", "p.toml: ignore: write"),
        ('[[ignore]]\ncheck = "a.b"\n', "p.toml: ignore 1: reason is missing: give a reason"),
        ('[[ignore]]\nreason = "r"\n', "p.toml: ignore 1: check is missing"),
        ('[[ignore]]\ncheck = "a.b"\nreason = " "\n', "p.toml: ignore 1: reason must be text and not empty"),
        ('[[ignore]]\ncheck = 3\nreason = "r"\n', "p.toml: ignore 1: check must be"),
        (ENTRY + '[[ignore]]\nchekc = "a.b"\nreason = "r"\n', "p.toml: ignore 2: unknown key 'chekc'; known are check"),
    ],
)
def test_what_does_not_belong_there_is_refused_with_file_entry_and_key(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"^{says}"):
        suppressions.parse(text, "p.toml")


def test_a_file_is_looked_for_where_it_was_named_or_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert suppressions.load(None, checks) == suppressions.Accepted()
    (tmp_path / suppressions.NAME).write_text(ENTRY)
    found = suppressions.load(None, checks)
    assert [entry.where for entry in found.entries] == [f"{suppressions.NAME}: ignore 1"]
    assert found.found == str(tmp_path / suppressions.NAME)
    assert suppressions.load(Path(suppressions.NAME), checks) == suppressions.Accepted(found.entries)
    assert suppressions.load(suppressions.NO_FILE, checks) == suppressions.Accepted()
    with pytest.raises(UsageError, match=r"other\.toml: cannot be read"):
        suppressions.load(Path("other.toml"), checks)


OWNED = {
    "of another user": (1000, 0, 0o644, (0, 1001), "because uid 1000 owns it"),
    "that a group may write": (0, 1000, 0o664, (0, 1001), "because its mode 0664 lets other users write to it"),
    "that all may write": (0, 0, 0o666, (0, 1001), "because its mode 0666 lets other users write to it"),
    "of root": (0, 0, 0o664, (0, 1001), ""),
    "of one's own": (1001, 1001, 0o664, (1001,), ""),
    "of root and one's own group": (0, 1001, 0o664, (1001,), ""),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@each_row(("owner", "group", "mode", "readers", "why"), OWNED.values(), ids=OWNED)
def test_a_file_that_is_found_is_read_if_nobody_else_may_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, group: int, mode: int, readers: list[int], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / suppressions.NAME
    path.write_text(ENTRY)
    os.chown(path, owner, group)
    path.chmod(mode)
    for reader in readers:
        monkeypatch.setattr(os, "geteuid", lambda reader=reader: reader)
        monkeypatch.setattr(os, "getegid", lambda reader=reader: reader)
        if why:
            with pytest.raises(UsageError) as told:
                suppressions.load(None, checks)
            assert str(told.value).startswith(f"{path} is not read, {why}; to continue without it pass --no-config")
        else:
            assert len(suppressions.load(None, checks).entries) == 1
        assert len(suppressions.load(Path(suppressions.NAME), checks).entries) == 1
        assert suppressions.load(suppressions.NO_FILE, checks).entries == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_link_of_another_user_to_a_file_of_ones_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere.toml").write_text(ENTRY)
    link = tmp_path / suppressions.NAME
    link.symlink_to("elsewhere.toml")
    assert len(suppressions.load(None, checks).entries) == 1
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(UsageError, match="another user"):
        suppressions.load(None, checks)


def test_a_finding_that_an_entry_names_is_left_out_and_said_with_its_reason() -> None:
    both = (fail("mlx5_9:1", "is down"), note("mlx5_0:1", "is well"))
    verdict = Verdict("ib.state", "n", Status.FAIL, "t", findings=both)
    entry = suppressions.Ignore("ib.*", "mlx5_9:*", "waits for its cable", "p.toml: ignore 1")
    (kept,), (said,) = suppressions.suppress([verdict], [entry])
    assert kept.status is Status.PASS
    assert [finding.severity for finding in kept.findings] == [Severity.NOTE]
    reason = "waits for its cable (p.toml: ignore 1)"
    assert (said.id, said.subject, said.reason) == ("ib.state", "mlx5_9:1", reason)
    others = (
        Verdict("ib.state", "n", Status.FAIL, "t", findings=(fail("mlx5_1:1", "is down"),)),
        Verdict("ib.state", "m", Status.UNKNOWN, "t", why="not readable", required=True),
        Verdict("pci.link", "n", Status.FAIL, "t", findings=both[:1]),
    )
    assert suppressions.suppress(others, [entry]) == (others, ())


def doctor(folder: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL", "SLURM", "RANK"))}
    command = [sys.executable, "-m", "ncclprobe", "doctor", "--backend", "gloo", "--select", "env.value", *argv]
    env = {**kept, "PYTHONPATH": str(Path(__file__).resolve().parent.parent), "NCCL_IB_DISABLE": "true"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder, env=env)


def test_the_doctor_reads_the_file_of_the_working_directory(tmp_path: Path) -> None:
    assert doctor(tmp_path).returncode == 4
    (tmp_path / suppressions.NAME).write_text(ENTRY)
    done = doctor(tmp_path, "--json", "r.json")
    assert done.returncode == 0
    assert "meant for the next release" in done.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    assert [row["subject"] for row in report["suppressed"]] == ["NCCL_IB_DISABLE"]
    (told,) = (text for text in report["notes"] if suppressions.NAME in text)
    assert told == (
        f"read {tmp_path / suppressions.NAME} of the working directory: 1 entry, suppressed env.value on "
        "NCCL_IB_DISABLE; --no-config skips it"
    )


def test_a_file_that_was_named_is_not_announced_and_one_that_was_declined_is_not_read(tmp_path: Path) -> None:
    (tmp_path / suppressions.NAME).write_text(ENTRY)
    named = doctor(tmp_path, "--config", suppressions.NAME)
    assert (named.returncode, "of the working directory" in named.stdout) == (0, False)
    (tmp_path / suppressions.NAME).write_text("not TOML [")
    assert doctor(tmp_path, "--no-config").returncode == 4
    both = doctor(tmp_path, "--no-config", "--config", "site.toml")
    assert both.returncode == 2
    assert "cannot be used with" in both.stderr


@each_row(
    ("text", "says"),
    [
        ("[doctor]\nexpct-gpus = 9\n", "'expct-gpus' is not a known option of this command; did you mean expect-gpus?"),
        ("[doctr]\nexpect-gpus = 9\n", "'doctr' is not a known command; did you mean doctor?"),
        ('[doctor]\nkeep = "x"\n', "[doctor]: keep names a file and is allowed only on the command line"),
        ('[doctor]\njson = "x"\n', "[doctor]: json names a file and is allowed only on the command line"),
        ("[doctor]\nlocal = 1\n", "[doctor]: local must be true or false"),
        ("[doctor]\nexpect-gpus = true\n", "[doctor]: expect-gpus must be a text or a number"),
        ("[[ignore]]\nid = 'x'\n", f"{suppressions.NAME}: ignore 1: unknown key 'id'"),
        ('[[ignore]]\ncheck = "env.wrod"\nreason = "r"\n', "ignore 1: check 'env.wrod' matches no check"),
        ("[doctor]\nexpect-gpus = 0\n", "--expect-gpus: must be a whole number above zero, not '0'"),
    ],
)
def test_a_default_that_the_command_line_does_not_know_is_wrong_usage(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / suppressions.NAME).write_text(text)
    assert main(["doctor", CAPTURE]) == 2
    assert says in capsys.readouterr().err


def test_defaults_are_options_that_the_command_line_replaces_and_the_report_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / suppressions.NAME).write_text('[doctor]\nexpect-gpus = 9\nselect = ["gpu.*"]\n[pairs]\nforce = true\n')
    assert main(["doctor", CAPTURE]) == 4
    printed = " ".join(capsys.readouterr().out.split())
    assert "8 usable, 9 expected" in printed
    assert "options of doctor from" in printed
    assert "expect-gpus = 9, select = ['gpu.*']" in printed
    assert "force" not in printed
    assert main(["doctor", CAPTURE, "--expect-gpus", "8"]) == 0
    assert main(["doctor", CAPTURE, "--no-config"]) == 0
    (tmp_path / suppressions.NAME).rename(tmp_path / "named.toml")
    assert main(["doctor", CAPTURE]) == 0
    assert main(["doctor", CAPTURE, "--config", "named.toml"]) == 4
    named = (tmp_path / "named.toml").rename(tmp_path / suppressions.NAME)
    assert (named.is_file(), main(["checks"])) == (True, 0)  # without a word after the command
