"""Files that commands read and write: the project file, and what is written over only where it is one's own."""

import importlib
import itertools
import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from report.samples import HEALTHY, INCONCLUSIVE, ROWS, SICK, fleet, hostile, report

from ncclprobe.commands import main, output_paths
from ncclprobe.engine import suppressions
from ncclprobe.expect import baselines
from ncclprobe.host import files
from ncclprobe.host.capture import dump
from ncclprobe.host.run_log import FILE, RunLog, remove
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Severity, Status, Suppression, Verdict, fail, note
from ncclprobe.model.registry import Check, discover
from ncclprobe.report import delivery, nodes
from tests.each_row import each_row
from tests.test_commands import ncclprobe


def checks(_folder: str = "") -> tuple[Check, ...]:
    return discover("ncclprobe.checks", Check)


HGX = str(Path(__file__).parent / "captures" / "hgx-h100.jsonl")
ENTRY = '[[ignore]]\ncheck = "env.value"\nsubject = "NCCL_IB_DISABLE"\nreason = "meant for the next release"\n'


SITE_FILES = {
    "a long number": "a = " + "1" * 4400, "a deep name": ".".join(["a"] * 4000) + " = 1",
    "an unknown key": "ignored = 1\n", "a text": 'ignore = "env.*"\n', "numbers": "ignore = [1]\n",
    "a number behind an entry": 'ignore = [{check = "a.b", reason = "r"}, 1]\n',
    "no reason": '[[ignore]]\ncheck = "a.b"\n', "no check": '[[ignore]]\nreason = "r"\n',
    "a blank reason": '[[ignore]]\ncheck = "a.b"\nreason = " "\n', "a number": '[[ignore]]\ncheck = 3\nreason = "r"\n',
    "a misspelt key": ENTRY + '[[ignore]]\nchekc = "a.b"\nreason = "r"\n', "an entry": ENTRY,
    "an unknown check": '[[ignore]]\ncheck = "env.wrod"\nreason = "r"\n', "an id": "[[ignore]]\nid = 'x'\n",
    # Options of commands.
    "an unknown option": "[doctor]\nexpct-gpus = 9\n", "an unknown command": "[doctr]\nexpect-gpus = 9\n",
    **{f"{key}, a file": f'[doctor]\n{key} = "x"\n' for key in ("keep", "json", "nodes-out", "expect", "config")},
    "a flag with a number": "[doctor]\nlocal = 1\n", "a flag": "[doctor]\none-job = true\n",
    "a flag that is not set": "[doctor]\none-job = false\nselect = ['gpu.*']\n",
    "a number that is a flag": "[doctor]\nexpect-gpus = true\n", "a date": "[doctor]\nexpect-gpus = 2026-01-01\n",
    "a list with a list": "[doctor]\nselect = [['gpu.*']]\n", "a number that cannot be": "[doctor]\nexpect-gpus = 0\n",
    "of another command": "[pairs]\nforce = true\n", "a fraction": "[doctor]\ntimeout = 60.5\nselect = ['gpu.*']\n",
}  # fmt: skip
"""What `ncclprobe doctor` answers with each as its project file is in tests/data/command_values/site-files.txt."""


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
            way = "to continue without it pass --no-config, to trust it pass --config ./ncclprobe.toml"
            assert str(told.value) == f"{path} is not read, {why}; {way}"
        else:
            assert len(suppressions.load(None, checks).entries) == 1
        assert len(suppressions.load(Path(suppressions.NAME), checks).entries) == 1
        assert suppressions.load(suppressions.NO_FILE, checks).entries == ()


