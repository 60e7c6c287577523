"""py-spy, which reads the stacks of a Python process from its memory without stopping it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ncclprobe.host import polls
from ncclprobe.host.command import found, run
from ncclprobe.host.deadlines import STACKS_S
from ncclprobe.model.errors import Missing

RANKS, WORLDS = ("rank", "global_rank", "r", "local_rank"), ("world_size", "world", "nprocs")
"""Common variable names for a rank's number, and for the number of ranks."""

_DISTRIBUTED = "/torch/distributed/"
_KEPT = {
    _DISTRIBUTED: {
        *("src", "dst", "group_src", "group_dst", "tag", "ranks", "group_name", "init_method", "world_size"),
        *("rank", "backend", "hostname", "port", "key"),
    },
    "/torch/utils/cpp_extension.py": {"build_directory"},
    "/filelock/": {"lock_filename"},
    "/threading.py": {"self"},
}
"""Variables of libraries that show what a call waits for, by the library's path; no other value leaves this module."""
_OF_PROGRAMS = {"src", "dst", "tag", "peer"}
_WORK, _GROUP = "distributed_c10d.Work at", "ProcessGroup at"
_MOST_VALUE, _MOST_CALLERS = 160, 4


def installed() -> str | None:
    """Return the path of py-spy; None: it is not installed."""
    return found("py-spy", [str(Path(sys.executable).parent)])


def stacks(pid: str) -> str:
    """Return a process's threads as JSON: their frames, with the few values that show what a call waits for.

    Raises Missing, and the errors of running a program.
    """
    threads = [
        {
            "os_thread_id": each["os_thread_id"],
            "thread_name": each.get("thread_name"),
            "frames": _add_polled(pid, [kept_frame(frame) for frame in each["frames"]]),
        }
        for each in json.loads(dump(pid))
    ]
    return json.dumps(threads)


def _add_polled(pid: str, frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a thread's frames; if its program pauses in a loop, add what the loop polls to the first."""
    own = [each for each in frames if not any(part in each["filename"] for part in ("<", "/lib/python", "-packages/"))]
    if not own or own[0] is not frames[0]:
        return frames
    asked = polls.asked(pid, [(each["filename"], each["line"]) for each in own[:_MOST_CALLERS]])
    if asked is not None:
        kind, words, line = asked
        frames[0].setdefault("values", {}).update(asks=kind, asked=f"{words}, line {line}")
    return frames


def kept_frame(frame: dict[str, Any]) -> dict[str, Any]:
    """Return a frame's position and the few values that may leave this module."""
    found = {name: frame[name] for name in ("name", "filename", "line")}
    return {**found, **({"values": values} if (values := dict(_values(frame))) else {})}


def _values(frame: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a frame's plain values, and whether it awaits an operation of torch, gets a group, or handles a signal."""
    known = [(each["name"], each["repr"] or "", each.get("arg")) for each in frame["locals"] or ()]
    kept = next((names for path, names in _KEPT.items() if path in frame["filename"]), None)
    for name, text, _ in known:
        if kept is None and _WORK in text:
            yield "work", name
        plain = text.isdecimal() if kept is None else not text.startswith(("<", "{", "None"))
        if name in (_OF_PROGRAMS if kept is None else kept) and (plain or name == "self"):
            yield name, text.strip("\"'")[:_MOST_VALUE]
    passed = "".join(text for name, text, _ in known if name in ("args", "kwargs"))
    if kept is not None and passed and (_GROUP in passed or "..." not in passed):
        yield "group", "given" if _GROUP in passed else "default"
    given = [text for _, text, is_argument in known if is_argument]
    if len(given) == 2 and given[0].isdecimal() and given[1].startswith("<frame at"):
        yield "signal", given[0]


def dump(pid: str) -> str:
    """Return py-spy's JSON of a process's stacks. Raises Missing, Failed."""
    if not (program := installed()):
        raise Missing("py-spy is not installed; run `pip install py-spy`")
    asked = [program, "dump", "--nonblocking", "--json", "--locals", "--pid", pid]
    return run(asked, STACKS_S) or run(asked, STACKS_S)  # nothing: the process ran meanwhile


def numbers(pid: str) -> str:
    """Return the variables RANKS and WORLDS of a process's first thread, as JSON. Raises as :func:`stacks` does.

    The outermost function with such a variable counts. torch.multiprocessing.spawn calls the number ``i``.
    """
    threads = json.loads(dump(pid))
    known: dict[str, int] = {}
    for frame in reversed(next((each["frames"] for each in threads if each["os_thread_id"] == int(pid)), ())):
        of_spawn = frame["name"] == "_wrap" and frame["filename"].endswith("/torch/multiprocessing/spawn.py")
        for each in frame["locals"] or ():
            name, text = "rank" if of_spawn and each["name"] == "i" else each["name"], each["repr"] or ""
            if name in (*RANKS, *WORLDS) and text.isdecimal():
                known.setdefault(name, int(text[:9]))
    return json.dumps(known)
