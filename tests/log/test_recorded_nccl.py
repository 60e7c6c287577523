"""What is named of failures of NCCL alone: its own library on a processor, of several releases, recorded.

They were recorded from ranks of NCCL's published releases before 2026-11; nothing here can make them again.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.commands import explain
from tests.recorded_jobs import read

FOLDER = Path(__file__).resolve().parents[1] / "data" / "nccl_failures"
RECORDED = {path.name.removesuffix(".jsonl.gz"): read(path) for path in sorted(FOLDER.glob("*.jsonl.gz"))}
REMARKS = {"gdr-off"}
"""True of soft-RoCE, and what makes a job slow, not what ends it."""


def causes(row: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    for name, text in row["logs"].items():
        (folder / f"{name}.log").write_text(text)
    files = [str(path) for path in sorted(folder.glob("*.log"))]
    report = folder / "report.json"
    failed = ["--failed"] if any(row["exit_codes"].values()) else []
    assert explain.main([*files, "--json", str(report), "-q", *failed]) == 0
    found: list[dict[str, Any]] = json.loads(report.read_text())["causes"]
    return [each for each in found if each["id"] != "log.slow-path/slow-path"]


LEFT_OPEN = {
    "20-kernel-hangs": "all ranks wait in one call: NCCL's lines do not say whose kernel stands still",
    "20-root-killed-in-init": "who lost the connection says on which host, where two ranks are",
}
NOTHING = {
    "2.28.9": {"20-other-type", "20-p2p-off-on-one"},
    "2.27.7": {"20-other-type", "20-cumem-off-on-one"},
    "2.25.1": {"20-other-type", "20-p2p-off-on-one", "20-cumem-off-on-one", "20-family-on-one", "20-leaves-early"},
    "2.29.7": {"20-other-type", "20-cumem-off-on-one"},
}
"""Of which nothing is named, or the rank alone: all ranks end with wrong data alone, die without a word, or hang in a
release that says less. The rules were mended on 2.30.7 and 2.28.9.
"""


def tells(release: str, name: str) -> bool:
    """Return whether an answer without a cause would be wrong of this failure."""
    row, open_ones = RECORDED[release][name], {*LEFT_OPEN, *NOTHING.get(release, ())}
    return bool(row["library"]) or (name.startswith("20-") and bool(row["code"]) and name not in open_ones)


CASES = [(release, name) for release, rows in RECORDED.items() for name in rows if tells(release, name)]


@pytest.mark.slow
@pytest.mark.every_time
def test_what_was_made_is_named_with_its_very_rank(tmp_path: Path) -> None:
    """Of the failures of which an answer without a cause would be wrong; no rule was written of them.

    Of two releases: no two of the eight talk to each other, and each rank says which one it has.
    """
    wrong = {}
    for number, (release, name) in enumerate(CASES):
        (folder := tmp_path / str(number)).mkdir()
        row = RECORDED[release][name]
        found = causes(row, folder)
        told = [(each["code"], each["confidence"]) for each in found]
        named = found and row["code"] in {found[0]["code"], *found[0]["could_be"]}
        if told != [("version-mismatch", "named")] if row["library"] else not named:
            wrong[release, name] = told
        elif not row["library"] and found[0]["ranks"] != (row["ranks"] or [0]):
            wrong[release, name] = found[0]["ranks"]
    assert wrong == {}
    assert len(CASES) >= 181


def test_nothing_is_named_of_what_went_well(tmp_path: Path) -> None:
    wrong, rows = {}, 0
    for release, recorded in RECORDED.items():
        for name in [each for each in recorded if each.endswith("healthy")]:
            rows += 1
            (folder := tmp_path / f"{release}{rows}").mkdir()
            found = causes(recorded[name], folder)
            if named := [each["code"] for each in found if each["code"] not in {"unknown", *REMARKS}]:
                wrong[release, name] = named
    assert wrong == {}
    assert rows >= 5
