"""`ncclprobe bandwidth` before any rank meets another: usage, expectations, one rank. Nothing here may need torch."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclprobe.commands import bandwidth, copies, measuring
from ncclprobe.commands.bandwidth import parse
from ncclprobe.expect.bands import from_toml
from ncclprobe.model.errors import UsageError
from ncclprobe.model.units import parse_size
from ncclprobe.session.ranks.identity import Devices
from tests.each_row import each_row

LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "SLURM_",
    "OMPI_",
    "PMI",
    "TORCHELASTIC_",
    "GROUP_",
    "NCCLPROBE_",
)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--op", "allreduce"], "--op: 'allreduce' is not a known operation; did you mean all_reduce?"),
        (["--op", "xyzzy"], "choose from all_reduce"),
        (["--op", ""], "--op: the value is empty"),
        (["--dtype", "fp9"], "--dtype: 'fp9' is not a known data type"),
        (["--redop", "median"], "--redop: 'median' is not a known reduction"),
        (["-b", "0"], "-b 0: less than one float32"),
        (["-b", "1G", "-e", "1M"], "-b 1G is above -e 1M"),
        (["-b", "1T"], "size '1T'"),
        (["-f", "1"], "-f 1"),
        (["-f", "x"], "-f: must be a whole number above zero, not 'x'"),
        (["-b", "3"], "-b 3: less than one float32; give -b 4 or more"),
        (["-n", "0"], "-n: must be a whole number above zero, not '0'"),
        (["-w", "-1"], "-w: must be a whole number, 0 or more, not '-1'"),
        (["--batches", "0"], "--batches: must be"),
        (["--nproc", "0"], "--nproc: must be"),
        (["--timeout", "0"], "--timeout: must be"),
        (["--timeout", "1e999"], "--timeout: must be a number above 0 and below 1e9, not '1e999'"),
        (["--timeout", "nan"], "--timeout: must be"),
        (["--tolerance", "20"], "--tolerance '20'"),
        (["--mode", "fast"], "'fast' is not a known choice"),
        (["--precision", "0"], "--precision: must be a percentage above 0"),
        (["--precision", "51%"], "--precision: must be a percentage above 0"),
        (["--precision", "two"], "--precision: must be a percentage above 0"),
        (["--budget", "0"], "--budget: must be"),
        (["-n", "20", "--precision", "2%"], "-n and --precision cannot be used together"),
        (["--batches", "5", "--budget", "1"], "--batches and --budget cannot be used together"),
        (["--graph", "--backend", "gloo"], "--graph needs NCCL"),
        (["--graph", "--mode", "blocking"], "--graph and --mode blocking"),
        (["--frobnicate"], "--frobnicate"),
        (["--expect", "/no/such/file"], "/no/such/file: cannot be read"),
        (["--expect", "/dev/zero"], "/dev/zero: cannot be read: not a regular file"),
        (["-b", "9" * 400], "is not a size"),
        (["-e", "9" * 5001], "is not a size"),
        (["-n", "9" * 400], "at most 10000000 can be timed"),
        (["-n", "9" * 5001], "-n"),
        (["--phase-timeout", "1e300"], "--phase-timeout: must be"),
        (["--backend", "gloo", "--nproc", "10000000"], "--nproc 10000000 is too many"),
    ],
)
def test_bad_input_is_one_line_naming_the_thing(argv: list[str], words: str) -> None:
    with pytest.raises(UsageError) as refusal:
        bandwidth.main(argv)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_broken_expectation_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    for name, text in (("bands.toml", "[[expect]\n"), ("old.json", '{"schema": 1')):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(UsageError, match=name):
            bandwidth.main(["--expect", str(path)])


@each_row("variables", [{"RANK": "0"}, {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"}, {"RANK": "1", "WORLD_SIZE": "x"}])
def test_a_half_set_environment_is_refused(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="start with torchrun"):
        bandwidth.main([])


@each_row("port", ["abc", "-1", "99999", "tcp://10.3.2.1:2222"])
def test_a_port_that_is_none_is_refused_with_what_to_set(monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"MASTER_PORT is .*; set it to a free port"):
        bandwidth.main([])


def test_only_rank_zero_complains(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(measuring, "_FIRST_WORD_S", 0.0)
    assert bandwidth.main(["-f", "1"]) == 2


def test_ranks_are_not_started_from_within_several_ranks_of_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="leave --nproc out"):
        bandwidth.main(["--nproc", "2"])


@each_row("variables", [{"RANK": "0"}, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n0"}])
def test_variables_exported_by_hand_do_not_stop_ranks_of_our_own_and_are_named(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    seen: list[set[str]] = []
    monkeypatch.setattr(measuring.selflaunch, "launch", lambda *_: seen.append(set(os.environ)) or 0)
    assert bandwidth.main(["--backend", "gloo", "--nproc", "2"]) == 0
    said = capsys.readouterr().err
    assert all(name in said for name in variables)
    assert not seen[0] & variables.keys()


def test_without_such_variables_nothing_is_said_to_be_overridden(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measuring.selflaunch, "launch", lambda *_: 0)
    assert bandwidth.main(["--backend", "gloo", "--nproc", "2"]) == 0
    assert capsys.readouterr().err == ""


@pytest.fixture
def pending_sigterm() -> Iterator[None]:
    """A signal that this thread has been sent and not taken."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    yield
    signal.sigtimedwait({signal.SIGTERM}, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.usefixtures("pending_sigterm")
def test_a_rank_that_lets_rank_zero_speak_leaves_when_torchrun_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(measuring, "_FIRST_WORD_S", 1e6)
    assert bandwidth.main(["-f", "1"]) == 2


@each_row("argv", [[], ["--nproc", "1"], ["--backend", "gloo"]])
def test_one_rank_measures_nothing_and_is_wrong_usage(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "devices", lambda host: Devices(0))
    with pytest.raises(UsageError, match="one rank has nothing to measure") as said:
        bandwidth.main(argv)
    assert "GPU" not in str(said.value)


@each_row(
    ("argv", "gpus", "words"),
    [
        (["--nproc", "1"], 8, "ncclprobe bandwidth --nproc 8"),
        (["--nproc", "1"], 8, "torchrun --nproc-per-node=gpu"),
        ([], 1, "several nodes"),
        (["--backend", "nccl"], 0, "no GPU is visible"),
        (["--backend", "gloo"], 8, "--backend gloo --nproc 2"),
    ],
)
def test_one_rank_is_told_how_to_be_more(
    argv: list[str], gpus: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "devices", lambda host: Devices(gpus))
    with pytest.raises(UsageError, match=words):
        bandwidth.main(argv)


def test_of_one_rank_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "devices", lambda host: Devices(0))
    with pytest.raises(UsageError):
        bandwidth.main(["--json", str(tmp_path / "report.json"), "--keep", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_several_gpus_are_a_rank_each_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[int] = []
    monkeypatch.setattr(measuring, "devices", lambda host: Devices(8))
    monkeypatch.setattr(measuring, "choose_backend", lambda *_: ("nccl", ""))
    monkeypatch.setattr(measuring.selflaunch, "launch", lambda count, *_: started.append(count) or 0)
    assert bandwidth.main([]) == copies.main([]) == 0
    assert started == [8, 8]
    assert "starting a rank on each of 8 GPUs" in capsys.readouterr().err


def test_one_rank_of_torchrun_is_a_rank_for_each_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "x"}
    for name, value in {**one, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    started: list[int] = []
    monkeypatch.setattr(measuring, "devices", lambda host: Devices(4))
    monkeypatch.setattr(measuring, "choose_backend", lambda *_: ("nccl", ""))
    monkeypatch.setattr(measuring.selflaunch, "launch", lambda count, *_: started.append(count) or 0)
    assert bandwidth.main([]) == 0
    assert started == [4]


@each_row(
    ("argv", "with_gloo", "with_nccl"),
    [
        ([], ["64M", "4M", "64K", "8"], ["1G", "256M", "64M", "4M", "64K", "8"]),
        (["-b", "1M", "-e", "1M"], ["1M"], ["1M"]),
        (["-b", "1M", "-e", "3M"], ["1M", "3M"], ["1M", "3M"]),
        (["-b", "8M", "-f", "8"], ["8M", "64M"], ["8M", "64M", "512M", "1G"]),
        (["-b", "512M"], ["512M"], ["512M", "1G"]),
    ],
)
def test_the_largest_size_is_measured_and_gloo_ends_before_nccl(
    argv: list[str], with_gloo: list[str], with_nccl: list[str]
) -> None:
    asked = parse(argv)
    assert asked.sizes_for("gloo") == tuple(map(parse_size, with_gloo))
    assert asked.sizes_for("nccl") == tuple(map(parse_size, with_nccl))


@each_row(
    ("argv", "precision", "calls"),
    [
        ([], 0.02, (20, 5)),
        (["--precision", "0.5%"], 0.005, (20, 5)),
        (["--precision", "10"], 0.1, (20, 5)),
        (["-n", "7"], None, (7, 5)),
        (["--batches", "3"], None, (20, 3)),
        (["-n", "7", "--batches", "3"], None, (7, 3)),
    ],
)
def test_a_precision_is_asked_for_unless_the_number_of_calls_is_fixed(
    argv: list[str], precision: float | None, calls: tuple[int, int]
) -> None:
    options = parse(argv)
    assert (options.precision, (options.iters, options.batches)) == (precision, calls)


def test_a_graph_is_a_mode() -> None:
    assert parse(["--graph"]).mode == "graph"
    assert parse([]).mode is None


def test_rows_that_nobody_gave_a_time_share_half_of_the_whole_run() -> None:
    assert parse([]).budget_s == 2.0
    assert parse(["--op", "all"]).budget_s < 1.0
    assert parse(["--op", "all", "--budget", "3"]).budget_s == 3.0
    assert parse(["--op", "all", "--timeout", "3600"]).budget_s == 2.0


def test_the_help_shows_a_file_of_bands_that_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help-all"])
    said = capsys.readouterr().out
    assert "``" not in said
    example = said.partition("for --expect:\n")[2].partition("\n\n")[0]
    assert from_toml(textwrap.dedent(example), "help")


def test_help_and_usage_errors_import_no_torch() -> None:
    code = (
        "import sys\nfrom ncclprobe.commands import main\n"
        "for argv in (['bandwidth', '-f', '1'], ['bandwidth', '--op', 'x'], ['bandwidth']):\n    main(argv)\n"
        "try:\n    main(['bandwidth', '--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_unwritable_report_path_is_found_before_measuring(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    argv = [sys.executable, "-m", "ncclprobe.bandwidth", "--backend", "gloo", "--json", str(file / "report.json")]
    done = subprocess.run(argv, env=os.environ | variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert json.dumps(done.stdout) == '""'
