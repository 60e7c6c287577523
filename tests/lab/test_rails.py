"""`ncclprobe rails` between hosts, as a user starts it, above a verbs library of our own that really moves the bytes.

One run with two faults: what crosses processes (children, the mesh's connections, captures) is shown
here, and every fault by itself in tests/checks/test_rail.py.
"""

import json
import sys
from pathlib import Path

import pytest

from .hosts import Lab, why_not
from .rails import LINK_LOCAL, build, give_rails, try_rails, with_fault

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not("gcc")), reason=why_not("gcc") or "-")]


def named(report: Path) -> set[tuple[str, str, tuple[str, ...]]]:
    """Return what the checks of rails found: id, subject, nodes."""
    return {
        (verdict["id"], finding["subject"], tuple(finding["nodes"]))
        for verdict in json.loads(report.read_text())["checks"]
        for finding in verdict["findings"]
        if verdict["id"].startswith("rail.") and finding["severity"] == "fail"
    }


def test_two_faults_of_two_nodes_are_named_and_told_again_from_the_captures(tmp_path: Path) -> None:
    library = tmp_path / "lib"
    library.mkdir()
    build(library)
    with Lab(hosts=3) as lab:
        rails = with_fault(lab, **LINK_LOCAL)
        rails["n2"][0].faults = "refuse=ibv_create_qp:12"
        give_rails(lab, library, rails)
        kept = tmp_path / "kept"
        done = try_rails(lab, "--keep", str(kept), timeout_s=110.0)
        expected = {
            ("rail.dead", "n1 rail 1 (mlx5_1:1)", ("n1",)),
            ("rail.unusable", "n2 rail 0 (mlx5_0:1)", ("n2",)),
        }
        assert named(lab.folder / "report.json") == expected
        assert {name: each.code for name, each in done.items()} == {"n0": 4, "n1": 4, "n2": 4}
        again = lab.folder / "again.json"
        words = ["doctor", *sorted(map(str, kept.glob("*.jsonl"))), "--select", "rail.*", "--json", str(again)]
        assert lab["n0"].run([sys.executable, "-m", "ncclprobe", *words]).code == 4
        assert named(again) == expected
