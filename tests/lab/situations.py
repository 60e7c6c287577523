"""Situations in which a process may see or do less: ordinary users, containers, limits. Each is a shell's preparation.

All is done in a mount namespace of its own, so that nothing of it outlives the command.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from ncclprobe.model.values import Struct, field

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("unshare", "setpriv", "mount", "sh")
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
NO_CAPABILITIES = ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
DEADLINE_S = 90.0


class Situation(Struct, frozen=True):
    """`prepare` are lines of sh before the command, `become` the words before it. `unknown`: checks that are then
    unknown, by id, and a part of what is said of them; `code` is the exit code for --backend gloo.
    """

    name: str
    prepare: str = ""
    become: tuple[str, ...] = ()
    unshare: tuple[str, ...] = ("--mount",)
    unknown: dict[str, str] = field(default_factory=dict)
    code: int = 0
    limit_bytes: int = 0

    @property
    def memory(self) -> bool:
        """Whether memory is so scarce that a run may say that there is none, and judge nothing."""
        return self.prepare.startswith("ulimit -v")


KMSG = {"gpu.errors": "needs root, kernel.dmesg_restrict=0, or the group adm"}
NO_CLASS = dict.fromkeys(("ib.state", "env.gid"), "start the container with the machine's /sys")
NO_SYS = {**NO_CLASS, "host.limits": "start the container with the machine's /sys"}  # pids.max of its control group
NO_PROC = {
    "host.oom": "start the container with the machine's /proc",
    "host.cpu": "start the container with the machine's /proc",
}
READ_ONLY = """\
mount --bind / / && mount -o remount,ro,bind /
for each in /tmp /dev/shm /run; do mount --bind $each $each && mount -o remount,ro,bind $each; done"""

SITUATIONS = (
    Situation("root"),
    Situation("an ordinary user", become=NOBODY, unknown=KMSG),
    Situation("an ordinary user, all capabilities dropped", become=(*NOBODY, *NO_CAPABILITIES), unknown=KMSG),
    Situation("root without any capability", become=("setpriv", *NO_CAPABILITIES), unknown=KMSG),
    Situation("a read-only root, TMPDIR included", READ_ONLY),
    Situation("/sys hidden", "mount -t tmpfs tmpfs /sys", unknown=NO_SYS, code=3),
    Situation("/sys/class hidden", "mount -t tmpfs tmpfs /sys/class", unknown=NO_CLASS, code=3),
    Situation("/proc hidden", "mount -t tmpfs tmpfs /proc", unknown=NO_PROC),
    Situation(
        "an ordinary user, /proc with hidepid=2",
        "mount -t proc -o hidepid=2 proc /proc",
        NOBODY,
        ("--mount", "--pid", "--fork"),
        unknown=KMSG,
    ),
    Situation("a cgroup limit of 64 MiB", limit_bytes=64 << 20),
    Situation("ulimit -v of 100 MB", "ulimit -v 100000", unknown={"host.oom": "not asked, for "}, code=3),
)


def doctor(situation: Situation, backend: str) -> "subprocess.CompletedProcess[str]":
    """Run the doctor in `situation`. Exit code 99: it cannot be had here."""
    own = [sys.executable, "-m", "ncclprobe", "doctor", "--local", "--backend", backend, "--json", "-"]
    words = shlex.join([*situation.become, *own, "--timeout", "40", "--no-color"])
    with _cgroup(situation.limit_bytes) as enter:
        lines = [enter, f"cd {shlex.quote(str(ROOT))}", _reachable() if situation.become else "", situation.prepare]
        script = "\n".join([f"{{ {line}\n}} || exit 99" for line in lines if line] + [f"exec {words}"])
        variables = {name: value for name, value in os.environ.items() if name not in ("TMPDIR", "HOME")}
        return subprocess.run(
            ["unshare", *situation.unshare, "sh", "-c", script],
            capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=variables,
        )  # fmt: skip


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


@contextmanager
def _cgroup(limit_bytes: int) -> Iterator[str]:
    """A line of sh that enters a cgroup whose memory is limited; empty without a limit."""
    if not limit_bytes:
        yield ""
        return
    first = Path("/sys/fs/cgroup/memory")
    parent, limit = (first, "memory.limit_in_bytes") if first.is_dir() else (Path("/sys/fs/cgroup"), "memory.max")
    folder = parent / f"ncclprobe-test-{uuid4().hex[:8]}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(limit_bytes))
    except OSError:
        yield "false"
        return
    try:
        yield f"echo $$ >{folder}/cgroup.procs"
    finally:
        folder.rmdir()
