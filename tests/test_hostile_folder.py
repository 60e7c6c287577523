"""Started in a folder where another user has left modules, programs and libraries, ncclprobe runs none of them."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from launching import DEADLINE_S, ENDLESS, SHORT, Launcher, Process

from ncclprobe.commands import COMMANDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
NOBODY = "65534"
MODULES = {*sys.stdlib_module_names, "ncclprobe", "torch", "numpy", "msgspec", "psutil", "pynvml", "jinja2",
           "junitparser", "ClusterShell", "typing_extensions", "sitecustomize", "usercustomize"}  # fmt: skip
PROGRAMS = ("nvidia-smi", "ibv_devinfo", "lspci", "ethtool", "ip", "timeout", "ldconfig", "gcc",
            "py-spy")  # fmt: skip
LIBRARIES = ("libnvidia-ml.so.1", "libibverbs.so.1", "libcuda.so.1")
PLANTED = """\
#include <stdio.h>
__attribute__((constructor)) static void planted(void) { FILE *f = fopen("%s", "a"); if (f) fputs("%s\\n", f); }
"""
RANKS = ("--backend", "gloo", "--nproc", "2", "--timeout", "50", "--json", "OUT")
COMMAND_LINES = {
    "accept": [*RANKS], "attach": ["--stacks", "--timeout", "20"], "bandwidth": [*RANKS, *SHORT],
    "baseline": ["REPORT", "-o", "OUT"], "capture": ["-o", "OUT"], "checks": [], "compare": ["REPORT", "REPORT"],
    "completion": ["bash"], "copies": [*RANKS], "demo": [], "deploy": ["slurm", "-o", "FOLDER"],
    "doctor": ["--local", "--path", "FOLDER", "--json", "OUT"],
    "expect": [str(ROOT / "tests" / "captures" / "aws-p4d.jsonl")],
    "explain": [str(ROOT / "tests" / "data" / "failures" / "desync-one-more"), "--json", "OUT"],
    "fleet": ["add", "REPORT", "--fleet", "OUT"], "mcp": [], "pairs": [*RANKS], "rails": [],
    "report": ["REPORT", "--html", "OUT"], "topo": [],
    "workload": [*RANKS, "--params", "40K", "--layers", "1", "--tokens", "16", "--micro-batches", "1", "ddp"],
}  # fmt: skip
"""A call of each command that starts the kinds of children it has."""
CHILDREN = {
    "nvml": "NvmlChild().call('nvmlDeviceGetCount', patience_s=30)",
    "limited": "LimitedChild('ncclprobe.logs.reader').ask(b'', 30)",
    "path": "PathChild(str(pathlib.Path(__file__).parent)).ask('content', 30)",
    "verbs": "asyncio.run(VerbsChild().start(30))",
    "program": "run(['nvidia-smi'], 30)",
    "nccl": "run_task(Task(0, 1, '127.0.0.1', 1, 'cpu', 'float32', 'sum', (), 5.0), command(_RANK), 40.0)",
}
SCRIPT = """\
import asyncio, pathlib, sys
from ncclprobe.model.errors import HostError
from ncclprobe.host.command import run
from ncclprobe.host.limited_child import LimitedChild
from ncclprobe.host.nvml_child import NvmlChild
from ncclprobe.host.own_child import command
from ncclprobe.host.path_child import PathChild
from ncclprobe.probes.verbs.pair import VerbsChild
from ncclprobe.session.measure.nccl_debug import _RANK, Task, run_task
sys.path[:0] = ["", "."]  # as where Python was asked to read what is typed, and ncclprobe imported
try:
    print(KIND)
except HostError as error:
    print(error)
"""
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


@dataclass
class Hostile:
    """A folder that all may write to, and `here` in it, where another user has planted what tells that it ran."""

    folder: Path
    python: Sequence[str]
    lab: Launcher

    def __post_init__(self) -> None:
        self.here, self.report = self.folder / "here", self.folder / "out"

    def ran(self) -> list[str]:
        return sorted(set((self.here / "ran").read_text().split()))

    def start(self, program: str, *argv: str, variables: Mapping[str, str] | None = None) -> Process:
        """Start a Python script from another folder, with the working directory `here`."""
        script = self.folder / "program.py"
        script.write_text(program)
        begin = ["sh", "-c", 'cd "$0" && exec "$@"', str(self.here), *self.python, str(script)]
        own = {"PYTHONPATH": os.pathsep.join((str(ROOT), sysconfig.get_path("purelib"))), "HOME": str(self.folder)}
        if self.python[:1] == ["setpriv"]:  # who cannot write ours would compile everything each time
            own["PYTHONPYCACHEPREFIX"] = str(self.folder / "bytecode")
        return self.lab.run([*begin, *argv], own | {**(variables or {})})


def as_nobody() -> Sequence[str]:
    """How a Python like this one is started by a user who may read it. Skips where there is none."""
    if os.geteuid() or not shutil.which("setpriv"):
        pytest.skip("this is not root, which could be another user by setpriv")
    other = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    for python in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        if not subprocess.run([*other, "sh", "-c", f"{python} -c pass"], stderr=subprocess.DEVNULL).returncode:
            return [*other, python]
    pytest.skip("another user cannot read this Python")


@pytest.fixture(scope="module", params=["us", "nobody"])
def planted(request: pytest.FixtureRequest) -> Iterator[Hostile]:
    """In /tmp, for another user cannot enter pytest's own folders."""
    python = as_nobody() if request.param == "nobody" else [sys.executable]
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        found = Hostile(folder, python, Launcher(folder))
        plant(found.here)
        yield found


