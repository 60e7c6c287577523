"""py-spy, a program that reads the stacks of a Python process from its memory, without stopping it."""

import json
import sys
from pathlib import Path

from ncclprobe.host.command import found, run
from ncclprobe.host.deadlines import STACKS_S
from ncclprobe.model.errors import Missing

RANKS, WORLDS = ("rank", "global_rank", "r", "local_rank"), ("world_size", "world", "nprocs")
"""What programs call the number of a rank, and that of all ranks."""


def installed() -> str | None:
    """Return the path of py-spy; None: it is not installed."""
    return found("py-spy", [str(Path(sys.executable).parent)])


def stacks(pid: str, *options: str) -> str:
    """Return what ``py-spy dump`` prints of a process as JSON. Raises Missing, and what running a program raises."""
    if not (program := installed()):
        raise Missing("py-spy is not installed: pip install py-spy")
    return run([program, "dump", "--nonblocking", "--json", *options, "--pid", pid], STACKS_S)


def numbers(pid: str) -> str:
    """Return the variables RANKS and WORLDS of a process's first thread, as JSON. Raises as :func:`stacks` does.

    The outermost function that has such a variable counts. torch.multiprocessing.spawn calls the number ``i``.
    """
    threads = json.loads(stacks(pid, "--locals"))
    known: dict[str, int] = {}
    for frame in reversed(next((each["frames"] for each in threads if each["os_thread_id"] == int(pid)), ())):
        of_spawn = frame["name"] == "_wrap" and frame["filename"].endswith("/torch/multiprocessing/spawn.py")
        for each in frame["locals"] or ():
            name, text = "rank" if of_spawn and each["name"] == "i" else each["name"], each["repr"] or ""
            if name in (*RANKS, *WORLDS) and text.isdecimal():
                known.setdefault(name, int(text[:9]))
    return json.dumps(known)
