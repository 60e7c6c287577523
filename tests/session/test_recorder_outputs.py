"""Reports and output that cannot be written: what a run makes of that."""

import io
import sys
from pathlib import Path

import msgspec
import pytest

from ncclprobe.commands import bandwidth
from ncclprobe.engine import collect
from ncclprobe.expect.elsewhere import Contribution
from ncclprobe.host.capture import load
from ncclprobe.model.errors import UsageError
from ncclprobe.model.measurement import Disturbance, Library
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.values import replace
from session.records import ROW_OK, bands, closed, recorder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.json"


def test_a_report_that_cannot_be_written_is_wrong_usage_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        recorder(tmp_path / "file" / "report.json").open()


def test_a_report_that_cannot_be_written_is_said_and_is_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    record = recorder(tmp_path / "file" / "report.json", bands(1.0))
    record.add(ROW_OK)
    assert record.close() == 2
    said = capsys.readouterr()
    assert "cannot be written" in said.err
    assert said.out.startswith("PASS")


class Unwritable(io.StringIO):
    """A standard output that fails as a closed pipe, a full disk, a closed stream or a narrow encoding does."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def write(self, text: str) -> int:
        raise self._error


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (BrokenPipeError(32, "Broken pipe"), 0),
        (OSError(28, "No space left on device"), 1),
        (ValueError("I/O operation on closed file"), 1),
        (UnicodeEncodeError("ascii", "·", 0, 1, "ordinal not in range"), 1),
    ],
)
def test_an_output_that_cannot_be_written_costs_neither_rows_nor_the_verdict(
    path: Path, error: Exception, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", Unwritable(error))
    record = recorder(path, quiet=False)
    for _ in range(2):
        record.add(ROW_OK)
    report = closed(record, path)
    assert (report.exit_code, len(report.measurements)) == (0, 2)
    assert capsys.readouterr().err.count("\n") == lines


def test_a_window_too_narrow_for_any_text_changes_no_verdict(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1")
    record = recorder(path, quiet=False)
    record.add(ROW_OK)
    assert closed(record, path).exit_code == 0


def test_json_that_nobody_can_read_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Unwritable(BrokenPipeError(32, "Broken pipe")))
    record = recorder("-")
    record.add(ROW_OK)
    assert record.close() == 2


H100 = Path(__file__).resolve().parents[1] / "captures" / "hgx-h100.jsonl"


def contributed(path: Path, capture: Path, *more: Disturbance, backend: str = "nccl") -> tuple[int, Path]:
    """The exit code of a run on the captured machine that was asked to contribute, and where to."""
    out = path.parent / "run.json"
    record = recorder(path, contribute=str(out), healthy="yes")
    record.snapshots = lambda: [collect.of_capture(load(capture), discover("ncclprobe.facts", Collector))]
    record.add(replace(ROW_OK, backend=backend, library=Library(backend, "2.28.9"), ranks=8, nodes=1))
    record.disturbed(more)
    return record.close(), out


def test_a_run_contributes_its_rows_and_the_machine_it_was_on_and_no_name(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # an earlier one is written over
        code, out = contributed(path, H100)
        assert code == 0
    assert "has 1 rows; read it before you send it" in capsys.readouterr().err
    told = msgspec.json.decode(out.read_bytes(), type=Contribution)
    assert (told.healthy, told.system.gpu, told.system.network) == ("yes", "NVIDIA H100 80GB HBM3", None)
    (row,) = told.rows
    assert (row.nodes, row.gpus_per_node, row.nccl, row.nbytes) == (1, 8, "2.28.9", 1 << 20)
    assert row.busbw_GBps == ROW_OK.busbw_GBps
    assert load(H100).node not in out.read_text()


@pytest.mark.parametrize("case", ["gloo", "falsified", "no machine"])
def test_what_says_nothing_of_nccl_on_a_known_machine_is_not_contributed(
    path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    odd = [Disturbance("CUDA_LAUNCH_BLOCKING=1", 0.0, falsifies=True)] if case == "falsified" else []
    capture = H100.with_name("build-vm.jsonl") if case == "no machine" else H100
    code, out = contributed(path, capture, *odd, backend="gloo" if case == "gloo" else "nccl")
    assert (code, out.exists()) == (2, False)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "--contribute" in line]
    why = {"gloo": "no row of NCCL was measured", "falsified": "CUDA_LAUNCH_BLOCKING=1", "no machine": "GPU"}
    assert why[case] in line


def test_a_file_of_another_is_refused_before_a_run_and_so_is_gloo(tmp_path: Path) -> None:
    diary = tmp_path / "diary.txt"
    diary.write_text("mine")
    for argv, why in (
        (("--contribute", str(diary)), "not written over"),
        (("--contribute", "-"), "give a file"),
        (("--contribute", str(tmp_path / "run.json"), "--backend", "gloo", "--nproc", "2"), "gloo is measured here"),
    ):
        with pytest.raises(UsageError, match=why):
            bandwidth.main(argv)
    assert diary.read_text() == "mine"
