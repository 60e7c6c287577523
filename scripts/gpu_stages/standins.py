"""What replaces a driver in a rehearsal: a libnvidia-ml compiled from tests/, and recorded nvidia-smi."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE, LIBRARY = "fake_nvml.c", "libnvidia-ml.so.1"
_BUILD_S = 60.0
_RECORDED = "tests/captures/one-gpu.jsonl"
_HEAD = """#!/bin/sh
# Prints what nvidia-smi printed on the machine of one-gpu.jsonl; a question that was not recorded is refused.
case "$*" in
"""
_TAIL = """*) echo "this is a stand-in for nvidia-smi, which was never asked: $*" >&2; exit 6;;
esac
"""


def build(root: Path, folder: Path) -> None:
    """Make them in `folder`. Without a compiler there is no library, and the steps that need it say so.

    Stage 3 needs the library also where there is a driver: as one that never answers.
    """
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    script = folder / "bin" / "nvidia-smi"
    rows = [json.loads(line) for line in (root / _RECORDED).read_text().splitlines()]
    asked = [
        (row["ask"], row["said"]) for row in rows if row.get("ask", [])[:2] == ["run", "nvidia-smi"] and "said" in row
    ]
    cases = [f"{shlex.quote(' '.join(ask[2:]))}) printf %s {shlex.quote(said)};;\n" for ask, said in asked]
    script.write_text(_HEAD + "".join(cases) + _TAIL)
    script.chmod(0o755)
    if shutil.which("gcc") is None:
        return
    target = folder / "nvml" / LIBRARY
    target.parent.mkdir(exist_ok=True)
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", "-o", str(target)]
    subprocess.run(["gcc", *flags, str(root / "tests" / SOURCE)], check=True, timeout=_BUILD_S)


def with_nvml(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """`variables` with which a process finds the libnvidia-ml of our own first."""
    path = (str(folder / "nvml"), variables.get("LD_LIBRARY_PATH", ""))
    return {**variables, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, path))}
