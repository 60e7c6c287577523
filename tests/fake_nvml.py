"""Machines with GPUs that are none: the real nvidia-ml-py above a ``libnvidia-ml.so.1`` of our own (fake_nvml.c)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ncclprobe.host.capture import Replay, load

SOURCE = Path(__file__).with_suffix(".c")
CAPTURE = """
from ncclprobe.engine.collect import collect
from ncclprobe.facts import nvlink, nvml
from ncclprobe.host.capture import Recorder, dump
from ncclprobe.host.live import LiveHost
live = LiveHost((), bool)
host = Recorder(live)
collect(host, [nvml.nvml, nvlink.nvlink, nvml.nvml_p2p])
live.close()
print(dump(host.answers, "fake", origin="synthetic"), end="")
"""


def build(folder: Path, *options: str) -> Path:
    """Compile the library into `folder`. Skips where there is no compiler."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed: the fake libnvidia-ml.so.1 cannot be built")
    output = str(folder / "libnvidia-ml.so.1")
    flags = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run(["gcc", *flags, *options, "-o", output, str(SOURCE)], check=True)
    return folder


def run(library: Path | None, script: str, *arguments: str, **fake: object) -> str:
    """What `script` prints in a Python that finds the library; `fake` are its settings, ``FAKE_NVML_…``."""
    environment = {**os.environ, **{f"FAKE_NVML_{name.upper()}": str(value) for name, value in fake.items()}}
    if library:
        environment["LD_LIBRARY_PATH"] = str(library)
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True, env=environment).stdout


def capture(library: Path, folder: Path, **fake: object) -> Replay:
    """A capture of the machine that the settings describe."""
    path = folder / "fake.jsonl"
    path.write_text(run(library, CAPTURE, **fake))
    return load(path)
