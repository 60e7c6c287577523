"""Play jobs of 2 to 64 ranks of NCCL alone, and ask its RAS of them at three moments, as text and as JSON."""

import fnmatch
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from failures.nccl import NCCL, played, read, write
from failures.nccl_cases import NcclCase
from tests.lab import Lab

SIZES = {2: 1, 4: 2, 8: 1, 16: 2, 32: 4, 64: 8}
"""The hosts of so many ranks."""
STATES = {"healthy": ("sleep:28",), "stopped": ("1!stop", "sleep:28"), "killed": ("1!kill", "sleep:28")}
BEHIND = ("1!sleep:28", "all_reduce:1000")
"""Only of small jobs: who waits in an operation costs a processor."""
_MOST_BEHIND = 4
_AT_S = (1.0, 8.0, 20.0)
_ASK_S, _DEADLINE_S = 20.0, 45.0


def jobs() -> dict[str, tuple[int, str, tuple[str, ...]]]:
    """Ranks, state and words by name."""
    found = {f"{state}-{size}": (size, state, words) for size in SIZES for state, words in STATES.items()}
    return found | {f"behind-{size}": (size, "behind", BEHIND) for size in SIZES if size <= _MOST_BEHIND}


def record(tag: str, select: str, folder: Path) -> None:
    """Play the jobs whose name `select` matches, and put what RAS said into one file."""
    path = folder / "nccl_ras.jsonl.gz"
    rows = read(path) if path.exists() else {}
    for name in fnmatch.filter(jobs(), select):
        rows[name] = row = asked(name, tag)
        print(f"{name}: {row['exit_codes']}", flush=True)
        write(path, rows)


def asked(name: str, tag: str) -> dict[str, Any]:
    """Play one; what RAS said by moment and form, and how the ranks ended."""
    size, state, words = jobs()[name]
    answers: dict[str, str] = {}

    @contextmanager
    def asking(lab: Lab) -> Iterator[None]:
        begun = time.monotonic()
        for at_s in _AT_S:
            time.sleep(max(0.0, begun + at_s - time.monotonic()))
            for form in ("text", "json"):
                client = [str(NCCL / tag / "ncclras"), "-v", "-f", form]
                said = lab.hosts[0].run(client, timeout_s=_ASK_S).out
                if '"communicators_count": 0' not in said:  # its rank had left already
                    answers[f"{at_s:g} {form}"] = said
        yield

    env = {"NCCL_RUNTIME_CONNECT": "1", "RANK_WAITS_S": "60"}
    case = NcclCase(name, "", (), ("all_reduce:1000", *words), hosts=SIZES[size], env=env, during=asking, debug="WARN",
                    world=size, deadline_s=_DEADLINE_S + 3 * size)  # fmt: skip
    row = played(case, tag)
    return {"name": name, "state": state, "ranks": size, "hosts": SIZES[size], "release": tag,
            "exit_codes": row["exit_codes"], "answers": answers}  # fmt: skip
