"""What ranks leave behind for whoever started them."""

from pathlib import Path

from ncclprobe.session.ranks.rank_files import Trace, Trail, ends, note_ends, trace


def test_the_last_phase_and_the_last_words_are_found(tmp_path: Path) -> None:
    trail = Trail(str(tmp_path), 1, "n1")
    assert trace(tmp_path, 1, "?") == Trace(1, "n1")
    trail.phase("all_reduce 16 MiB in place batch 1 of 5")
    trail.phase("verdict")
    assert trace(tmp_path, 1, "?") == Trace(1, "n1", "verdict")
    trail.words("rank 0 has fallen silent " + "é" * 5000)
    found = trace(tmp_path, 1, "?")
    assert (found.phase, found.words[:6]) == ("verdict", "rank 0")


def test_a_rank_that_left_nothing_never_got_beyond_its_start(tmp_path: Path) -> None:
    (tmp_path / "rank.1").write_text('{"rank": 1, "ho')
    for rank in (0, 1):
        assert trace(tmp_path, rank, "n0") == Trace(rank, "n0", "start")


def test_how_ranks_ended_is_read_back(tmp_path: Path) -> None:
    assert ends(tmp_path) == {}
    note_ends(tmp_path, {0: -9, 3: 4})
    assert ends(tmp_path) == {0: -9, 3: 4}
