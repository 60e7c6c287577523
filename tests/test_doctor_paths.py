"""``doctor --path`` on one node: what is judged, what a capture of it holds, and that nothing is left behind."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.commands.doctor import data_path
from ncclprobe.facts.data_paths import AskedPath
from tests.each_row import each_row


def doctor(*argv: str | Path) -> tuple[int, dict[str, dict[str, Any]]]:
    words = [sys.executable, "-m", "ncclprobe", "doctor", "--backend", "gloo", "--json", "-", "--select", "data.*"]
    done = subprocess.run([*words, *map(str, argv)], capture_output=True, text=True, timeout=100)
    return done.returncode, {check["id"]: check for check in json.loads(done.stdout)["checks"]}


@each_row(
    ("text", "path", "use"),
    [
        ("/data", "/data", "read"),
        ("/data:write", "/data", "write"),
        ("/data/:checkpoint", "/data", "checkpoint"),
        ("/data:v2", "/data:v2", "read"),
        ("/data:write:read", "/data:write", "read"),
        ("sets", str(Path("sets").absolute()), "read"),
    ],
)
def test_a_path_is_given_with_its_use(text: str, path: str, use: Any) -> None:
    assert data_path(text) == AskedPath(path, use)


def test_a_misspelt_use_is_refused_and_not_taken_for_a_path() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="did you mean checkpoint"):
        data_path("/data:chekpoint")


def test_without_a_path_nothing_is_judged() -> None:
    _, checks = doctor("--local")
    assert {check["status"] for check in checks.values()} == {"skip"}


def test_a_healthy_path_passes_its_kept_capture_too_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "shard").touch()
    paths = ("--path", f"{tmp_path}/data", "--path", f"{tmp_path}/data:checkpoint")
    code, checks = doctor("--local", *paths, "--keep", tmp_path / "kept")
    assert (code, {check["status"] for check in checks.values()}) == (0, {"pass", "skip"})
    assert [each.name for each in (tmp_path / "data").iterdir()] == ["shard"]
    assert doctor(*(tmp_path / "kept").iterdir()) == (code, checks)


def test_a_path_that_is_missing_fails_as_the_jobs_own_fault(tmp_path: Path) -> None:
    code, checks = doctor("--local", "--path", f"{tmp_path}/dta", "--path", f"{tmp_path}/out:write")
    assert code == 4
    found = checks["data.path"]["findings"]
    assert [(each["subject"], each["blame"]) for each in found] == [(f"{tmp_path}/{x}", "job") for x in ("dta", "out")]
    assert [id_ for id_, check in checks.items() if check["status"] == "fail"] == ["data.path"]


def test_a_file_is_no_place_to_write_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, checks = doctor("--local", "--path", f"{tmp_path}/file:write")
    assert code == 4
    assert "not a folder" in checks["data.path"]["findings"][0]["message"]
    assert checks["data.write"]["status"] != "fail"
