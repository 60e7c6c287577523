"""Machines with GPUs that are none: the real nvidia-ml-py above a ``libnvidia-ml.so.1`` of our own (fake_nvml.c)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ncclprobe.host.capture import Replay, load

SOURCE = Path(__file__).with_suffix(".c")
CAPTURES = """
import json, os, sys
from pathlib import Path
from ncclprobe.engine.collect import collect
from ncclprobe.facts import nvlink, nvml
from ncclprobe.host.capture import Recorder, dump
from ncclprobe.host.live import LiveHost
before = dict(os.environ)
for line in sys.stdin:
    path, fake = json.loads(line)
    os.environ.clear()
    os.environ.update(before | fake)
    live = LiveHost((), bool)
    host = Recorder(live)
    collect(host, [nvml.nvml, nvlink.nvlink, nvml.nvml_p2p])
    live.close()
    Path(path).write_text(dump(host.answers, "fake", origin="synthetic"))
    print(flush=True)
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
    environment = {**os.environ, **settings(**fake)}
    if library:
        environment["LD_LIBRARY_PATH"] = str(library)
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True, env=environment).stdout


def settings(**fake: object) -> dict[str, str]:
    """The variables of a machine's settings."""
    return {f"FAKE_NVML_{name.upper()}": str(value) for name, value in fake.items()}


class Captures:
    """A Python that finds the library and captures one machine after another: to start it costs more than a look."""

    def __init__(self, library: Path) -> None:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(library)}
        command = [sys.executable, "-c", CAPTURES]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def capture(self, folder: Path, **fake: object) -> Replay:
        """A capture of the machine that the settings describe."""
        assert self._process.stdin
        assert self._process.stdout
        path = folder / "fake.jsonl"
        self._process.stdin.write(json.dumps([str(path), settings(**fake)]) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "\n"
        return load(path)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate(timeout=60)


def capture(library: Path, folder: Path, **fake: object) -> Replay:
    """One capture, by a Python of its own."""
    captures = Captures(library)
    try:
        return captures.capture(folder, **fake)
    finally:
        captures.close()
