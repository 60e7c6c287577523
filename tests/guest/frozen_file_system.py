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
        steps: dict[str, Callable[[], object]] = {
            "a sleeper": partial(command.run, ["touch", str(mount / "a")], PATIENCE_S),
            "a sleeping child": partial(command.run, ["sh", "-c", f"touch {mount}/b & echo; wait"], PATIENCE_S),
            "a child whose parent ended": partial(command.run, ["sh", "-c", f"touch {mount}/c & echo"], PATIENCE_S),
            "command.abandon": partial(abandons, ["touch", str(mount / "d")]),
            "NvmlChild.call": partial(NvmlChild().call, "nvmlDeviceGetCount", patience_s=START_S),
            "a program that ends after it": outlives,
        }
        late = [name for name, step in steps.items() if not in_time(name, step)]
        left = sleepers()
        print(f"{len(left)} processes still sleep uninterruptibly and were sent SIGKILL")
    good = not late and len(left) == len(steps)
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


def abandons(argv: list[str]) -> None:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    time.sleep(1)
    command.abandon(process)
    raise TimedOut("abandoned")


def outlives() -> None:
    argv = [sys.executable, "-c", OUTLIVING, str(START_S)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=2 * BOUND_S, check=True)
    raise TimedOut(done.stdout) if done.stdout == "timed out\n" else AssertionError(done.stdout)


def in_time(name: str, step: Callable[[], object]) -> bool:
    started, outcome = time.monotonic(), "returned, which it must not"
    try:
        step()
    except TimedOut as error:
        outcome = f"timed out: {error}"
    seconds = time.monotonic() - started
    print(f"{seconds:5.1f} s  {name}: {outcome}", flush=True)
    return seconds < BOUND_S and outcome.startswith("timed out")


def sleepers() -> list[int]:
    """Processes in uninterruptible sleep for which SIGKILL waits, to themselves or to all their threads."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = (folder / "status").read_text().splitlines()
        except OSError:
            continue
        said = dict(line.split(":", 1) for line in lines)
        masks = [int(said[name], 16) for name in ("SigPnd", "ShdPnd")]
        if "D (" in said["State"] and any(mask >> 8 & 1 for mask in masks):
            found.append(int(folder.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