@pytest.fixture
def hostile(planted: Hostile) -> Iterator[Hostile]:
    (planted.here / "ran").write_text("")
    planted.report.unlink(missing_ok=True)
    yield planted
    planted.lab.clear()


def plant(here: Path) -> None:
    here.mkdir()
    ran = here / "ran"
    ran.touch()
    ran.chmod(0o666)
    for name in MODULES:
        (here / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write({name!r} + '\\n')\n")
    (here / "ncclprobe").mkdir()
    shutil.copy(here / "ncclprobe.py", here / "ncclprobe" / "__init__.py")
    for name in PROGRAMS:
        (here / name).write_text(f"#!/bin/sh\necho {name} >> {ran}\n")
        (here / name).chmod(0o755)
    if gcc := shutil.which("gcc"):
        for name in LIBRARIES:
            (here / "planted.c").write_text(PLANTED % (ran, name))
            subprocess.run([gcc, "-shared", "-fPIC", "-o", here / name, here / "planted.c"], check=True)


PROGRAM = "from ncclprobe.start import program\nprogram()\n"
LOOSE = {"PATH": f":{os.environ['PATH']}:.", "LD_LIBRARY_PATH": ":/nowhere:"}
"""Lists with an empty element, as `PATH=$PATH:$MORE` makes them: it means the working directory."""


OF_USERS = {"us": [*COMMANDS], "nobody": ("attach", "doctor")}
"""Another user has other programs and processes to look at; what starts ranks or reads one file does so for both, and
the tests below start ranks and every kind of child for both."""


@pytest.mark.parametrize(("planted", "name"), [(user, name) for user in OF_USERS for name in OF_USERS[user]],
                         indirect=["planted"])  # fmt: skip
@needs_torch
def test_no_command_runs_what_lies_in_the_working_directory(name: str, hostile: Hostile) -> None:
    known = {"OUT": str(hostile.report), "FOLDER": str(hostile.folder), "REPORT": str(hostile.folder / "given.json")}
    argv = [next((word.replace(key, path) for key, path in known.items() if key in word), word)
            for word in COMMAND_LINES[name]]  # fmt: skip
    if "REPORT" in COMMAND_LINES[name] and not Path(known["REPORT"]).exists():
        hostile.start(PROGRAM, "doctor", "--local", "--json", known["REPORT"]).wait()
    started = hostile.start(PROGRAM, name, *argv, variables=LOOSE)
    code = started.wait(2 * DEADLINE_S)
    assert hostile.ran() == []
    assert code != 1, started.err
    if "OUT" in COMMAND_LINES[name]:
        assert hostile.report.exists() or name in ("baseline", "fleet"), (
            started.err
        )  # a store in a folder of others is refused


@pytest.mark.parametrize("kind", CHILDREN)
@needs_torch
def test_no_kind_of_child_does(kind: str, hostile: Hostile) -> None:
    started = hostile.start(SCRIPT.replace("KIND", CHILDREN[kind]), variables=LOOSE)
    assert started.wait() == 0, started.err
    assert hostile.ran() == []


@needs_torch
def test_neither_do_ranks_of_torchrun_nor_the_process_that_reports_for_one_that_was_killed(hostile: Hostile) -> None:
    argv = ["bandwidth", "--backend", "gloo", "--nproc", "2", *ENDLESS, "--json", str(hostile.report)]
    started = hostile.start(PROGRAM, *argv, variables=LOOSE)
    hostile.lab.until_rows(1)
    os.kill(started.popen.pid, signal.SIGKILL)
    hostile.lab.until(hostile.report.exists, "no report was written")
    assert hostile.ran() == []
    torchrun = "import sys; sys.argv[0] = 'torchrun'\nfrom torch.distributed.run import main\nmain()\n"
    rank, report = hostile.folder / "rank.py", hostile.folder / "of-torchrun"
    rank.write_text(PROGRAM)
    own = ["--standalone", "--nproc-per-node", "2", "--no-python", hostile.python[-1], str(rank), "bandwidth"]
    started = hostile.start(torchrun, *own, "--backend", "gloo", *SHORT, "--json", str(report))
    assert started.wait() == 0, started.err
    assert (report.exists(), hostile.ran()) == (True, [])
