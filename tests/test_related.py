"""A slow row and its reason in one report: what is named beside it, and what is not.

tests/data/command_values/causes-of-a-run.txt has more of it.
"""

import shutil
from pathlib import Path

import msgspec
import pytest

from ncclprobe.checks.run.rows import BAND, ROW
from ncclprobe.commands.doctor import main
from ncclprobe.host.run_log import RunLog
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Related, Status
from ncclprobe.model.measurement import Band
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from tests.each_row import each_row

CAPTURES = Path(__file__).parent / "captures"


def kept_run(folder: Path, *lines: str) -> list[str]:
    """A run over the eight GPUs of a healthy machine, of which `lines` of the capture differ, with a slow row."""
    shutil.copy(CAPTURES / "hgx-h100.jsonl", folder)
    (folder / "node.jsonl").write_text(
        '{"capture": 1, "node": "n0", "taken": "2026-11-22T00:00:00+00:00", "tool": "0.1.0", "origin": "synthetic"}\n'
        '{"like": "hgx-h100.jsonl"}\n' + "".join(f"{line}\n" for line in lines)
    )
    log = RunLog(folder / "run.jsonl")
    log.add("asked", {"ops": ["all_reduce"], "sizes": [1 << 20], "backend": "nccl"})
    log.add(
        "participants", {"kind": "self", "ranks": 8, "hosts": ["n0"] * 8, "backend": "nccl", "gpus": list(range(8))}
    )
    log.add("arrivals", {"expected": 8})
    log.add("expected", msgspec.to_builtins(Band("all_reduce", 1 << 20, 1 << 20, BAND)))
    for place in ("in", "out"):
        row = {
            k: v
            for k, v in msgspec.to_builtins(replace(ROW, place=place, wrong=0)).items()
            if k not in ("expectation", "status")
        }
        log.add("row", row)
    log.close()
    return [str(folder / "node.jsonl"), str(folder / "run.jsonl"), "--json", str(folder / "report.json"), "-q"]


@each_row(
    ("planted", "related"),
    [
        ([], ()),
        (['{"ask": ["env"], "said": "{\\"NCCL_ALGO\\": \\"Tree\\"}"}'], (Related("env.forced-algo", "NCCL_ALGO"),)),
    ],
)
def test_in_a_kept_run_a_planted_setting_and_no_other_stands_beside_the_slow_row(
    planted: list[str], related: tuple[Related, ...], tmp_path: Path
) -> None:
    assert main(kept_run(tmp_path, *planted)) == 4
    (slow,) = [v for v in as_json.read(str(tmp_path / "report.json")).checks if v.id == "run.bandwidth"]
    assert set(related) <= set(slow.findings[0].related)
    assert (slow.node, slow.status, bool(slow.findings[0].related)) == (None, Status.FAIL, bool(related))


BANDS = '[[expect]]\nop = "all_reduce"\nnbytes = "1M"\nbusbw_GBps = {}\nsource = "s"\nwhy = "w"\n'


def test_a_kept_run_is_judged_by_its_own_numbers_those_of_a_file_or_of_this_release(tmp_path: Path) -> None:
    argv, path = kept_run(tmp_path), tmp_path / "bands.toml"
    path.write_text(BANDS.format(0.001))
    again = ("judged again: judged without --expect: this is DGX H100",)
    for more, code, by, notes in (
        ([], 4, "bands.toml user 100", ()),
        (["--expect", str(path)], 0, f"{path}: expect 1: s user 0.001", ()),
        (["--rejudge"], 0, "NCCL 2.30's own search and cost model", again),
    ):
        assert main([*argv, *more]) == code, more
        report = as_json.read(str(tmp_path / "report.json"))
        (row, other) = [row.expectation for row in report.measurements]
        assert row == other
        assert row
        assert f"{row.source} {row.basis} {row.value:g}".startswith(by)
        assert report.notes == notes
    more_logs = [str(tmp_path / "other.jsonl"), str(tmp_path / "third.jsonl")]
    for name in more_logs:
        Path(name).write_bytes((tmp_path / "run.jsonl").read_bytes())
    with pytest.raises(UsageError) as refused:
        main([*more_logs, *argv])
    assert str(refused.value) == (
        f"{more_logs[1]} is a second run log; give one run.jsonl, with the captures of its nodes"
    )
