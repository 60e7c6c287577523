"""`ncclprobe bandwidth` before any rank meets another: usage, expectations, one rank. Nothing here may need torch."""

import os
import signal
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from ncclprobe.commands import bandwidth, copies, measuring
from ncclprobe.commands.bandwidth import parse
from ncclprobe.expect.bands import from_toml
from ncclprobe.model.errors import Missing, ParseError, UsageError
from ncclprobe.session.ranks.identity import Devices
from tests.each_row import each_row

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "GROUP_", "NCCLPR")
SEAT = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
        monkeypatch.delenv(name)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, set[str]]]:
    """How many ranks were started, and under which variables."""
    found: list[tuple[int, set[str]]] = []

    def launch(count: int, *_: object) -> int:
        found.append((count, {*os.environ}))
        return 0

    monkeypatch.setattr("ncclprobe.session.ranks.launch.launch", launch)
    return found


@each_row("argv", [[option, "9" * count] for option in ("-b", "-e", "-n", "-w") for count in (400, 5001)])
def test_a_number_of_many_digits_is_refused_in_one_line(argv: list[str]) -> None:
    """Other wrong lines are in tests/data/wrong-inputs.md and in tests/data/command_values/options.txt."""
    with pytest.raises(UsageError) as refusal:
        bandwidth.main(argv)
    assert "\n" not in str(refusal.value)


@each_row(
    ("variables", "argv", "words"),
    [
        ({"RANK": "0"}, [], "start with torchrun"),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"}, [], "start with torchrun"),
        ({"RANK": "1", "WORLD_SIZE": "x"}, [], "start with torchrun"),
        *(
            (SEAT | {"RANK": "0", "MASTER_PORT": port}, [], r"MASTER_PORT is .*; set it to a free port")
            for port in ("abc", "-1", "99999", "tcp://10.3.2.1:2222")
        ),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, ["--nproc", "2"],
         "^--nproc starts the ranks itself, but openmpi has started this one; leave --nproc out$"),
    ],
)  # fmt: skip
def test_variables_of_a_launcher_that_do_not_fit_are_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], argv: list[str], words: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=words):
        bandwidth.main(argv)


@each_row("sigterm", [False, True])
def test_only_rank_zero_complains_and_another_leaves_when_torchrun_ends_it(
    monkeypatch: pytest.MonkeyPatch, sigterm: bool
) -> None:
    for name, value in SEAT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(measuring, "_FIRST_WORD_S", 1e6 if sigterm else 0.0)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if sigterm:  # sent to this thread, and not taken
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    try:
        assert bandwidth.main(["-f", "1"]) == 2
    finally:
        signal.sigtimedwait({signal.SIGTERM}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@each_row("variables", [{}, {"RANK": "0"}, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n0"}])
def test_variables_exported_by_hand_do_not_stop_ranks_of_our_own_and_are_named(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    started: list[tuple[int, set[str]]],
) -> None:  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    started.clear()
    assert bandwidth.main(["--backend", "gloo", "--nproc", "2"]) == 0
    said = capsys.readouterr().err
    names = ", ".join(name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if name in variables)
    told = f"ncclprobe: ranks are started here, which overrides {names} of the environment\n"
    assert said == (told if variables else "")
    ((count, seen),) = started
    assert (count, seen & variables.keys()) == (2, set())


@each_row(
    ("argv", "gpus", "words"),
    [
        *((argv, 0, "one rank has nothing to measure") for argv in ([], ["--nproc", "1"], ["--backend", "gloo"])),
        (["--nproc", "1"], 8, "start one rank per GPU: torchrun --nproc-per-node=gpu -m ncclprobe.bandwidth, or "
         "ncclprobe bandwidth --nproc 8$"),
        ([], 1, "; this node has one GPU, so start one rank on each of several nodes .torchrun --nnodes, srun, mpirun"),
        (["--backend", "nccl"], 0, "; --backend nccl needs a GPU per rank, and no GPU is visible here$"),
        (["--backend", "gloo"], 8, r"bandwidth --backend gloo .*--nproc 2"),
    ],
)  # fmt: skip
def test_one_rank_measures_nothing_writes_nothing_and_is_told_how_to_be_more(
    argv: list[str], gpus: int, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measuring, "devices", lambda host: Devices(gpus))
    with pytest.raises(UsageError, match=words) as said:
        bandwidth.main([*argv, "--json", str(tmp_path / "report.json"), "--keep", str(tmp_path)])
    assert gpus or "nccl" in argv or "GPU" not in str(said.value)
    assert not list(tmp_path.iterdir())


TORCHRUNS_ONE = SEAT | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


@each_row("variables", [{}, TORCHRUNS_ONE | {"TORCHELASTIC_RUN_ID": "x"}])
def test_several_gpus_are_a_rank_each_and_that_is_said(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    started: list[tuple[int, set[str]]],
) -> None:  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(measuring, "devices", lambda host: Devices(8))
    monkeypatch.setattr(measuring, "choose_backend", lambda *_: ("nccl", ""))
    assert bandwidth.main([]) == copies.main([]) == 0
    assert [count for count, _ in started[-2:]] == [8, 8]
    assert capsys.readouterr().err == "ncclprobe: starting a rank on each of 8 GPUs\n" * 2


def test_so_many_ranks_are_started_as_the_node_has_processors_for_and_windows_may_lend_a_gpu(
    monkeypatch: pytest.MonkeyPatch, started: list[tuple[int, set[str]]], tmp_path: Path
) -> None:
    over = (
        "--nproc {} is too many: this node, with {} CPUs, can run at most {} ranks (the limit is 4 per CPU, but never "
        "less than 16)"
    )
    for cpus, most in ((1, 16), (4, 16), (5, 20)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cpus=cpus: set(range(cpus)))
        assert bandwidth.main(["--backend", "gloo", "--nproc", str(most), "-e", "8"]) == 0
        with pytest.raises(UsageError) as refused:
            bandwidth.main(["--backend", "gloo", "--nproc", str(most + 1)])
        assert str(refused.value) == over.format(most + 1, cpus, most)
    for error in (Missing("no /proc/meminfo"), ParseError("no number")):

        def unread(_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(measuring, "memory", SimpleNamespace(run=unread))
        assert bandwidth.main(["--backend", "gloo", "--nproc", "2", "-e", "900G"]) == 0
    assert [count for count, _ in started] == [16, 16, 20, 2, 2]
    monkeypatch.setattr(measuring, "_WSL", str(tmp_path / "dxg"))
    assert [measuring.may_have_gpus(Devices(nodes)) for nodes in (0, 1)] == [False, True]
    (tmp_path / "dxg").touch()
    assert measuring.may_have_gpus(Devices(0))


def test_the_help_shows_a_file_of_bands_that_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help-all"])
    said = capsys.readouterr().out
    assert "``" not in said
    example = said.partition("for --expect:\n")[2].partition("\n\n")[0]
    assert from_toml(textwrap.dedent(example), "help")
