"""``ncclprobe checks`` and ``ncclprobe explain``: nothing is left out, and nothing disagrees with the check itself."""

import json
import subprocess
import sys

import pytest

from ncclprobe.commands import checks, explain
from ncclprobe.engine import diagnose
from ncclprobe.engine.entries import entry

CHECKS = sorted(diagnose.every_check(), key=lambda check: check.id)


def test_the_catalogue_has_every_check_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert checks.main([]) == 0
    *rows, _blank, last = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows if not row.startswith(" ")] == [check.id for check in CHECKS]
    said = " ".join(" ".join(rows).split())
    assert all(f"fails {check.title} passes {check.right}" in said for check in CHECKS)
    assert max(map(len, rows)) <= 100
    assert last.startswith(f"{len(CHECKS)} checks")


def test_the_catalogue_as_json_says_what_a_check_needs(capsys: pytest.CaptureFixture[str]) -> None:
    checks.main(["--json"])
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    memlock = rows["host.memlock"]
    assert (memlock["required"], memlock["facts"]) == (True, ["Memlock", "Fabric", "Process"])
    assert memlock["applies"].startswith("to jobs on GPUs")


@pytest.mark.parametrize(("argv", "code"), [(("checks",), 0), (("explain", "host.shm"), 0), (("explain", "x.y"), 2)])
def test_the_commands_exist(argv: tuple[str, ...], code: int) -> None:
    done = subprocess.run([sys.executable, "-m", "ncclprobe", *argv], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_a_check_and_a_variable_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for wanted in ("host.memlock", "NCCL_IB_TIMEOUT"):
        assert explain.main([wanted]) == 0
        assert capsys.readouterr().out.splitlines() == entry(wanted)
