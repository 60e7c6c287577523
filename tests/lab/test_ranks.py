"""Ranks that measure between hosts: which NIC the bytes took, which host is slow, and which rail is dead."""

import json
from pathlib import Path

import pytest

from ncclprobe.model.report import Report
from ncclprobe.report import json as as_json

from . import Lab, faults, why_not
from .hosts import ended
from .launchers import NCCLPROBE, by_hand, ranks
from .rails import LINK_LOCAL, build, give_rails, with_fault

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not("gcc")), reason=why_not("gcc") or "-")]
SIZE = ["-b", "2M", "-e", "2M", "-n", "4", "--batches", "2", "-w", "1"]


def measured(lab: Lab, path: Path, command: str, *options: str) -> tuple[list[int], Report]:
    """Return the exit codes of all ranks, and rank 0's report."""
    done = ended(ranks(lab, path, command, *options), 120.0)
    assert path.exists(), done
    return [each.code for each in done.values()], as_json.read(str(path))


def test_bytes_over_the_wrong_one_of_two_nics_are_noticed(tmp_path: Path) -> None:
    with Lab(hosts=2, nics=2) as lab:
        for host, peer in (lab.hosts, lab.hosts[::-1]):  # what goes to the peer's first card leaves over the second
            host.ip(f"route add {peer.address(0)}/32 via {peer.address(1)} dev eth1 src {host.address(0)}")
        _, report = measured(lab, tmp_path / "report.json", "bandwidth", *SIZE)
    strays = [(f.subject, f.nodes) for v in report.checks if v.id == "run.nic-traffic" for f in v.findings]
    assert sorted(strays) == [("n0 eth1", ("n0",)), ("n1 eth1", ("n1",))]
    assert {row.transport.network for row in report.measurements} == {"gloo tcp eth0"}


def test_the_host_whose_card_is_slow_is_named_and_no_other_node(tmp_path: Path) -> None:
    """Four hosts on two busy processors: a pair between two others may be slow for good reason, a node may not."""
    with Lab(hosts=4) as lab, faults.shaped(lab["n2"], 200.0):
        codes, report = measured(lab, tmp_path / "report.json", "pairs", "-e", "1M")
    assert report.localisation
    (culprit,) = [each for each in report.localisation.culprits if each.kind == "node"]
    assert (culprit.nodes, culprit.direction) == (("n2",), "out")
    assert culprit.ratio < 0.5
    assert culprit.retests > 0
    (finding,) = [f for v in report.checks if v.id == "run.pairs" for f in v.findings if f.blame == "node"]
    assert (finding.subject, finding.severity.value, finding.nodes) == ("out of n2", "fail", ("n2",))
    assert codes == [4] * 4
    assert {row.src_end for row in report.pairs} == {f"n{number} (eth0)" for number in range(4)}


def rails_named(report: Path) -> set[tuple[str, str, tuple[str, ...]]]:
    """Return what the checks of rails found: id, subject, nodes."""
    return {
        (verdict["id"], finding["subject"], tuple(finding["nodes"]))
        for verdict in json.loads(report.read_text())["checks"]
        for finding in verdict["findings"]
        if verdict["id"].startswith("rail.") and finding["severity"] == "fail"
    }


def test_two_faults_of_rails_are_named_and_told_again_from_the_captures(tmp_path: Path) -> None:
    """What crosses processes is shown here, above our own verbs library; tests/checks has every fault by itself."""
    library = tmp_path / "lib"
    library.mkdir()
    build(library)
    with Lab(hosts=3) as lab:
        rails = with_fault(lab, **LINK_LOCAL)
        rails["n2"][0].faults = "refuse=ibv_create_qp:12"
        give_rails(lab, library, rails)
        kept = tmp_path / "kept"
        words = ("--keep", str(kept), "--timeout", "110")
        done = ended(by_hand(lab.hosts, *words, command=[*NCCLPROBE, "rails"]), 125.0)
        expected = {
            ("rail.dead", "n1 rail 1 (mlx5_1:1)", ("n1",)),
            ("rail.unusable", "n2 rail 0 (mlx5_0:1)", ("n2",)),
        }
        assert rails_named(lab.folder / "n0.json") == expected
        assert [each.code for each in done.values()] == [4, 4, 4]
        again = lab.folder / "again.json"
        told = ["doctor", *sorted(map(str, kept.glob("*.jsonl"))), "--select", "rail.*", "--json", str(again)]
        assert lab["n0"].run([*NCCLPROBE, *told]).code == 4
        assert rails_named(again) == expected