def test_what_a_project_file_did_is_announced_if_nobody_named_it() -> None:
    entry = suppressions.Ignore("ib.*", "*", "r", "p.toml: ignore 1")
    options = {"doctor": {"local": True, "select": ["ib.*"]}, "pairs": {"rounds": 3}}
    gone = [Suppression("ib.state", f"mlx5_{number}:1", "r") for number in range(5)]
    of_doctor = "options of doctor from {}: local = True, select = ['ib.*']"
    read = "read /s/ncclprobe.toml of the working directory: {}; --no-config skips it"
    three = "suppressed ib.state on mlx5_0:1, ib.state on mlx5_1:1, ib.state on mlx5_2:1 and 2 more"
    for found, entries, said, command, told in (
        ("", (), (), "doctor", [of_doctor.format("the file of --config")]),
        ("", (entry,), gone, "copies", []),
        ("/s/ncclprobe.toml", (), (), "copies", [read.format("0 entries, suppressed nothing")]),
        ("/s/ncclprobe.toml", (entry,), gone[:1], "doctor", [of_doctor.format("/s/ncclprobe.toml"),
            read.format("1 entry, suppressed ib.state on mlx5_0:1")]),
        ("/s/ncclprobe.toml", (entry,) * 2, gone, "copies", [read.format(f"2 entries, {three}")]),
    ):  # fmt: skip
        accepted = suppressions.Accepted(entries, found, options=options)
        assert list(accepted.announce(said, command)) == told


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


def run_doctor(folder: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    asked = ("doctor", "--backend", "gloo", "--select", "env.value")
    return ncclprobe(*asked, *argv, cwd=folder, NCCL_IB_DISABLE="true")


def test_the_doctor_reads_the_file_of_the_working_directory(tmp_path: Path) -> None:
    assert run_doctor(tmp_path).returncode == 4
    (tmp_path / suppressions.NAME).write_text(ENTRY)
    done = run_doctor(tmp_path, "--json", "r.json")
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
    named = run_doctor(tmp_path, "--config", suppressions.NAME)
    assert (named.returncode, "of the working directory" in named.stdout) == (0, False)
    (tmp_path / suppressions.NAME).write_text("not TOML [")
    assert run_doctor(tmp_path, "--no-config").returncode == 4
    both = run_doctor(tmp_path, "--no-config", "--config", "site.toml")
    assert both.returncode == 2
    assert "cannot be used with" in both.stderr


def test_defaults_are_options_that_the_command_line_replaces_and_the_report_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / suppressions.NAME).write_text('[doctor]\nexpect-gpus = 9\nselect = ["gpu.*"]\n[pairs]\nforce = true\n')
    assert main(["doctor", HGX]) == 4
    printed = " ".join(capsys.readouterr().out.split())
    assert "8 usable, 9 expected" in printed
    assert "options of doctor from" in printed
    assert "expect-gpus = 9, select = ['gpu.*']" in printed
    assert "force" not in printed
    assert main(["doctor", HGX, "--expect-gpus", "8"]) == 0
    assert main(["doctor", HGX, "--no-config"]) == 0
    (tmp_path / suppressions.NAME).rename(tmp_path / "named.toml")
    assert main(["doctor", HGX]) == 0
    assert main(["doctor", HGX, "--config", "named.toml"]) == 4
    named = (tmp_path / "named.toml").rename(tmp_path / suppressions.NAME)
    assert (named.is_file(), main(["checks"])) == (True, 0)  # without a word after the command


LOG = "".join(f"node1:{n}:{n} [0] NCCL INFO NET/IB : No device found.\n" for n in range(3))
DOCTOR = "Ready for gloo jobs on 1 node. (exit 0)\nncclprobe 0.1.0\n"
MEASURED = report(measurements=ROWS)
REPORTS = {"healthy": HEALTHY, "sick": SICK, "inconclusive": INCONCLUSIVE, "rows": MEASURED, "fleet": fleet(9)}
FOREIGN = {
    "json": ['{"schema": "another/1"}', "[]", "{}", '{"capture": 1, "node": "n0"}\n'],
    "junit": ['<?xml version="1.0" encoding="utf-8"?>\n<testsuites name="pytest tests"><testsuite/></testsuites>\n'],
    "markdown": ["# ncclprobe\n\nncclprobe finds what is wrong\n", "## To do\n\nncclprobe first\n1. then that\n"],
    "html": ["<!doctype html>\n<html><head><title>About ncclprobe</title></head><body></body></html>\n"],
    "prometheus": ["# HELP node_up Up.\n# TYPE node_up gauge\nnode_up 1\n"],
}


