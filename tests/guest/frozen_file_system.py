"""Run as root in a guest: processes in uninterruptible sleep hold nobody up.

Whoever creates a file on a frozen file system sleeps in the kernel (``percpu_rwsem_wait``), survives SIGKILL and keeps
its pipes open, as the users of a wedged driver do. Prints a line per step; exits with 0 if all came back in time.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ncclprobe.host import command
from ncclprobe.host.nvml_child import NvmlChild
from ncclprobe.model.errors import TimedOut

PATIENCE_S = 2.0
START_S = 15.0  # until a child has reached NVML; the processor is emulated
BOUND_S = 60.0  # what is wrong here lasts for ever
OUTLIVING = """
import sys
from ncclprobe.model.errors import TimedOut
from ncclprobe.host.nvml_child import NvmlChild
try:
    NvmlChild().call("nvmlDeviceGetCount", patience_s=float(sys.argv[1]))
except TimedOut:
    print("timed out")
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, frozen(Path(folder)) as mount:
        os.environ["FAKE_NVML_WRITE"] = str(mount / "by-nvml")
        sleeps = {
            "a sleeper": ["touch", str(mount / "a")],
            "whose child sleeps and holds its pipes": ["sh", "-c", f"touch {mount}/b & echo started; wait"],
            "whose parent has ended": ["sh", "-c", f"touch {mount}/c & echo started"],
        }
        steps: dict[str, Callable[[], str]] = {
            f"command.run of {name}": partial(times_out, partial(command.run, argv, PATIENCE_S))
            for name, argv in sleeps.items()
        }
        steps["command.abandon"] = partial(abandons, ["touch", str(mount / "d")])
        steps["NvmlChild.call"] = lambda: times_out(lambda: NvmlChild().call("nvmlDeviceGetCount", patience_s=START_S))
        steps["a program that ends after NvmlChild.call"] = outlives
        late = [name for name, step in steps.items() if not in_time(name, step)]
        left = sleepers()
        killed = [pid for pid in left if pending_kill(pid)]
        print(f"{len(left)} processes still sleep uninterruptibly, {len(killed)} of them were sent SIGKILL: {left}")
    good = not late and len(killed) == len(left) == len(steps)
    print("every step came back in time" if good else "NOT as it must be")
    return int(not good)


@contextmanager
def frozen(folder: Path) -> Iterator[Path]:
    """A small ext4, mounted and frozen, thawed again afterwards."""
    image, mount = folder / "image", folder / "mount"
    mount.mkdir()
    make = (f"truncate -s 16M {image}", f"mkfs.ext4 -q -F {image}", "modprobe loop", f"mount -o loop {image} {mount}")
    for line in (*make, f"fsfreeze --freeze {mount}"):
        subprocess.run(line.split(), check=True)
    try:
        yield mount
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", mount], check=True)
        time.sleep(1)
        subprocess.run(["umount", mount], check=True)


def times_out(work: Callable[[], object]) -> str:
    try:
        return f"returned {work()!r}, which it must not"
    except TimedOut as error:
        return f"timed out: {error}"


def abandons(argv: list[str]) -> str:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    time.sleep(1)
    command.abandon(process)
    return f"timed out: abandoned, still there: {process.poll() is None}"


def outlives() -> str:
    argv = [sys.executable, "-c", OUTLIVING, str(START_S)]
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=2 * BOUND_S, check=True).stdout.strip()


def in_time(name: str, step: Callable[[], str]) -> bool:
    started = time.monotonic()
    outcome = step()
    seconds = time.monotonic() - started
    good = seconds < BOUND_S and outcome.startswith("timed out")
    print(f"{'ok' if good else 'BAD'}  {seconds:5.1f} s  {name}: {outcome}", flush=True)
    return good


def sleepers() -> dict[int, str]:
    """Processes in uninterruptible sleep on a frozen file system, with their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "stat").read_text().rpartition(")")[2].split()[0] == "D":
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")[:60].strip()
        except OSError:
            continue
    return {pid: line for pid, line in found.items() if line}  # kernel threads have no command line


def pending_kill(pid: int) -> bool:
    """Whether SIGKILL waits for the process, to itself or to all its threads."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask >> 8 & 1 for mask in masks)


if __name__ == "__main__":
    sys.exit(main())
