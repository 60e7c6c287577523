"""The line of ``accept`` and ``bandwidth`` that is made to be pasted: who measured, how fast, and the verdict.

It is the first and the last one of ``accept``, and the last one of ``bandwidth``.
"""

import re
from collections import Counter
from collections.abc import Sequence

from ncclprobe.model.findings import Status
from ncclprobe.model.hostlist import fold
from ncclprobe.model.report import Report
from ncclprobe.model.stats import median
from ncclprobe.model.traffic import CopyRow, LadderRow, ScriptRung
from ncclprobe.model.units import plural, printable, size
from ncclprobe.report import digest

_NEAR = 0.02
"""How far below the usual pair one may lie and still count as near it."""
_MODEL = r"\b(?:RTX [A-Z]*\d+\w*|[A-Z]{1,2}\d{2,4}[A-Z]?)\b"


def begins(report: Report) -> bool:
    """Return whether the line stands before the report too: where one asks whether a node, or a job, is good."""
    return _command(report) == "accept"


def ends(report: Report) -> bool:
    """Return whether the line stands after the report."""
    return begins(report) or (_command(report) == "bandwidth" and bool(report.measurements))


def _command(report: Report) -> str:
    return (report.command.split(" ")[1:2] or [""])[0]


def line(report: Report) -> str:
    """``8 × H100 on n0: all_reduce 8 GiB: busbw 472 GB/s (algbw 270), 98 % of expected (source); 28 of 28 …; PASS``."""
    parts: tuple[str, ...] = (_speed(report),)
    if begins(report):
        within = (_pairs(report), _ladder(report.ladder), _copies(report.copies), _widths(report))
        measured = report.measurements or report.pairs or report.copies
        if report.script:
            parts = (_ladder(report.script, "script on") or "the script has no speed-up", _widths(report))
        else:
            parts = (*parts, *within) if measured else (_why_nothing(report), _widths(report))
    none = digest.none_judged(report) if report.status is Status.PASS else ""
    verdict = f"{none or report.status.value.upper()} (exit {report.exit_code})"
    return printable(f"{_who(report)}: {'; '.join(part for part in (*parts, *_missing(report), verdict) if part)}")


def _who(report: Report) -> str:
    """How many of which GPU; with gloo how many ranks; and where."""
    ranks, nodes = report.launch.world_size or 0, len(report.nodes)
    where = f" on {fold(node.name for node in report.nodes) if nodes == 1 else f'{nodes} nodes'}" if nodes else ""
    found, backend = report.fingerprint, _backend(report)
    if found is None or backend != "nccl":
        looked_at = _models(report)
        return f"{plural(ranks, 'rank')}{where}, {backend}" if backend else f"{looked_at}{where}".removeprefix(" on ")
    gpu = found.machine.get("gpu", "GPU").partition(",")[0].partition(" x ")[2] or "GPU"
    return f"{ranks} × {_short(gpu)}{where}"


def _short(gpu: str) -> str:
    model = re.search(_MODEL, gpu)
    return model[0] if model else gpu.removeprefix("NVIDIA ")


def _models(report: Report) -> str:
    """What a look alone has found: ``8 × H100``; empty without a GPU."""
    models = Counter(_short(gpu.model) for node in report.topology.values() for gpu in node.gpus or ())
    return ", ".join(f"{number} × {model}" for model, number in models.most_common())


def _gpus_missing(report: Report) -> bool:
    """Return whether there is no GPU, and nothing says that there should be one."""
    found_none = not report.scope.gpus and not report.scope.driver
    return found_none and not any(check.id == "gpu.count" and check.findings for check in report.checks)


def _why_nothing(report: Report) -> str:
    whys = (f"nothing measured: {row.why.partition(';')[0]}" for row in report.skipped_rows)
    return next(whys, "looked at, nothing measured")


def _missing(report: Report) -> list[str]:
    """What there is too few of to measure: one GPU, or none."""
    alone = dict.fromkeys(row.why for row in report.skipped_rows if row.cause == "alone")
    return [*alone, *(["no GPU: a node for gloo jobs"] if begins(report) and _gpus_missing(report) else [])]


def _backend(report: Report) -> str:
    return report.fingerprint.software.get("backend", "") if report.fingerprint else ""


