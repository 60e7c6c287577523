"""What is named of failures of NCCL alone: its own library on a processor, of several releases, recorded.

They were recorded from ranks of NCCL's published releases before 2026-11; nothing here can make them again.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.commands import explain
from tests.log.nccl_values import VALUES, Value
from tests.recorded_jobs import read

FOLDER = Path(__file__).resolve().parents[1] / "data" / "nccl_failures"
RECORDED = {path.name.removesuffix(".jsonl.gz"): read(path) for path in sorted(FOLDER.glob("*.jsonl.gz"))}
CASES = [(release, name) for release, rows in RECORDED.items() for name in rows if not name.startswith("value ")]
OPEN = {"differs-cumem-enable", "differs-shm-disable", "differs-net-2-hosts", "mtu-black-hole", "20-other-type"}
"""Another cause is named, whose words NCCL writes: a setting that one rank alone has leaves no line on the others that
fail before they end their initialisation; ranks whose peers were ended first at the deadline lost connections; and of
another type the data is wrong.
"""


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
    return [each for each in found if each["id"] != "log.slow-path"]


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


@pytest.mark.parametrize(("release", "name"), CASES)
def test_what_was_made_is_named_or_left_open_and_nothing_else(release: str, name: str, tmp_path: Path) -> None:
    """What another hand made, of which no rule was written, with its very rank."""
    row = RECORDED[release][name]
    found = causes(row, tmp_path)
    if row["library"]:  # no two releases of the eight talk to each other, and each rank says which one it has
        assert [(each["code"], each["confidence"]) for each in found] == [("version-mismatch", "named")]
    for first in [each for each in found if each["code"] not in REMARKS][:1]:
        codes = {first["code"], *first["could_be"]}
        assert row["code"] in codes or codes == {"unknown"} or name in OPEN
        if row["ranks"] and first["confidence"] == "named" and name not in OPEN:
            assert {*first["ranks"]} & {*row["ranks"]}, "a rank that is not at fault is named alone"
    if name.startswith("20-") and name not in LEFT_OPEN:
        if not row["code"] or name in NOTHING.get(release, ()):
            assert not [each for each in found if each["code"] != "unknown" and each["ranks"] != row["ranks"]]
        else:
            assert row["code"] in {found[0]["code"], *found[0]["could_be"]}
            assert found[0]["ranks"] == (row["ranks"] or [0])


SHOWN = [
    (release, value)
    for release, rows in RECORDED.items()
    for value in VALUES
    if value.case in rows and value.since <= tuple(map(int, release.split("."))) < value.until
]


@pytest.mark.parametrize(("release", "value"), SHOWN, ids=lambda each: each.case if isinstance(each, Value) else each)
def test_nccl_makes_of_a_wrong_value_what_the_table_says(release: str, value: Value) -> None:
    row = RECORDED[release][value.case]
    text, words = row["logs"]["rank0"], value.shows.removeprefix("!")
    assert (words in text) is not value.shows.startswith("!")
    assert bool(row["exit_codes"]["rank0"]) is value.refused
