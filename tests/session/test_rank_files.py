"""What ranks leave behind for whoever started them."""

from pathlib import Path

from ncclprobe.session.ranks.rank_files import RankFile, RankState, read_state


def test_the_last_phase_and_the_last_words_are_found(tmp_path: Path) -> None:
    rank_file = RankFile(str(tmp_path), 1, "n1")
    assert read_state(tmp_path, 1, "?") == RankState(1, "n1")
    rank_file.set_phase("all_reduce 16 MiB in place batch 1 of 5")
    rank_file.set_phase("verdict")
    assert read_state(tmp_path, 1, "?") == RankState(1, "n1", "verdict")
    rank_file.leave("rank 0 has fallen silent " + "é" * 5000, 3)
    found = read_state(tmp_path, 1, "?")
    assert (found.phase, found.exit_reason[:6], found.exit_code) == ("verdict", "rank 0", 3)


def test_a_rank_that_left_nothing_never_got_beyond_its_start(tmp_path: Path) -> None:
    (tmp_path / "rank.1").write_text('{"rank": 1, "ho')
    for rank in (0, 1):
        assert read_state(tmp_path, rank, "n0") == RankState(rank, "n0", "start")
