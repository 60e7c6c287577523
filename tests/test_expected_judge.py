"""``ncclprobe expect --judge FILE``: results from elsewhere, judged as a run judges its own."""

import json
from pathlib import Path

import pytest

from ncclprobe.commands import main as program
from ncclprobe.commands.expect import main
from ncclprobe.errors import UsageError

HEAD = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1\n"
TABLE = """
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong    time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
NVLS_US, RING_US, GIB = 31_300.0, 43_000.0, 1 << 30


def log(tmp_path: Path, *times_us: float, ranks: int = 8, said: str = "", nbytes: int = 8 * GIB, wrong: int = 0) -> str:
    """A file of all_reduce_perf with a row per time, the same in and out of place."""
    lines = [HEAD, "# Collective test starting: all_reduce_perf\n# Using devices\n"]
    lines += [f"#  Rank {n:2} Group  0 Pid {n + 1} on n{n // 8} device {n % 8} [0x10] NVIDIA H100 80GB HBM3\n"
              for n in range(ranks)]  # fmt: skip
    lines += [said, TABLE]
    for time_us in times_us:
        algbw = nbytes / time_us / 1e3
        cells = f"{time_us:.1f} {algbw:.2f} {algbw * 2 * (ranks - 1) / ranks:.2f} {wrong}"
        lines.append(f"{nbytes} {nbytes // 4} float sum -1 {cells} {cells}\n")
    path = tmp_path / "all_reduce.log"
    path.write_text("".join(lines))
    return str(path)


def found(capsys: pytest.CaptureFixture[str], code: int, *argv: str) -> dict[str, object]:
    assert main((*argv, "--json")) == code
    told: dict[str, object] = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == code
    return told


def test_a_healthy_log_passes_and_every_row_names_its_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("--judge", log(tmp_path, NVLS_US), "--machine", "dgx-h100")) == 0
    text = capsys.readouterr().out
    assert "2 rows measured, 2 judged: 2 pass" in text
    assert "threshold" in text
    assert "https://" in text


def test_a_slow_row_fails_and_the_exit_code_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = found(capsys, 4, "--judge", log(tmp_path, NVLS_US, 3 * NVLS_US), "--machine", "dgx-h100", "--nodes", "1")
    rows = told["rows"]
    assert isinstance(rows, list)
    assert [row["status"] for row in rows] == ["pass", "pass", "fail", "fail"]
    assert all(row["expectation"]["threshold"] > 0 for row in rows)


@pytest.mark.parametrize("how", ["option", "log"])
def test_a_ring_that_was_asked_for_does_not_fail_at_a_rings_speed(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "n0:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring.\n" if how == "log" else ""
    path = log(tmp_path, RING_US, said=said)
    more = ("--algo", "ring") if how == "option" else ()
    told = found(capsys, 0, "--judge", path, "--machine", "dgx-h100", *more)
    assert told["settings"] == "NCCL_ALGO=Ring"
    assert told["headline"] == "2 rows measured, 2 judged: 2 pass"


def test_rows_that_nothing_judges_are_exit_0_and_the_headline_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = log(tmp_path, 900_000.0, ranks=2)
    told = found(capsys, 0, "--judge", path, "--machine", "g6e.12xlarge", "--nodes", "1")
    assert told["headline"] == "2 rows measured, none judged"


def test_small_rows_between_nodes_never_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log(tmp_path, 50_000.0, ranks=16, nbytes=1 << 20)
    told = found(capsys, 0, "--judge", path, "--machine", "dgx-h100", "--nodes", "2")
    rows = told["rows"]
    assert isinstance(rows, list)
    assert {row["status"] for row in rows} <= {"warn", "unjudged"}


def test_wrong_data_fails_whatever_the_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = found(capsys, 4, "--judge", log(tmp_path, NVLS_US, wrong=3), "--machine", "dgx-h100")
    assert "3 wrong values" in str(told["rows"])


def test_more_ranks_than_gpus_are_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log(tmp_path, NVLS_US, ranks=16)
    assert "has 8 GPUs" in str(found(capsys, 0, "--judge", path, "--machine", "dgx-h100", "--nodes", "1"))
    assert "spread evenly" in str(found(capsys, 0, "--judge", path, "--machine", "dgx-h100", "--nodes", "3"))


@pytest.mark.parametrize("option", [("--op", "broadcast"), ("-b", "1K"), ("--gpus-per-node", "4"), ("--graphs", "x")])
def test_options_that_do_not_apply_to_results_are_refused(option: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not apply"):
        main(("--judge", log(tmp_path, NVLS_US), "--machine", "dgx-h100", *option))


@pytest.mark.parametrize("text", ["", "{", '{"schema": "other"}', "size count type\n", "\x00\xff"])
def test_a_file_that_holds_no_results_is_refused_in_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad"
    path.write_text(text)
    for each in (path, tmp_path / "none"):
        assert program(["expect", "--judge", str(each), "--machine", "dgx-h100"]) == 2
        said = capsys.readouterr()
        assert not said.out
        assert said.err.count("\n") == 1


@pytest.mark.parametrize(("machine", "busbw"), [("GB300 NVL72", 33.0), ("Alps GH200", 5.4)])
def test_a_loss_that_nobody_could_miss_fails_on_every_class_of_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: str, busbw: float
) -> None:
    nbytes, ranks = 4 * GIB, 8
    slow = log(tmp_path, nbytes * 2 * (ranks - 1) / ranks / busbw / 1e3, ranks=ranks, nbytes=nbytes)
    assert main(("--judge", slow, "--machine", machine, "--nodes", "2")) == 4
    text = capsys.readouterr().out
    assert "2 rows measured, 2 judged: 2 fail" in text
    assert "not judged" not in text


def test_what_is_contributed_holds_the_numbers_and_the_links_and_no_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.json"
    table = log(tmp_path, NVLS_US, said="secret-host:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n")
    assert main(("--judge", table, "--machine", "dgx-h100", "--contribute", str(out), "--healthy", "yes")) in (0, 4)
    assert "read it before you send it" in capsys.readouterr().err
    told = json.loads(out.read_text())
    assert (told["schema"], told["healthy"], len(told["rows"])) == ("ncclprobe.contribution/1", "yes", 2)
    assert told["system"]["gpu"] == "NVIDIA H100 80GB HBM3"
    assert (told["rows"][0]["nodes"], told["rows"][0]["gpus_per_node"]) == (1, 8)
    assert "Ring" in told["settings"]
    for name in ("secret-host", "n0", str(tmp_path)):
        assert name not in out.read_text()


@pytest.mark.parametrize("own", [False, True], ids=["another's file", "the log that is judged"])
def test_a_contribution_takes_the_place_of_none_but_an_earlier_one(tmp_path: Path, own: bool) -> None:
    table, out = Path(log(tmp_path, NVLS_US)), tmp_path / "run.json"
    arguments = ("--judge", str(table), "--machine", "dgx-h100", "--contribute")
    for _ in range(2):
        assert main((*arguments, str(out))) == 0
    kept = table if own else tmp_path / "diary.txt"
    kept.write_text(kept.read_text() if own else "my diary\n")
    before = kept.read_text()
    with pytest.raises(UsageError, match="not written over"):
        main((*arguments, str(kept)))
    assert kept.read_text() == before


def test_a_contribution_without_rows_to_judge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give the measured rows as --judge FILE"):
        main(("--machine", "dgx-h100", "--contribute", str(tmp_path / "run.json")))
