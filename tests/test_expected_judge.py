"""``ncclprobe expect --judge FILE``: results from elsewhere, judged as a run judges its own."""

import json
from pathlib import Path

import pytest

from ncclprobe.commands import expect
from ncclprobe.commands import main as program
from ncclprobe.commands.expect import main
from ncclprobe.expect.recognise import ExpectationContext
from ncclprobe.model.errors import UsageError
from ncclprobe.model.snapshot import Absent
from tests.each_row import each_row

HEAD = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1\n"
TABLE = """
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong    time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
NVLS_US, RING_US, GIB = 31_300.0, 43_000.0, 1 << 30


def log(
    tmp_path: Path,
    *times_us: float,
    ranks: int = 8,
    said: str = "",
    nbytes: int = 8 * GIB,
    wrong: int = 0,
    gpu: str = "NVIDIA H100 80GB HBM3",
) -> str:
    """A file of all_reduce_perf with a row per time, the same in and out of place."""
    lines = [HEAD, "# Collective test starting: all_reduce_perf\n# Using devices\n"]
    lines += [f"#  Rank {n:2} Group  0 Pid {n + 1} on n{n // 8} device {n % 8} [0x10] {gpu}\n"
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
    assert main((*argv, "--json", "-")) == code
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


@each_row("how", ["option", "log"])
def test_a_ring_that_was_asked_for_does_not_fail_at_a_rings_speed(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "n0:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring.\n" if how == "log" else ""
    path = log(tmp_path, RING_US, said=said)
    more = ("--algo", "ring") if how == "option" else ()
    told = found(capsys, 0, "--judge", path, "--machine", "dgx-h100", *more)
    assert told["settings"] == "NCCL_ALGO=Ring"
    assert str(told["headline"]).startswith("2 rows measured, 2 judged: 2 pass")


def test_rows_that_nothing_judges_are_exit_0_and_the_headline_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = log(tmp_path, 900_000.0, ranks=2, gpu="NVIDIA L40S")
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


@each_row("option", [("--op", "broadcast,reduce"), ("-b", "1K"), ("--gpus-per-node", "4")])
def test_options_that_do_not_apply_to_results_are_refused(option: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"does not apply|give one of"):
        main(("--judge", log(tmp_path, NVLS_US), "--machine", "dgx-h100", *option))


@each_row("text", ["", "{", '{"schema": "other"}', "size count type\n", "\x00\xff"])
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


@each_row(
    ("machine", "gpu", "busbw"), [("GB300 NVL72", "NVIDIA GB300", 33.0), ("Alps GH200", "NVIDIA GH200 120GB", 5.4)]
)
def test_a_loss_that_nobody_could_miss_fails_on_every_class_of_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: str, gpu: str, busbw: float
) -> None:
    nbytes, ranks = 4 * GIB, 8
    slow = log(tmp_path, nbytes * 2 * (ranks - 1) / ranks / busbw / 1e3, ranks=ranks, nbytes=nbytes, gpu=gpu)
    assert main(("--judge", slow, "--machine", machine, "--nodes", "2")) == 4
    text = capsys.readouterr().out
    assert "2 rows measured, 2 judged: 2 fail" in text
    assert "not judged" not in text


@each_row(
    ("machine", "gpu", "has"),
    [
        ("dgx-a100", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4"),
        ("8 x H200", "NVIDIA H100 80GB HBM3", "NVIDIA H200"),  # of equal links
        ("dgx-h100", "NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3"),
        ("dgx-h100", "NVIDIA RTX 9999", "NVIDIA H100 80GB HBM3"),
        ("8 x RTX PRO 6000", "NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX PRO 6000"),
    ],
)
def test_a_log_of_other_gpus_than_the_machines_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: str, gpu: str, has: str
) -> None:
    path = log(tmp_path, NVLS_US, gpu=gpu)
    assert program(["expect", "--judge", path, "--machine", machine]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert f"measured on 8 x {gpu}, but the selected machine has {has}" in said.err
    assert f"give --machine '8 x {gpu}'" in said.err


@each_row(
    ("machine", "gpu"),
    [
        ("dgx-a100", "NVIDIA A100-SXM4-40GB"),  # another memory
        ("dgx-a100", "NVIDIA A100-SXM4-80GB"),
        ("dgx-a100", "A100-SXM-80GB"),  # as older drivers write it
        ("8 x V100-SXM2", "Tesla V100-SXM2-32GB"),
        ("dgx-h100", "NVIDIA Graphics Device"),  # says nothing
        ("8 x H20", "NVIDIA H20-3e"),
        ("8 x RTX 4090", "NVIDIA GeForce RTX 4090"),
    ],
)
def test_a_log_of_the_machines_own_gpus_is_judged_whatever_their_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: str, gpu: str
) -> None:
    told = found(capsys, 4, "--judge", log(tmp_path, 1e6, gpu=gpu, nbytes=GIB), "--machine", machine)
    assert told["headline"] == "2 rows measured, 2 judged: 2 fail"


def test_without_a_machine_the_usual_one_of_the_logs_gpus_judges_and_its_nics_fail_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = ExpectationContext(Absent("NVML (libnvidia-ml.so.1): there is none"), None, "")
    monkeypatch.setattr(expect, "machine_of", lambda *_: nothing)
    told = found(capsys, 0, "--judge", log(tmp_path, NVLS_US))
    assert (told["headline"], told["assumed"]) == ("2 rows measured, 2 judged: 2 pass", None)
    assert str(found(capsys, 4, "--judge", log(tmp_path, 3 * NVLS_US))["headline"]).endswith("2 fail")
    slow = found(capsys, 0, "--judge", log(tmp_path, 6 * NVLS_US, ranks=16))
    assert str(slow["headline"]).endswith("2 warn")
    assert str(slow["assumed"]).startswith("8 NICs x 400 Gb/s ib; with ")
    wrong = found(capsys, 4, "--judge", log(tmp_path, NVLS_US, ranks=16, wrong=3))
    assert str(wrong["headline"]).endswith("2 fail")


def test_a_row_faster_than_the_links_can_be_is_no_pass_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = Path(log(tmp_path, NVLS_US, gpu=""))  # a log that names no GPU
    told = found(capsys, 3, "--judge", str(bare), "--machine", "dgx-a100")  # 480 GB/s, and NVLinks of 300
    rows = told["rows"]
    assert isinstance(rows, list)
    assert [row["status"] for row in rows] == ["inconclusive"] * 2
    assert "more than 300, which this machine can reach, by 20%" in rows[0]["why"]
    assert found(capsys, 0, "--judge", str(bare), "--machine", "dgx-h100")["headline"].endswith("2 pass")  # type: ignore[attr-defined]


def test_a_gate_asks_for_one_line_and_for_rows_that_were_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--machine", "dgx-h100", "-q"]
    small = log(tmp_path, 20.0, nbytes=8)
    assert main(["--judge", small, *asked]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("2 rows measured, none judged; ")
    assert main(["--judge", small, *asked, "--require-judged"]) == 3
    assert capsys.readouterr().out.splitlines() == [line]
    told = found(capsys, 3, "--judge", small, "--machine", "dgx-h100", "--require-judged")
    assert told["judged"] == {"rows": 0, "of": 2}
    assert main(["--judge", log(tmp_path, NVLS_US), *asked, "--require-judged"]) == 0
    assert main(["--judge", log(tmp_path, 3 * NVLS_US), *asked, "--require-judged"]) == 4


@each_row("flag", ["-q", "--require-judged"])
def test_what_only_judging_follows_is_refused_without_it(flag: str) -> None:
    with pytest.raises(UsageError, match="does not apply without --judge FILE"):
        main(["--machine", "dgx-h100", flag])


def test_a_judged_log_has_a_page_with_the_measured_dots_on_the_expected_curve(tmp_path: Path) -> None:
    log, page = Path(__file__).parent / "data/nccl_tests/all_reduce.txt", tmp_path / "page.html"
    code = expect.main(("--judge", str(log), "--machine", "dgx-h100", "--html", str(page)))
    text = page.read_text()
    shown = [text.count(each) for each in ("<circle", 'class="band', "1 of 3 measured rows fail", "exit code 4")]
    assert code == 4
    assert shown[0] >= 4  # two pictures of three rows, and the one that fails is a cross
    assert all(shown), shown
    assert "0 nodes" not in text
    assert expect.main(("--machine", "dgx-h100", "--html", str(page))) == 0
    text = page.read_text()
    assert "Expected of DGX H100, 8 ranks" in text
    assert "Nothing was measured" in text
    assert text.count("<svg") == 2
    assert 'class="band' in text
    assert text.count("<tr>") > 12
