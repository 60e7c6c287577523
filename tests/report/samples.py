"""Reports for the tests of formats: a healthy one, one with every kind of trouble, a hostile one, and fleets."""

from typing import Any

from hypothesis import strategies as st

from ncclprobe.checks.run import rows
from ncclprobe.model.findings import (
    Certainty,
    Evidence,
    Finding,
    Related,
    Severity,
    Status,
    Suppression,
    Verdict,
    fail,
    note,
    warn,
)
from ncclprobe.model.measurement import Expectation, Measurement
from ncclprobe.model.pair_results import Blamed, Localisation
from ncclprobe.model.report import LaunchRow, NodeRow, Report, Tool
from ncclprobe.model.traffic import CopyRow, GroupRow
from ncclprobe.model.values import replace

COPY = CopyRow(node="n0", rank=0, kind="h2d", device="GPU0", nbytes=1 << 28, GBps=20.0, min_GBps=19.0, max_GBps=21.0,
               samples=9, expected_GBps=55.0, threshold_GBps=50.0, status="fail")  # fmt: skip
GROUP = GroupRow(kind="tp", op="all_reduce", nbytes=1 << 20, size=8, groups=2, crossing=0, slowest=(0,), alone_us=10.0,
                 alone_busbw_GBps=100.0, advice=("a group spans nodes",))  # fmt: skip
BAND = Expectation(100.0, 95.0, "GB/s", "user", "acceptance test", "bands.toml")
ROW: Measurement = replace(rows.ROW, wrong=0, expectation=BAND, status="pass", busbw_GBps=98.0)
SLOW: Measurement = replace(ROW, nbytes=4 << 20, busbw_GBps=50.0, status="fail")
ROWS = (
    ROW, SLOW, replace(ROW, op="broadcast", redop=None, status="inconclusive"),
    replace(ROW, op="broadcast", redop=None, nbytes=8, expectation=None, status="unjudged", busbw_GBps=1.5e-5),
)  # fmt: skip
LOST_LANES = fail("GPU3", "x8 of 16 lanes", blame="link", action="repair", evidence="/sys", remedy="reseat it")
HOSTILE = "<script>alert(1)</script>\x1b[2J\x00]]>&\ud800\ufffe`|\r\n::error::x @everyone [a](javascript:b) %0A"
SLOWEST = Blamed("n1", "node", ("n1",), None, "both", 0.3, 0.999, 8, 8, 2, 3)


def report(*verdicts: Verdict, status: Status = Status.FAIL, **changes: Any) -> Report:
    """A report on the nodes that `verdicts` name, whose exit code suits its status."""
    names = dict.fromkeys(v.node for v in verdicts if v.node) or {"n0": None}
    rows = tuple(NodeRow(name, rank, name, status) for rank, name in enumerate(names))
    codes = {Status.PASS: 0, Status.WARN: 0, Status.UNKNOWN: 3, Status.FAIL: 4}
    coverage = {each.value: sum(v.status is each for v in verdicts) for each in Status}
    plain = Report(
        tool=Tool("ncclprobe", "0.1.0"), started="2026-11-21T00:00:00+00:00", duration_s=1.5,
        command="ncclprobe doctor", status=status, exit_code=codes[status],
        launch=LaunchRow("slurm", len(names), 8 * len(names)), nodes=rows, checks=verdicts, coverage=coverage,
    )  # fmt: skip
    return replace(plain, **changes)


def verdict(status: Status, *findings: Finding, node: str | None = "n0", id: str = "pci.width", **more: Any) -> Verdict:
    return Verdict(id, node, status, "A link is narrower than it was", findings=findings, **more)


HEALTHY = report(verdict(Status.PASS), status=Status.PASS)
SICK = report(
    verdict(Status.FAIL, LOST_LANES, note("GPU0", "is new")), verdict(Status.PASS, node="n1"),
    verdict(Status.WARN, warn("eth0", "is slow"), node="n1", id="host.eth"),
    verdict(Status.UNKNOWN, node="n1", id="ib.state", why="permission denied", required=True),
    verdict(Status.UNKNOWN, node="n1", id="pci.aer", why="permission denied"),
    verdict(Status.SKIP, node="n1", id="env.hca", why="applies only to jobs on GPUs"),
    verdict(Status.FAIL, fail("n2", "differs", blame="unknown", nodes=("n2",)), node=None, id="sync.nccl"),
    verdict(Status.PASS, node="n2", id="pci.width"), verdict(Status.PASS, node="n2", id="pci.aspm"),
    missing_nodes=("n3", "n4"), measurements=ROWS, groups=(GROUP,),
    copies=(COPY, replace(COPY, kind="d2d", peer="GPU1", GBps=300.0, status="pass")),
    localisation=Localisation(3, "node", (SLOWEST,), tests=24),
    suppressed=(Suppression("ib.state", "mlx5_9:1", "storage port"),), notes=("a fallback was taken",))  # fmt: skip
INCONCLUSIVE = report(status=Status.UNKNOWN, notes=("ended by SIGTERM while rank 0 was in phase 'timing'",))


def hostile(text: str = HOSTILE) -> Report:
    """A report in which everything that comes from a machine is `text`."""
    how, seen, also = Certainty("high", text), (Evidence(text, 1, text),), (Related(text, text),)
    finding = Finding(Severity.FAIL, text, text, "node", "repair", how, seen, text, (text,), also)
    found = (verdict(Status.FAIL, finding, node=text, why=text), verdict(Status.UNKNOWN, why=text, required=True))
    return report(
        *found, Verdict(text, text, Status.PASS, text), missing_nodes=(text,), notes=(text,), started=text,
        command=text, measurements=(replace(SLOW, op=text),), suppressed=(Suppression(text, text, text),))  # fmt: skip


def fleet(nodes: int, checks: int = 90, failing: int = 10) -> Report:
    """So many nodes, of which each tenth fails, in words of its own."""
    verdicts = []
    for number in range(nodes):
        name = f"gpu-{number:05}"
        verdicts += [verdict(Status.PASS, node=name, id=f"pci.check-{n}") for n in range(checks - 1)]
        bad = number % failing == 0
        finding = replace(LOST_LANES, message=f"x{number % 16} of 16 lanes, serial {number}")
        verdicts.append(verdict(Status.FAIL, finding, node=name) if bad else verdict(Status.PASS, node=name))
    return report(*verdicts, measurements=ROWS)


texts = st.text(max_size=60)
findings = st.builds(
    Finding, st.sampled_from(Severity), texts, texts, st.sampled_from(["node", "job", "unknown", "link"]),
    st.sampled_from(["retest", "repair", "restart", "none"]),
    st.builds(Certainty, st.sampled_from(["high", "medium", "low"]), texts),
    st.lists(st.builds(Evidence, texts, st.none() | st.integers(1, 1 << 32), texts), max_size=2).map(tuple),
    texts, st.lists(texts, max_size=2).map(tuple), st.lists(st.builds(Related, texts, texts), max_size=2).map(tuple),
)  # fmt: skip
verdicts = st.builds(
    Verdict, texts, st.none() | texts, st.sampled_from(Status), texts, texts, st.booleans(),
    st.lists(findings, max_size=2).map(tuple))  # fmt: skip
reports = st.lists(verdicts, max_size=4).map(lambda found: report(*found, notes=("x",)))
"""Any report at all, as far as its verdicts go."""
