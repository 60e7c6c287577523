"""``doctor --path`` on one node: what is judged, what a capture of it holds, and that nothing is left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def doctor(*argv: str | Path) -> tuple[int, dict[str, dict[str, Any]]]:
    words = [sys.executable, "-m", "ncclprobe", "doctor", "--backend", "gloo", "--json", "-", "--select", "data.*"]
    done = subprocess.run([*words, *map(str, argv)], capture_output=True, text=True, timeout=100)
    return done.returncode, {check["id"]: check for check in json.loads(done.stdout)["checks"]}


def test_without_a_path_nothing_is_judged() -> None:
    _, checks = doctor("--local")
    assert {check["status"] for check in checks.values()} == {"skip"}


def test_a_healthy_path_passes_its_kept_capture_too_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "shard").write_bytes(b"x" * (2 << 20))
    paths = ("--path", f"{tmp_path}/data")
    code, checks = doctor("--local", *paths, "--keep", tmp_path / "kept")
    assert (code, {check["status"] for check in checks.values()}) == (0, {"pass", "skip"})
    assert [each.name for each in (tmp_path / "data").iterdir()] == ["shard"]
    assert checks["data.rate"]["findings"][0]["message"].startswith("sequential reads reach ")
    code_again, again = doctor(*(tmp_path / "kept").iterdir())
    assert (code_again, _untitled(again)) == (code, _untitled(checks))


def _untitled(checks: dict[str, Any]) -> dict[str, Any]:
    """Return checks without titles and without "this machine", where those of a capture name its node."""
    node = os.uname().nodename
    whole = {name: {**check, "title": ""} for name, check in checks.items()}
    return json.loads(json.dumps(whole).replace(f"read from {node}", "read from this machine"))  # type: ignore[no-any-return]


def test_a_path_that_is_missing_fails_as_the_jobs_own_fault(tmp_path: Path) -> None:
    code, checks = doctor("--local", "--path", f"{tmp_path}/dta", "--path", f"{tmp_path}/out")
    assert code == 4
    found = checks["data.path"]["findings"]
    assert [(each["subject"], each["blame"]) for each in found] == [(f"{tmp_path}/{x}", "job") for x in ("dta", "out")]
    assert [id_ for id_, check in checks.items() if check["status"] == "fail"] == ["data.path"]
