"""What the doctor says where it may see or do less: each loss is unknown, with what would help; nothing is a bug.

A situation is a shell's preparation in a mount namespace of its own, so that nothing of it outlives the command.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.model.values import Struct, field
from ncclprobe.signals import NO_MEMORY

ROOT = Path(__file__).resolve().parents[2]
_MISSING = [tool for tool in ("unshare", "setpriv", "mount", "sh") if shutil.which(tool) is None]
_WHY_NOT = f"{', '.join(_MISSING)} are missing" if _MISSING else "" if os.geteuid() == 0 else "needs root, to be less"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "each situation can be had here")]

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
NO_CAPABILITIES = ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
KMSG = {"gpu.errors": "needs root, kernel.dmesg_restrict=0, or the group adm"}
NO_CLASS = dict.fromkeys(("ib.state", "env.gid"), "start the container with the machine's /sys")
NO_SYS = {**NO_CLASS, "host.limits": "start the container with the machine's /sys"}  # pids.max of its control group
NO_PROC = dict.fromkeys(("host.oom", "host.cpu"), "start the container with the machine's /proc")
READ_ONLY = """\
mount --bind / / && mount -o remount,ro,bind /
for each in /tmp /dev/shm /run; do mount --bind $each $each && mount -o remount,ro,bind $each; done"""


class Situation(Struct, frozen=True):
    """`prepare` are lines of sh before the command, `become` the words before it. `unknown`: checks that are then
    unknown, by id, and a part of what is said of them; `code` is the exit code for --backend gloo. `memory`: it is so
    scarce that a run may say that there is none, and judge nothing.
    """

    name: str
    prepare: str = ""
    become: tuple[str, ...] = ()
    unshare: tuple[str, ...] = ("--mount",)
    unknown: dict[str, str] = field(default_factory=dict)
    code: int = 0
    memory: bool = False


SITUATIONS = (
    Situation("root"),
    Situation("an ordinary user, all capabilities dropped", become=(*NOBODY, *NO_CAPABILITIES), unknown=KMSG),
    Situation("root without any capability", become=("setpriv", *NO_CAPABILITIES), unknown=KMSG),
    Situation("a read-only root, TMPDIR included", READ_ONLY),
    Situation("/sys hidden", "mount -t tmpfs tmpfs /sys", unknown=NO_SYS, code=3),
    Situation("/sys/class hidden", "mount -t tmpfs tmpfs /sys/class", unknown=NO_CLASS, code=3),
    Situation("/proc hidden", "mount -t tmpfs tmpfs /proc", unknown=NO_PROC),
    Situation("an ordinary user, /proc with hidepid=2", "mount -t proc -o hidepid=2 proc /proc", NOBODY,
              ("--mount", "--pid", "--fork"), unknown=KMSG),
    Situation("ulimit -v of 100 MB", "ulimit -v 100000", unknown={"host.oom": "not asked, for "}, code=3, memory=True),
)  # fmt: skip


def doctor(situation: Situation, backend: str) -> "subprocess.CompletedProcess[str]":
    """Run the doctor in `situation`. Exit code 99: it cannot be had here."""
    own = [sys.executable, "-m", "ncclprobe", "doctor", "--local", "--backend", backend, "--json", "-"]
    words = shlex.join([*situation.become, *own, "--timeout", "40", "--no-color"])
    lines = [f"cd {shlex.quote(str(ROOT))}", _reachable() if situation.become else "", situation.prepare]
    script = "\n".join([f"{{ {line}\n}} || exit 99" for line in lines if line] + [f"exec {words}"])
    variables = {name: value for name, value in os.environ.items() if name not in ("TMPDIR", "HOME")}
    command = ["unshare", *situation.unshare, "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=90.0, check=False, env=variables)


def _reachable() -> str:
    """Lines of sh that let every user reach our Python and this checkout, also below a folder such as /root."""
    needed = {
        Path(path).resolve() for path in (sys.base_prefix, sys.prefix, str(ROOT), *sys.path) if Path(path).is_dir()
    }
    closed = {path: shut for path in needed if (shut := _shut(path))}
    hold, lines = "/dev/shm/hold", ["mount -t tmpfs tmpfs /dev/shm", "mkdir /dev/shm/hold"]
    for number, path in enumerate(sorted(closed)):
        lines += [f"mkdir {hold}/{number}", f"mount --bind {shlex.quote(str(path))} {hold}/{number}"]
    lines += [f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(each))}" for each in sorted(set(closed.values()))]
    for number, path in enumerate(sorted(closed)):
        quoted = shlex.quote(str(path))
        lines += [f"mkdir -p {quoted}", f"mount --bind {hold}/{number} {quoted}"]
    return " && ".join(lines) if closed else ""


def _shut(path: Path) -> Path | None:
    """The first folder on the way to `path` that other users may not pass."""
    way = [each for each in (*reversed(path.parents), path) if not each.stat().st_mode & 0o001]
    return way[0] if way else None


def report(situation: Situation, backend: str) -> dict[str, Any]:
    done = doctor(situation, backend)
    if done.returncode == 99:
        pytest.skip(f"this kernel, or this container, has no such situation: {done.stderr.strip()}")
    assert "Traceback" not in done.stderr
    assert situation.memory or "Exception" not in done.stderr  # Python itself may have no memory to keep quiet
    if situation.memory and not done.stdout:
        assert (done.returncode, "nothing was judged" in done.stderr) == (3, True), done.stderr
        pytest.skip("so little memory that this time nothing could be judged, as was said")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode
    return found


@cache
def as_root(backend: str) -> dict[str, str]:
    return statuses(report(SITUATIONS[0], backend))


def statuses(found: dict[str, Any]) -> dict[str, str]:
    return {check["id"]: check["status"] for check in found["checks"]}


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_what_is_lost_is_unknown_and_says_what_would_help(situation: Situation) -> None:
    """A job on GPUs, and then one without, for which the exit code is by what was lost."""
    found = report(situation, "nccl")
    assert found["exit_code"] in (3, 4)  # a machine without a GPU is inconclusive, and one with GPUs may be sick
    whys = {check["id"]: check["why"] for check in found["checks"] if check["status"] == "unknown"}
    if situation.memory:  # which of its readings finds no room is another one each time
        assert [why for why in whys.values() if NO_MEMORY in why or "not asked, because " in why]
    else:
        assert {name: words for name, words in situation.unknown.items() if words not in whys.get(name, "")} == {}
    before = as_root("nccl")
    passed = {name for name, status in statuses(found).items() if status == "pass"}
    assert {name for name in passed if before[name] not in ("pass", "skip")} == set()

    found = report(situation, "gloo")
    before, after = as_root("gloo"), statuses(found)
    lost = {after[name] for name, status in before.items() if status == "pass" and after[name] != "pass"}
    assert lost <= {"unknown", "skip", "warn"}
    if before["host.oom"] == "pass" and found["coverage"]["fail"] == 0:
        assert found["exit_code"] == situation.code
