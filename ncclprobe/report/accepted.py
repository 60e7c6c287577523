"""The last line of ``ncclprobe accept``, made to be pasted: who measured, how fast, and whether all are the same."""

import re
from collections.abc import Sequence
from statistics import median

from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import Report
from ncclprobe.model.traffic import CopyRow, LadderRow
from ncclprobe.units import printable, size

_NEAR = 0.02
"""How far below the usual pair one may lie and still count as near it."""
_MODEL = re.compile(r"\b(?:RTX [A-Z]*\d+\w*|[A-Z]{1,2}\d{2,4}[A-Z]?)\b")


def line(report: Report) -> str:
    """``8 × H100: 472 GB/s, 98 % of expected (source); 28 of 28 pairs within 2 %; PCIe 8 of 8 x16``."""
    parts = (_speed(report), _pairs(report), _ladder(report.ladder), _widths(report), _slow_copies(report.copies))
    return printable(f"{_who(report)}: {'; '.join(part for part in parts if part)}")


def _who(report: Report) -> str:
    """How many of which GPU; with gloo how many ranks."""
    ranks = report.launch.world_size or 0
    several = f" on {len(report.nodes)} nodes" if len(report.nodes) > 1 else ""
    found, backend = report.fingerprint, _backend(report)
    if found is None or backend != "nccl":
        return f"{ranks} ranks{several}" + (f", {backend}" if backend else "")
    gpu = found.machine.get("gpu", "GPU").partition(",")[0].partition(" x ")[2] or "GPU"
    model = _MODEL.search(gpu)
    return f"{ranks} × {model[0] if model else gpu.removeprefix('NVIDIA ')}{several}"


def _backend(report: Report) -> str:
    return report.fingerprint.software.get("backend", "") if report.fingerprint else ""


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
    """How many pairs are as fast as the usual one both ways, inside nodes and between them each by themselves."""
    rows = [row for row in report.pairs if not row.both and not row.step]
    if not rows:
        return "no pair measured"
    near: dict[frozenset[int], bool] = {}
    for inside in (True, False):
        ways = [row for row in rows if row.inside is inside]
        usual = _usual(report, inside, [row.GBps for row in ways])
        for row in ways:
            pair = frozenset((row.src, row.dst))
            near[pair] = near.get(pair, True) and row.GBps >= (1 - _NEAR) * usual
    if len(near) == 1:  # with none to compare it with
        return f"1 pair at {min(row.GBps for row in rows):.3g} GB/s"
    return f"{sum(near.values())} of {_count(len(near), 'pair')} within {100 * _NEAR:.0f} %"


def _usual(report: Report, inside: bool, rates: Sequence[float]) -> float:
    """Return what the pairs are compared with everywhere; their median where a report does not say it."""
    known = report.localisation.usual_GBps(inside=inside) if report.localisation else None
    return known or (median(rates) if rates else 0.0)


def _ladder(rungs: Sequence[LadderRow]) -> str:
    """What each rung above one rank brings: ``ladder 8 ranks 7.9 x (99 %), 64 ranks 58 x (91 %)``."""
    said = [
        f"{row.ranks} ranks {row.speedup:.3g} x ({100 * row.efficiency:.0f} %)"
        for row in rungs
        if row.rung != "rank" and row.speedup is not None and row.efficiency is not None
    ]
    return f"ladder {', '.join(said)}" if said else ""


def _widths(report: Report) -> str:
    """How many GPUs have all their PCIe lanes, by the widths that were read; empty for a run without GPUs.

    Of a node whose copies were measured the GPUs that copied, else all.
    """
    if _backend(report) != "nccl":
        return ""
    measured = {(row.node, row.device) for row in report.copies}
    rows = [(node, row) for node, built in report.topology.items() for row in built.gpus or ()]
    gpus = [row for node, row in rows if not measured or (node, row.name) in measured]
    known = [(row.pcie_width, row.pcie_max_width) for row in gpus if row.pcie_width and row.pcie_max_width]
    if not known or len(known) < len(gpus):
        return "PCIe widths not known"
    most = max(best for _, best in known)
    whole = sum(width >= most for width, _ in known)
    below = sorted({width for width, _ in known if width < most}, reverse=True)
    others = f" ({', '.join(f'{sum(w == width for w, _ in known)} x{width}' for width in below)})" if below else ""
    return f"PCIe {whole} of {len(known)} x{most}{others}"


def _slow_copies(copies: Sequence[CopyRow]) -> str:
    """How many GPUs copy slower from or to their host than their link allows; empty where none does."""
    gpus = {(row.node, row.device) for row in copies if row.kind in ("h2d", "d2h") and row.status != "unjudged"}
    slow = {(row.node, row.device) for row in copies if row.kind in ("h2d", "d2h") and row.status == "fail"}
    return f"{len(slow)} of {_count(len(gpus), 'GPU')} slow to copy" if slow else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)