def _speed(report: Report) -> str:
    """Return the best row of the largest size, of those that are judged where some are, with what was expected."""
    if not report.measurements:
        return "" if any(row.cause == "alone" for row in report.skipped_rows) else "no collective measured"
    rows = [row for row in report.measurements if row.op == _main_op(report)]
    judged = [row for row in rows if row.expectation and row.status != "unjudged"]
    best = max(judged or rows, key=lambda row: (row.nbytes, row.busbw_GBps))
    rate = f"{best.op} {size(best.nbytes)}: busbw {best.busbw_GBps:.3g} GB/s (algbw {best.algbw_GBps:.3g})"
    if not judged or not best.expectation:
        return f"{rate}, not judged"
    return f"{rate}, {100 * best.busbw_GBps / best.expectation.value:.0f} % of expected ({best.expectation.source})"


def _main_op(report: Report) -> str:
    """Return the operation that people compare; where it was not measured the first one that was."""
    ops = [row.op for row in report.measurements]
    return "all_reduce" if "all_reduce" in ops else ops[0]


def _pairs(report: Report) -> str:
    """How many pairs are as fast as the usual one both ways, inside nodes and between them each by themselves."""
    rows = [row for row in report.pairs if not row.both and not row.step]
    if not rows:
        return "" if any(row.cause == "alone" for row in report.skipped_rows) else "no pair measured"
    near: dict[frozenset[int], bool] = {}
    for inside in (True, False):
        ways = [row for row in rows if row.inside is inside]
        usual = _usual(report, inside, [row.GBps for row in ways])
        for row in ways:
            pair = frozenset((row.src, row.dst))
            near[pair] = near.get(pair, True) and row.GBps >= (1 - _NEAR) * usual
    if len(near) == 1:  # with none to compare it with
        return f"1 pair at {min(row.GBps for row in rows):.3g} GB/s"
    return f"{sum(near.values())} of {plural(len(near), 'pair')} within {100 * _NEAR:.0f} %"


def _usual(report: Report, inside: bool, rates: Sequence[float]) -> float:
    """Return what the pairs are compared with everywhere; their median where a report does not say it."""
    known = report.localisation.usual_GBps(inside=inside) if report.localisation else None
    return known or (median(rates) if rates else 0.0)


def _ladder(rungs: Sequence[LadderRow | ScriptRung], lead: str = "ladder") -> str:
    """What each rung above one rank brings: ``ladder 8 ranks 7.9 x (99 %), 64 ranks 58 x (91 %)``."""
    said = [
        f"{row.ranks} ranks {row.speedup:.3g} x ({100 * row.efficiency:.0f} %)"
        for row in rungs
        if row.rung != "rank" and row.speedup is not None and row.efficiency is not None
    ]
    return f"{lead} {', '.join(said)}" if said else ""


def _widths(report: Report) -> str:
    """How many GPUs have all their PCIe lanes, by the widths that were read; empty for a run without GPUs.

    Of a node whose copies were measured the GPUs that copied, else all.
    """
    if _backend(report) == "gloo":
        return ""
    measured = {(row.node, row.device) for row in report.copies}
    rows = [(node, row) for node, built in report.topology.items() for row in built.gpus or ()]
    gpus = [row for node, row in rows if not measured or (node, row.name) in measured]
    known = [(row.pcie_width, row.pcie_max_width) for row in gpus if row.pcie_width and row.pcie_max_width]
    if not known or len(known) < len(gpus):
        return "PCIe widths not known" if gpus or report.copies else ""
    most = max(best for _, best in known)
    whole = sum(width >= most for width, _ in known)
    below = sorted({width for width, _ in known if width < most}, reverse=True)
    others = f" ({', '.join(f'{sum(w == width for w, _ in known)} x{width}' for width in below)})" if below else ""
    return f"PCIe {whole} of {len(known)} x{most}{others}"


def _copies(copies: Sequence[CopyRow]) -> str:
    """How many GPUs copy slower from or to their host than their link allows, or how fast the only one copies."""
    ways = {row.kind: row.GBps for row in copies if row.kind in ("h2d", "d2h") and row.near is not False}
    if len(ways) == len({row.device for row in copies if row.device.startswith("GPU")}) + 1 == 2:
        return f"{ways['h2d']:.3g} GB/s to the GPU, {ways['d2h']:.3g} back"
    gpus = {(row.node, row.device) for row in copies if row.kind in ("h2d", "d2h") and row.status != "unjudged"}
    slow = {(row.node, row.device) for row in copies if row.kind in ("h2d", "d2h") and row.status == "fail"}
    return f"{len(slow)} of {plural(len(gpus), 'GPU')} slow to copy" if slow else ""
