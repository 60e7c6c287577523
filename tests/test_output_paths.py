"""A file is written over where it is an earlier run's own of the same kind, and never where the command reads it."""

import importlib
import itertools
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from report.samples import HEALTHY, INCONCLUSIVE, ROWS, SICK, fleet, hostile, report

from ncclprobe.commands import main, output_paths
from ncclprobe.expect import baselines
from ncclprobe.host import files
from ncclprobe.host.capture import dump
from ncclprobe.host.run_log import FILE, RunLog, remove
from ncclprobe.model.errors import UsageError
from ncclprobe.report import delivery, nodes
from tests.each_row import each_row

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
    "accept": [],
    "bandwidth": ["--nproc", "2"],
    "copies": [],
    "doctor": ["--local"],
    "explain": ["LOG"],
    "pairs": ["--nproc", "2"],
    "rails": [],
    "report": ["REPORT"],
    "workload": ["--nproc", "2", "ddp"],
}
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
