"""Starting the ranks of a gloo_*.py program beside this file, and reading the JSON that each prints.

Run by itself as ``python gloo_ranks.py COUNT FOLDER PROGRAM ARGUMENTS…`` it is the process of which all ranks are
forked: torch, and what else PROGRAM imports, is imported once and not by each of them. What a rank prints goes to
FOLDER/rank-N.
"""

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

DEADLINE_S = 60
TESTS = Path(__file__).parents[1]


def printed(program: str, count: int, who: str, store: Path, *more: object) -> list[Any]:
    """What every rank printed, by rank; `who`: their hosts, or how many. Fails where one ends badly or not in time."""
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    argv = [count, store.parent, Path(__file__).with_name(program), who, store, *more]
    process = subprocess.Popen(
        [sys.executable, "-W", "error", __file__, *map(str, argv)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, told = process.communicate(timeout=DEADLINE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, told
    return [json.loads((store.parent / f"rank-{rank}").read_text()) for rank in range(count)]


def _become(rank: int, folder: str, program: str, argv: list[str]) -> NoReturn:
    """Play `program` as this rank, in a process of its own."""
    os.dup2(os.open(f"{folder}/rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    sys.argv = [program, str(rank), *argv]
    runpy.run_path(program, run_name="__main__")
    sys.stdout.flush()
    os._exit(0)  # to take torch apart costs twice what the ranks here compute


def _main(count: str, folder: str, program: str, *argv: str) -> int:
    sys.argv = [program, "0", *argv]
    runpy.run_path(program)  # what it imports is there before the fork
    ranks = []
    for rank in range(int(count)):
        if not (pid := os.fork()):
            _become(rank, folder, program, list(argv))
        ranks.append(pid)
    return max(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for pid in ranks)


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
