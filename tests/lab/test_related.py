"""The reason stands beside the symptom: a slow host with another MTU is named with it; what no rank used is not."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from ncclprobe.model.findings import Finding, Related, Status
from ncclprobe.model.report import Report
from ncclprobe.report import text

from . import Lab, faults, why_not
from .ranks import Ended, measured

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "a lab can be made here")]

LINK_MBITS = 500.0
BANDS = """\
[[expect]]
op = "all_reduce"
nbytes = "1M"
busbw_GBps = 0.05
tolerance = 0.1
source = "acceptance test"
why = "links of 500 Mbit/s"
"""
"""So high that even a busy machine does not explain a tenth of it."""


def play(folder: Path) -> Ended:
    """Four hosts with two cards, of which ranks use the first: n1's is at a tenth, with another MTU.

    Of the second cards n2's has another MTU and n3's is down.
    """
    (folder / "bands.toml").write_text(BANDS)
    with Lab(hosts=4, nics=2) as lab, ExitStack() as planted:
        for host in lab.hosts:
            planted.enter_context(faults.shaped(host, LINK_MBITS / 10 if host.name == "n1" else LINK_MBITS))
        planted.enter_context(faults.mtu(lab["n1"], 1400))
        planted.enter_context(faults.mtu(lab["n2"], 1300, nic=1))
        planted.enter_context(faults.link_down(lab["n3"], nic=1))
        sizes = ("-b", "4K", "-e", "1M", "-f", "256", "-n", "2", "-w", "1")
        return measured(lab, folder / "report.json", *sizes, "--expect", str(folder / "bands.toml"))


def findings(report: Report, check: str) -> list[Finding]:
    return [finding for verdict in report.checks if verdict.id == check for finding in verdict.findings]


def test_a_slow_row_names_the_mtu_that_differs_and_no_card_that_no_rank_used(tmp_path: Path) -> None:
    done = play(tmp_path)
    report = done.told
    assert (report.status, done.codes) == (Status.FAIL, (4,))
    mtus = {finding.subject: finding for finding in findings(report, "sync.network")}
    assert mtus["eth0"].nodes == ("n1",)
    assert mtus["eth1"].nodes == ("n2",)  # found and shown, but no reason
    (slow,) = findings(report, "run.bandwidth")
    assert (slow.subject, report.measurements[-1].status) == ("all_reduce 1 MiB", "fail")
    assert Related("sync.network", "eth0") in slow.related
    assert "eth1" not in " ".join(each.subject for each in slow.related)
    shown = text.render(report)
    block = shown[shown.index("FAIL  run.bandwidth") :].partition("\n\n")[0]
    assert "sync.network eth0" in " ".join(block.split())
    assert "eth1" not in block
