"""What is named when the published NCCL fails to start above a driver that refuses.

The library and its lines are NVIDIA's, of eight releases; only the driver below it was ours.
"""

import gzip
import json
from pathlib import Path

from ncclprobe.commands import explain

RECORDED = Path(__file__).resolve().parents[1] / "data" / "refused_starts.jsonl.gz"
ROWS = [json.loads(line) for line in gzip.decompress(RECORDED.read_bytes()).decode().splitlines()]
NAMED = {
    0: {"cuda-driver-mismatch"},  # a driver that is too old
    2: {"oom"},
    3: {"rank-crashed", "gpu-hw-error"},
    34: {"cuda-driver-mismatch"},
    36: {"cuda-driver-mismatch"},
    46: {"duplicate-gpu", "gpu-hw-error"},
    100: {"gpu-isolation", "world-size-mismatch"},
    101: {"gpu-isolation", "world-size-mismatch"},
    304: {"kernel-pin-failure"},
    802: {"fabric-manager"},
    803: {"cuda-driver-mismatch"},
    804: {"cuda-driver-mismatch"},
    999: {"rank-crashed", "gpu-hw-error"},
}
"""By what cuInit returns: all that the first cause may be."""


def test_each_refusal_of_the_driver_is_named_in_each_release(tmp_path: Path) -> None:
    wrong = {}
    for number, row in enumerate(ROWS):
        log, path = tmp_path / f"{number}.log", tmp_path / f"{number}.json"
        log.write_text(row["log"])
        assert explain.main([str(log), "--json", str(path), "-q", "--failed"]) == 0
        found = json.loads(path.read_text())["causes"]
        said = {found[0]["code"], *found[0]["could_be"]} if found else set()
        if said != NAMED[row["cuda"]]:
            wrong[row["nccl"], row["cuda"]] = said
    assert wrong == {}


def test_eight_releases_up_to_the_newest_were_recorded_with_every_code() -> None:
    releases = {row["nccl"] for row in ROWS}
    assert {(row["nccl"], row["cuda"]) for row in ROWS} == {(each, code) for each in releases for code in NAMED}
    assert len(releases) == 8
    assert "2.32.3" in releases
