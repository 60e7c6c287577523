"""``ncclprobe checks`` and ``ncclprobe explain``: nothing is left out, and nothing disagrees with the check itself."""

import json
import subprocess
import sys

import pytest

from ncclprobe.commands import checks, explain
from ncclprobe.engine import diagnose
from ncclprobe.engine.explain_pages import entry
from ncclprobe.model.errors import UsageError
from tests.each_row import each_row

CHECKS = sorted(diagnose.every_check(), key=lambda check: check.id)


def test_the_catalogue_has_a_line_for_every_check_below_its_group(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert checks.main([]) == 0
    *rows, _blank, last = capsys.readouterr().out.splitlines()
    listed = [row.split() for row in rows if row.startswith(" ")]
    assert [row[0] for row in listed] == [check.id for check in CHECKS]
    assert [" ".join(row[1:]).removeprefix("* ") for row in listed] == [check.title for check in CHECKS]
    assert [row[1] == "*" for row in listed] == [check.required for check in CHECKS]
    groups = [row for row in rows if row and not row.startswith(" ")]
    assert [row.partition(":")[0] for row in groups] == sorted({check.id.partition(".")[0] for check in CHECKS})
    assert "ib: InfiniBand and RoCE" in "".join(groups)
    assert last.startswith(f"{len(CHECKS)} checks, * required")


def test_the_catalogue_fits_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    checks.main([])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@each_row(("groups", "prefixes"), [(["ib"], {"ib"}), (["ib", "gpu.*"], {"ib", "gpu"}), (["host.shm"], {"host"})])
def test_a_group_is_listed_alone(groups: list[str], prefixes: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert checks.main([*groups, "--json"]) == 0
    listed = {row["id"] for row in json.loads(capsys.readouterr().out)["checks"]}
    assert {each.partition(".")[0] for each in listed} == prefixes
    assert listed == {"host.shm"} or listed >= {c.id for c in CHECKS if c.id.partition(".")[0] in prefixes}


def test_a_group_without_a_check_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"ibb is no group of checks; did you mean ib\?"):
        checks.main(["ibb"])


def test_the_catalogue_as_json_says_what_a_check_needs(capsys: pytest.CaptureFixture[str]) -> None:
    checks.main(["--json"])
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    memlock = rows["host.memlock"]
    assert (memlock["required"], memlock["facts"]) == (True, ["Memlock", "Fabric", "Process"])
    assert memlock["applies"].startswith("to jobs on GPUs")


@each_row(("argv", "code"), [(("checks",), 0), (("explain", "host.shm"), 0), (("explain", "x.y"), 2)])
def test_the_commands_exist(argv: tuple[str, ...], code: int) -> None:
    done = subprocess.run([sys.executable, "-m", "ncclprobe", *argv], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_a_check_and_a_variable_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for wanted in ("host.memlock", "NCCL_IB_TIMEOUT"):
        assert explain.main([wanted]) == 0
        assert capsys.readouterr().out.splitlines() == entry(wanted)
