"""A ladder on real ranks of two nodes: every rung, in groups of its own."""

from pathlib import Path

import msgspec
import pytest

from probes.gloo_ranks import printed

pytest.importorskip("torch")

from ncclprobe.model.traffic import LadderRow
from ncclprobe.model.training import climbed


@pytest.mark.slow
def test_five_ranks_of_two_nodes_climb_from_one_to_all(tmp_path: Path) -> None:
    said = printed("gloo_ladder.py", 5, "a,a,a,b,b", tmp_path / "store")
    assert said[1:] == [[]] * 4
    rows = climbed([msgspec.convert(row, LadderRow) for row in said[0]], ())
    assert [row.rung for row in rows] == ["rank", "pair", "node", "job"]
    assert [row.groups for row in rows] == [5, 2, 2, 1]
    assert [row.slowest for row in rows][3] == tuple(range(5))
    assert rows[1].slowest in ((0, 1), (3, 4))
    assert rows[2].slowest in ((0, 1, 2), (3, 4))
    assert [row.ranks for row in rows] == [len(row.slowest) for row in rows]
    assert (rows[0].busbw_GBps, rows[0].speedup, rows[0].efficiency) == (None, 1.0, 1.0)
    assert all(row.samples_us and 0 < min(row.samples_us) <= row.step_us <= max(row.samples_us) for row in rows)
    for row in rows[1:]:
        assert row.busbw_GBps is not None
        assert row.best_GBps is not None
        assert 0 < row.busbw_GBps <= row.best_GBps