def rendered(name: str, sample: str = "sick") -> str:
    return delivery.rendered(REPORTS[sample], name)


def other_files(name: str) -> list[str]:
    """What no earlier run has written for `name`: logs, what another wrote in that format, what is not whole."""
    assert name in FOREIGN, f"FOREIGN lacks {name}: texts of that format that another program wrote"
    own, whole = rendered(name), [rendered(other) for other in delivery.FORMATS if other != name]
    return [LOG, DOCTOR + LOG, own + LOG, LOG + own, own[: len(own) // 2] + LOG, "\x00" * 9, *whole, *FOREIGN[name]]


@each_row("name", delivery.FORMATS)
def test_a_format_knows_its_own_files_and_takes_no_other_for_its_own(name: str, tmp_path: Path) -> None:
    path = tmp_path / "r"
    for text in (*(rendered(name, sample) for sample in REPORTS), " \n"):
        path.write_text(text)
        files.refuse_other(path, delivery.recognises(name))
    assert delivery.recognises(name)(delivery.rendered(hostile(), name))
    assert [text for text in other_files(name) if delivery.recognises(name)(text)] == []


COMMAND_LINES: dict[str, list[str]] = {
    "accept": [], "bandwidth": ["--nproc", "2"], "copies": [], "doctor": ["--local"], "explain": ["LOG"],
    "pairs": ["--nproc", "2"], "rails": [], "report": ["REPORT"], "workload": ["--nproc", "2", "ddp"],
}  # fmt: skip
"""Every command that takes --json PATH and the like."""


def begun(name: str, folder: Path) -> list[str]:
    (folder / "read.log").write_text(LOG)
    (folder / "read.json").write_text(rendered("json"))
    known = {"LOG": str(folder / "read.log"), "REPORT": str(folder / "read.json")}
    return [name, *(known.get(word, word) for word in COMMAND_LINES[name])]


@each_row("command", COMMAND_LINES)
def test_no_command_writes_a_report_over_a_log(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the log begins with what `ncclprobe doctor` printed in the job's script."""
    path = tmp_path / "rank1.log"
    path.write_text(DOCTOR + LOG)
    for option in delivery.FORMATS:
        assert main([*begun(command, tmp_path), f"--{option}", str(path)]) == 2
        assert f"--{option} {path}: not overwritten" in capsys.readouterr().err
    assert path.read_text() == DOCTOR + LOG
    for option in delivery.FORMATS if command == "explain" else ():  # but over an earlier report
        for sample in ("sick", "rows"):
            path.write_text(rendered(option, sample))
            assert main([*begun("explain", tmp_path), "-q", f"--{option}", str(path)]) == 0
            assert path.read_text() not in (rendered(option, sample), "")


def written_by(command: str) -> list[str]:
    """Each option of `command` that names a file to be written."""
    parser = importlib.import_module(f"ncclprobe.commands.{command}")._parser()
    found = {each.dest: each.option_strings[-1] for each in parser._actions if each.option_strings}
    return [found[dest] for dest in output_paths._WRITTEN if dest in found and dest not in ("keep", "nodes_out")]


@each_row("one_file", ["r", "link", "not/../r", "made"])
@each_row("command", COMMAND_LINES)
def test_two_options_never_write_one_file(
    command: str, one_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun_with, pairs = begun(command, tmp_path), list(itertools.permutations(written_by(command), 2))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "not").mkdir()
    if one_file == "link":
        (tmp_path / "link").symlink_to("r")
    if one_file == "made":
        (tmp_path / "r").touch()
        os.link(tmp_path / "r", tmp_path / "made")
    before = sorted(path.name for path in tmp_path.iterdir())
    for both in pairs:
        assert main([*begun_with, both[0], "r", both[1], one_file]) == 2
        said = capsys.readouterr().err
        assert [words in said for words in (*both, "only one of them can be written to")] == [True] * 3, both
    assert len(pairs) >= 20
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_lists_of_nodes_replace_lists_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*begun("report", tmp_path), "-q", "--nodes-out", str(tmp_path / "lists")]
    for _ in range(2):
        assert main(argv) == 4
    (tmp_path / "lists" / "unsure").write_text("who knows?\n")
    assert main(argv) == 2
    assert "unsure: not overwritten" in capsys.readouterr().err
    assert nodes.recognises("n[1-3,7],gpu-a.example\n")


SAME: dict[str, Callable[[Path, Path], object]] = {
    "a link": lambda there, read: there.symlink_to(read),
    "a relative link": lambda there, read: there.symlink_to(read.name),
    "one inode": lambda there, read: os.link(read, there),
}


@each_row("way", SAME)
@each_row("command", ["explain", "report"])
def test_what_is_read_is_not_written_over_by_any_of_its_names(
    command: str, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(command, tmp_path)
    read = tmp_path / "read.json"
    before = read.read_text()
    SAME[way](tmp_path / "there", read)
    for name in ("there", "read.json", f"../{tmp_path.name}/read.json"):
        assert main([command, str(read), "--json", f"{tmp_path}/{name}"]) == 2
        assert "this command also reads it" in capsys.readouterr().err
    assert read.read_text() == before


def test_what_is_read_of_a_folder_a_pattern_standard_input_or_an_option_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs" / "deep"
    folder.mkdir(parents=True)
    begun("explain", folder)
    given, kept = str(folder / "read.json"), os.dup(0)
    folders = [["explain", f"{folder}/{named}"] for named in ("", "*.*", "/../")]
    try:
        with (folder / "read.json").open() as file:
            os.dup2(file.fileno(), 0)
            for argv in (*folders, ["explain", "-"], ["bandwidth", "--nproc", "2", "--expect", given]):
                assert main([*argv, "--json", given]) == 2
                assert "this command also reads it" in capsys.readouterr().err
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert (folder / "read.json").read_text() == rendered("json")
    for argv in folders:
        assert main([*argv, "-q", "--json", str(folder / "new.json")]) == 0
        (folder / "new.json").unlink()


def test_a_capture_replaces_a_capture_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / files.named_after(socket.gethostname())
    path.write_text(dump({}, "n0"))
    assert main(["capture", "-o", str(path)]) == 0
    for text in (LOG, DOCTOR + LOG, path.read_text() + LOG, rendered("json")):
        path.write_text(text)
        for argv in (["capture", "-o", str(path)], ["doctor", "--local", "--keep", str(tmp_path)]):
            assert main(argv) == 2
            assert "not overwritten" in capsys.readouterr().err
            assert path.read_text() == text


def test_a_run_log_replaces_a_run_log_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = RunLog(tmp_path / FILE)
    log.add("note", "one")
    (tmp_path / FILE).write_text((tmp_path / FILE).read_text() + '{"sample": {"no')  # it was cut short
    remove(tmp_path / FILE)
    assert not (tmp_path / FILE).exists()
    RunLog(tmp_path / FILE).close()
    RunLog(tmp_path / FILE).close()
    for text in (LOG, (tmp_path / FILE).read_text() + LOG, dump({}, "n0")):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(UsageError, match="not overwritten"):
            RunLog(tmp_path / FILE)
        assert main(["bandwidth", "--nproc", "2", "--backend", "gloo", "--keep", str(tmp_path)]) == 2
        assert (tmp_path / FILE).read_text() == text
    assert "not overwritten" in capsys.readouterr().err


def test_a_baseline_replaces_a_baseline_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text(rendered("json", "rows"))
    path = tmp_path / "site.json"
    argv = ["baseline", str(tmp_path / "run.json"), "--accept-low", "-o", str(path)]
    assert [main(argv), main(argv)] == [0, 0]
    assert baselines.recognises(path.read_text())
    for text in (LOG, path.read_text() + LOG, rendered("json", "rows")):
        path.write_text(text)
        assert main(argv) == 2
        assert "not overwritten" in capsys.readouterr().err
        assert path.read_text() == text
