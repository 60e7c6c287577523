"""Starting the ranks of a gloo_*.py program beside this file, and reading the JSON that each prints."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

DEADLINE_S = 60
TESTS = Path(__file__).parents[1]


def printed(program: str, count: int, who: str, store: Path, *more: object) -> list[Any]:
    """What every rank printed, by rank; `who`: their hosts, or how many. Fails where one ends badly or not in time."""
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", Path(__file__).with_name(program), str(rank), who, store, *map(str, more)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for rank in range(count)
    ]
    try:
        answers = [process.communicate(timeout=DEADLINE_S) for process in processes]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert [process.returncode for process in processes] == [0] * count, "\n".join(err for _, err in answers)
    return [json.loads(out) for out, _ in answers]
