"""The benchmark of pairs runs and says what it ran; how good the figures are is no test."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS)]

import localisation
import recorded_pairs
from fleets.recorded import CHOSEN, HELD_BACK, recorded_sets
from fleets.trials import Again, Trial, play, replay, tally

HEAD = """\
# nThread 1 nGpus 1 minBytes 33554432 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#  Rank  0 Group  0 Pid 440651 on a-01 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 381706 on a-02 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""


def test_every_planted_kind_is_counted_and_every_healthy_fleet_blames_no_part() -> None:
    seen = {kind: play(Trial(8, HELD_BACK, kind, 0.2, count=count)) for _, kind, count in localisation.KINDS}
    assert {kind: each.planted for kind, each in seen.items()} == {
        "node": 2, "nic": 1, "direction": 1, "pair": 1, "dead": 2, "uplink": 1, "leaf": 1, "link": 1
    }  # fmt: skip
    assert all(each.innocent == () for each in seen.values())
    healthy = [play(Trial(8, noise, fabric=fabric)) for _, noise, fabric in localisation.HEALTHY]
    assert [(each.planted, each.innocent) for each in healthy] == [(0, ())] * len(healthy)
    assert tally(seen.values()).planted == 10


def test_a_recorded_set_is_tried_at_every_node_and_never_at_a_pair_that_was_not_recorded() -> None:
    [name, *_] = [name for name in recorded_sets() if name.startswith(CHOSEN)]
    assert {again.at[0] for again in localisation.tries(name, "node", 0.1, 2)} == set(range(10))
    assert len(localisation.tries("cluster00 sendrecv 8", "dead", 0.1, 1)) == 16  # nodes 8 and 9 never met
    outcome = replay(Again("cluster00 sendrecv 8", "dead", 0.1, (0, 1, 4)))
    assert (outcome.planted, outcome.named, outcome.innocent) == (2, 2, ())


def test_a_log_of_two_nodes_becomes_one_row_per_operation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "benchmarks/example-cluster07/results/pairwise/runs/1"
    folder.mkdir(parents=True)
    rows = "".join(
        f"{nbytes} {nbytes // 8} double sum -1 {us:.2f} 40.00 40.00 0 {us:.2f} 40.00 40.00 N/A\n"
        for nbytes, us in ((n, n / 4e4) for n in (32 << 20, 64 << 20, 128 << 20))
    )
    text = f"# Collective test starting: sendrecv_perf\n{HEAD}{rows}# Out of bounds values : 0 OK\n"
    (folder / "nccl_N2_G4_a-01_a-02.log").write_text(text)
    (folder / "nccl_N2_G4_a-01_a-03.log").write_text("srun: error: it did not start\n")
    assert recorded_pairs.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "set,node_a,node_b,busbw_GBps", "cluster07 sendrecv 4,a-01,a-02,40 40 40 40"
    ]  # fmt: skip
    assert recorded_pairs.main([]) == 2


def test_nonsense_is_refused() -> None:
    for arguments in (("--seeds", "0"), ("--nodes", "2")):
        command = [sys.executable, str(SCRIPTS / "localisation.py"), *arguments]
        assert subprocess.run(command, capture_output=True, timeout=100).returncode == 2
