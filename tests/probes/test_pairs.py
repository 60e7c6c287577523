"""Pairs on real ranks of which two never get through: that ends their round, and nobody else's."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

from ncclprobe.pairs.samples import End
from ncclprobe.probes.tournament import ends

DEADLINE_S = 60
RANKS, SILENT, DEAF = 5, 2, 1
ROOT = Path(__file__).parents[2]


def played(store: Path) -> list[dict[str, Any]]:
    """What every rank printed, by rank."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    program = Path(__file__).with_name("gloo_pairs.py")
    processes = [
        subprocess.Popen(
            [sys.executable, program, str(rank), str(RANKS), store, str(SILENT), str(DEAF)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for rank in range(RANKS)
    ]
    try:
        answers = [process.communicate(timeout=DEADLINE_S) for process in processes]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert [process.returncode for process in processes] == [0] * RANKS, "\n".join(err for _, err in answers)
    return [json.loads(out) for out, _ in answers]


def test_a_pair_that_hangs_is_named_and_set_aside_and_the_others_play_on(tmp_path: Path) -> None:
    said = played(tmp_path / "store")
    found, rows = said[0]["found"], said[0]["rows"]
    lost = {(each["src"], each["dst"]) for each in found["lost"]}
    assert lost == {(f"rank {SILENT}", f"rank {DEAF}"), (f"rank {DEAF}", f"rank {SILENT}")}
    assert [each["lost"] for each in said] == [rank == DEAF for rank in range(RANKS)]
    one_way = {(row["src"], row["dst"]) for row in rows if not row["both"] and not row["step"]}
    others = set(range(RANKS)) - {SILENT, DEAF}
    assert set(permutations(others, 2)) <= one_way
    assert not {(SILENT, DEAF), (DEAF, SILENT)} & one_way
    assert all(row["GBps"] > 0 and row["latency_us"] > 0 and len(row["samples_us"]) == 5 for row in rows)


def test_ranks_of_one_node_play_for_themselves_and_ranks_of_several_by_rail() -> None:
    assert ends(["h", "h"]) == (End("rank 0"), End("rank 1"))
    assert ends(["a", "a", "b", "b"]) == (End("a", 0), End("a", 1), End("b", 0), End("b", 1))
