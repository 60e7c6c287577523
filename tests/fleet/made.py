"""Reports and readings of made-up nodes."""

import math
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from report.samples import BAND, report

from ncclprobe.checks.run.rows import ROW
from ncclprobe.fleet import store
from ncclprobe.fleet.extract import told
from ncclprobe.model.findings import Finding, Severity, Status, Verdict, fail
from ncclprobe.model.fleet import Added, NodeReport, Reading
from ncclprobe.model.measurement import Fingerprint
from ncclprobe.model.report import NodeEnvironment, Report
from ncclprobe.model.values import replace

DAY_S = 86400.0
FIRST_S = datetime(2026, 3, 1, 4, tzinfo=timezone.utc).timestamp()
DOWN = fail("mlx5_3:1", "is DOWN; its siblings are ACTIVE", blame="link", action="repair")
SOFTWARE = {"nccl": "2.28.3", "torch": "2.9.0", "settings": "none", "backend": "nccl", "driver": "550.54.15"}


def on(day: float) -> str:
    """A day's time as reports write it."""
    return datetime.fromtimestamp(FIRST_S + day * DAY_S, timezone.utc).isoformat()


def day_of(node: str, day: float, *found: Finding, rate: float = 391.0, driver: str = "550.54.15",
           software: dict[str, str] = SOFTWARE, **changes: Any) -> Report:  # fmt: skip
    """The report of one day on one node: one check, an all_reduce of 1 GiB."""
    fails = any(each.severity is Severity.FAIL for each in found)
    status = Status.FAIL if fails else Status.PASS
    row = replace(ROW, nbytes=1 << 30, busbw_GBps=rate, algbw_GBps=rate, nodes=1, precision=0.01, wrong=0,
                  expectation=BAND, status="pass")  # fmt: skip
    verdict = Verdict("ib.state", node, status, "A port is down", findings=found)
    made = report(
        verdict, status=status, started=on(day), measurements=(row,),
        environment={node: NodeEnvironment({"driver": driver, "kernel": "6.8.0", "torch": "2.9.0"})},
        fingerprint=Fingerprint({"gpu": "8 x NVIDIA H100"}, None, software), command="ncclprobe accept",
    )  # fmt: skip
    return replace(made, **changes)


def readings(rng: random.Random, losses: Sequence[float], noise: float = 0.02, **more: Any) -> Iterator[Reading]:
    """A reading a day that scatters by `noise`, of which each loses a share."""
    for day, loss in enumerate(losses):
        yield Reading(FIRST_S + day * DAY_S, 391.0 * (1 - loss) * math.exp(rng.gauss(0, noise)), 0.005, **more)


def lost_by_all(nodes: int, days: int, since: int, lost: float, driver: str = "560.35.03") -> Iterator[Report]:
    """A report a day of each node, whose rate all lose by a share from one day on, when their driver changes."""
    rng = random.Random(7)
    for day in range(days):
        for node in range(nodes):
            rate = 394.0 * (1 - lost * (day >= since)) * math.exp(rng.gauss(0, 0.01))
            yield day_of(f"w{node}", day + node / 100, rate=rate, driver=driver if day >= since else "550.127.08")


def days(*found: Sequence[Finding] | None) -> list[NodeReport]:
    """What a day each of n1 with these findings tells; None: the check did not look."""
    tests: list[NodeReport] = []
    for day, each in enumerate(found):
        report = day_of("n1", day, *(each or ()))
        tests += told(report if each is not None else replace(report, checks=()), "r.json")
    return tests


def filled(path: Path, *of: Report, patience_s: float = 60.0) -> list[bool]:
    """Add these reports to a store; returns for each whether it was new."""
    with store.opened(path, patience_s, create=True) as kept:
        return [
            kept.add(told(report, "f.json"), f"{report.nodes[0].name} {report.started}",
                     Added(0.0, "u", f"/r/{number}.json", "accept"))
            for number, report in enumerate(of)
        ]  # fmt: skip
