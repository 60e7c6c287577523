"""The last line of ``ncclprobe accept``, made to be pasted: what was measured and how fast."""

import re
from collections.abc import Sequence
from statistics import median

from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import Report
from ncclprobe.model.traffic import CopyRow
from ncclprobe.units import printable, size

_NEAR = 0.02
"""How far below the usual pair one may lie and still be like it."""
_MODEL = re.compile(r"\b(?:RTX [A-Z]*\d+\w*|[A-Z]{1,2}\d{2,4}[A-Z]?)\b")
_SLOT = re.compile(r"\bx(\d+)\b")


def line(report: Report) -> str:
    """``8 × H100: 472 GB/s, 98 % of expected (source); 56 of 56 pairs within 2 %; PCIe 8 of 8 x16``."""
    parts = (_speed(report), _pairs(report), _links(report.copies))
    return printable(f"{_who(report)}: {'; '.join(part for part in parts if part)}")


def _who(report: Report) -> str:
    """How many of which GPU; with gloo how many ranks."""
    ranks = report.launch.world_size or 0
    several = f" on {len(report.nodes)} nodes" if len(report.nodes) > 1 else ""
    found = report.fingerprint
    if found is None or found.software.get("backend") != "nccl":
        backend = f", {found.software['backend']}" if found and "backend" in found.software else ""
        return f"{ranks} ranks{several}{backend}"
    gpu = found.machine.get("gpu", "GPU").partition(",")[0].partition(" x ")[2] or "GPU"
    model = _MODEL.search(gpu)
    return f"{ranks} × {model[0] if model else gpu.removeprefix('NVIDIA ')}{several}"


def _speed(report: Report) -> str:
    """Return the bus bandwidth of the largest judged row with its expectation; without one, the fastest row."""
    rows = [row for row in report.measurements if row.op == "all_reduce"]
    judged = [row for row in rows if row.expectation and row.status != "unjudged"]
    if not rows:
        return "no collective measured"
    if not judged:
        fastest = max(rows, key=lambda row: row.busbw_GBps)
        return f"{_rate(fastest)} at {size(fastest.nbytes)}, not judged"
    largest = max(judged, key=lambda row: row.nbytes)
    assert largest.expectation
    share = 100 * largest.busbw_GBps / largest.expectation.value
    return f"{_rate(largest)}, {share:.0f} % of expected ({largest.expectation.source})"


def _rate(row: Measurement) -> str:
    return f"{row.busbw_GBps:.3g} GB/s"


def _pairs(report: Report) -> str:
    """How many directions of pairs are as fast as the usual one, inside nodes and between them each by themselves."""
    rows = [row for row in report.pairs if not row.both and not row.step]
    if not rows:
        return "no pair measured"
    near = 0
    for inside in (True, False):
        rates = [row.GBps for row in rows if row.inside is inside]
        near += sum(rate >= (1 - _NEAR) * median(rates) for rate in rates)
    return f"{near} of {len(rows)} pairs within {100 * _NEAR:.0f} %"


def _links(copies: Sequence[CopyRow]) -> str:
    """How many GPUs copy as fast from and to their host as the slot allows; empty where nothing is known of that."""
    judged = [row for row in copies if row.kind in ("h2d", "d2h") and row.status != "unjudged"]
    if not judged:
        return "copies not judged" if any(row.kind != "host" for row in copies) else ""
    gpus = {(row.node, row.device) for row in judged}
    slow = {(row.node, row.device) for row in judged if row.status != "pass"}
    slot = _SLOT.search(judged[0].why)
    return f"PCIe {len(gpus - slow)} of {len(gpus)}" + (f" x{slot[1]}" if slot else " as fast as expected")
