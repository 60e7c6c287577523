"""The report as text: the result, what is wrong, what the machines are, then what was measured."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, TypeVar

from ncclprobe import page
from ncclprobe.model.findings import NOTHING_TO_SET, WORTH_SAYING, Severity, Status, own_node
from ncclprobe.model.hostlist import fold
from ncclprobe.model.layout import Style, first_of, labelled, shorten, unstyled, wrap
from ncclprobe.model.measurement import FirstCall, Measurement
from ncclprobe.model.nccl_selection import Choices, Decision, HcaChoice, PeerChoice
from ncclprobe.model.report import Report, Setting
from ncclprobe.model.stats import median
from ncclprobe.model.traffic import CopyRow, LadderRow
from ncclprobe.model.units import plural, printable, size
from ncclprobe.model.values import Struct, grouped, replace
from ncclprobe.report import digest, overview, pairs, rails, rows, traffic
from ncclprobe.report.digest import Problem

T = TypeVar("T")
_AREA_WORDS = {Status.PASS: "ok", Status.SKIP: "-", Status.FAIL: "FAIL", Status.WARN: "WARN", Status.UNKNOWN: "unknown"}
_INDENT = "      "
_MOST_EVIDENCE = 3


def render(
    report: Report, *, measured: bool = True, verbose: bool = False, width: int = 100, style: Style = unstyled
) -> str:
    """Render the whole report as text, no wider than `width` if words allow. Ends with a newline.

    `measured` is False if the measurements have already been shown as they arrived.
    """
    report = _make_printable(report)
    width = max(width, 40)
    found = digest.problems(report)
    loud, notes = _select_problems(report, found, verbose)
    blocks = [
        [accepted_line(report)] if accepted_begins(report) else [],
        wrap("", _about(report), width, whole=True),
        _answer(report, width, style),
        overview.lines(report, found, width, style),
        *_problems(loud, report, width, style),
        overview.left_out(found, loud),
        _predicted(report),
        _areas(report, width, style) if verbose or overview.areas_help(report) else [],
        _gaps(report, verbose, width, style),
        *_problems(notes, report, width, style),
        _skipped(report, width, style) if verbose else [],
        _passed(report, width, style) if verbose else [],
        _environment(report, width) if verbose else [],
        *(_choices(node, made, width) for node, made in report.choices.items() if verbose),
        rows.table(report.measurements, width, style) if measured else [],
        rows.averages(report.measurements),
        rows.legend() if verbose and report.measurements else [],
        _disturbed(report.measurements, width),
        *pairs.blocks(report.pairs, report.localisation, width),
        *rails.blocks(report.rails, width),
        *traffic.blocks(report, width),
        *traffic.training_tables(report.groups, report.steps, report.ladder, width),
        _first_call(report.first_call, width),
        _suppressed(report, width),
        [line for remark in report.notes for line in wrap("note: ", remark, width)],
        _end([*loud, *notes], report, verbose, width, style),
        [accepted_line(report)] if accepted_ends(report) else [],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _suppressed(report: Report, width: int) -> list[str]:
    found = (f"{each.id} on {each.subject} ({each.reason})" for each in report.suppressed)
    return [line for each in found for line in wrap("suppressed: ", each, width)]


def _select_problems(report: Report, found: Sequence[Problem], verbose: bool) -> tuple[list[Problem], list[Problem]]:
    """Return the problems to show in full, and the notes, which change no verdict.

    For nodes that were judged apart, only the first problem of each check.
    """
    loud = [each for each in found if each.finding.severity is not Severity.NOTE]
    if report.scope.apart and not verbose:
        return overview.first_of_each(loud), []
    notes = [each for each in found if each.finding.severity is Severity.NOTE]
    return loud, [each for each in notes if verbose or not each.finding.remedy.startswith(NOTHING_TO_SET)]


def quiet(report: Report) -> str:
    """Return one line: the worst finding or the unknown checks, their nodes, how much more, and the exit code."""
    every = [node.name for node in report.nodes]
    wrong = [p for p in digest.problems(report) if p.finding.severity is not Severity.NOTE]
    blind = [v for v in report.checks if v.status is Status.UNKNOWN and v.required]
    if wrong:
        worst = wrong[0]
        text = f"{worst.finding.severity.value.upper()} {worst.id} {replace(worst.finding, subject=worst.subject).line}"
        where = worst.finding.nodes or worst.nodes or every
    elif blind:
        text, where = f"UNKNOWN {blind[0].id}: {blind[0].why}", own_node(blind[0]) or every
    else:
        text, where = digest.verdict_line(report).rpartition("  (")[0], every
    more = len(wrong or blind) - 1
    end = (f"on {shorten(fold(where), 40)}" if where else "", f"+{more} more" if more > 0 else "")
    return f"{printable(text)} ({', '.join((*filter(None, end), f'exit {report.exit_code}'))})\n"


def shortened(line: str, width: int) -> str:
    """Cut a line of :func:`quiet` to `width`, keeping its end in parentheses."""
    text, _, end = line.rstrip("\n").rpartition(" (")
    if len(line.rstrip("\n")) <= width or not text:
        return line
    return f"{shorten(text, max(width - len(end) - 2, 20))} ({end}\n"


def _make_printable(value: T) -> T:
    """Make every text in `value` printable, in nested values, tuples and dictionaries."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return printable(value)  # type: ignore[return-value]
    if isinstance(value, tuple):
        return tuple(map(_make_printable, value))  # type: ignore[return-value]
    if isinstance(value, dict):
        return {_make_printable(k): _make_printable(v) for k, v in value.items()}  # type: ignore[return-value]
    if isinstance(value, Struct):
        return replace(value, **{name: _make_printable(getattr(value, name)) for name in value.__struct_fields__})
    return value


def _about(report: Report) -> str:
    """Describe who examined what, and when."""
    launch = report.launch
    by = digest.launcher(launch.kind)
    joint = " " if by == "by hand" else " by "
    ranks = f", {plural(launch.world_size, 'rank')}{joint}{by}" if launch.world_size and launch.kind != "single" else ""
    if launch.kind == "options":
        ranks = f", {plural(launch.nnodes or 1, 'node')} by {by}"
    return f"{report.tool.name} {report.tool.version} · {overview.names(report)}{ranks} · {digest.looked(report)}"


def _answer(report: Report, width: int, style: Style) -> list[str]:
    word = report.status.value
    if report.status is Status.PASS and digest.none_judged(report):
        return [style(line, "skip") for line in wrap("", digest.headline(report), width)]
    return labelled(word.upper(), digest.headline(report), width, style, room=max(6, len(word) + 2))


def _problems(found: Sequence[Problem], report: Report, width: int, style: Style) -> Iterator[list[str]]:
    """Yield each problem; a remedy, and the link to the check, are printed only with the first one."""
    given: dict[str, str] = {}
    for problem in found:
        yield list(_problem(problem, report, given, width, style))


def _problem(problem: Problem, report: Report, given: dict[str, str], width: int, style: Style) -> Iterator[str]:
    name, finding, nodes, subjects, consequences = problem
    word = finding.severity.value
    yield f"{style(f'{word.upper():<6}', word)}{name}  {problem.subject}{_node_suffix(nodes, report)}"
    yield from wrap(_INDENT, finding.message, width)
    for each in finding.evidence[:_MOST_EVIDENCE]:
        yield from wrap(f"{_INDENT}seen:  ", str(each), width)
    left = len(finding.evidence) - _MOST_EVIDENCE
    if left > 0 or len(subjects) > 1:
        more = f"the same for the others of {len(subjects)}" if len(subjects) > 1 else f"and {left} more in --json"
        yield f"{_INDENT}       {more}"
    for follows in consequences:
        yield from wrap(f"{_INDENT}so:    ", follows, width)
    if finding.related:
        yield from wrap(f"{_INDENT}see:   ", finding.see_also, width)
    if finding.remedy:
        before = given.setdefault(finding.remedy, f"{name} {problem.subject}")
        mine = before == f"{name} {problem.subject}"
        yield from wrap(f"{_INDENT}fix:   ", finding.remedy if mine else f"as for {before}", width)
        yield from (f"{_INDENT}         {each}" for each in digest.copyable(finding.remedy) if mine)
    if finding.severity is not Severity.NOTE:
        yield from wrap(_INDENT, digest.blame_of(problem), width)
    if name not in given:
        given[name] = name
        yield f"{_INDENT}more:  ncclprobe explain {name}"


def _predicted(report: Report) -> list[str]:
    """Describe what a machine should reach if it can reach less."""
    found = report.predicted
    if found is None or found.lost() < WORTH_SAYING or report.scope.apart:
        return []
    over = f" over {found.nodes} nodes" if found.nodes > 1 else ""
    left = f"at most {found.now_GBps:.3g} GB/s (healthy: {found.healthy_GBps:.3g})"
    return [f"expected  all_reduce 1 GiB{over}: {left}"]


def _areas(report: Report, width: int, style: Style) -> list[str]:
    lines: list[str] = []
    longest = max((len(area.name) for area in report.areas), default=0)
    for area in report.areas:
        word, name = _AREA_WORDS[area.status], f"{area.name:<{longest}} "
        unseen = f"{plural(area.unseen, 'advisory check')} could not be done" if area.unseen else ""
        kinds = [kind.split(" · ") for kind in area.values.split("; ")]
        kinds[-1] += [first_of(area.ids, _MOST_EVIDENCE), unseen]
        first, *rest = _values(f"{word:<8}{name}", [[each for each in kind if each] for kind in kinds], width)
        lines += [style(word, area.status.value) + first[len(word) :], *rest]
    return lines


def _values(lead: str, kinds: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return the values of each kind of node after `lead`; a value is kept on one line if it fits."""
    lines: list[str] = []
    for values in kinds:
        lines.append(" " * len(lead) if lines else lead)
        for value in values:
            joint = " · " if len(lines[-1]) > len(lead) else ""
            if len(lines[-1] + joint + value) > width and joint:
                lines.append(" " * len(lead))
                joint = ""
            lines[-1] += joint + value
    return [part for line in lines for part in wrap(line[: len(lead)], line[len(lead) :], width)]


def _node_suffix(nodes: Sequence[str], report: Report) -> str:
    """Return the nodes of a finding, if there are several nodes: ``  on n[0-3]``."""
    where = digest.on(nodes, report)
    return f"  on {where}" if where else ""


_MOST_ADVISORY = 12
"""Advisory checks that cannot look for one reason are named up to this number, and only counted above it."""


def _gaps(report: Report, verbose: bool, width: int, style: Style) -> list[str]:
    """Return what could not be examined, by reason, and by node if there are several.

    Advisory checks that lack the same as a required one are only counted, unless `verbose`.
    """
    lines: list[str] = []
    gaps = digest.gaps(report)
    advisory = {(gap.why, *gap.nodes): gap for gap in gaps if not gap.required}
    told = {(gap.why, *gap.nodes) for gap in gaps if gap.required} if not verbose else set()
    for gap in gaps:
        key = (gap.why, *gap.nodes)
        if not gap.required and key in told:
            continue
        names = ", ".join(f"{each} (required)" if gap.required else each for each in gap.ids)
        if not gap.required and not verbose and len(gap.ids) > _MOST_ADVISORY:
            names = plural(len(gap.ids), "advisory check")
        if gap.required and key in told and key in advisory:
            names += f" and {plural(len(advisory[key].ids), 'advisory check')}"
        lines += labelled("unknown", names + _node_suffix(gap.nodes, report), width, style)
        lines += wrap(" " * 8, gap.why, width)
    return lines


def _skipped(report: Report, width: int, style: Style) -> list[str]:
    """Return which checks do not apply, and why."""
    reasons = grouped((v.why, v.id) for v in report.checks if v.status is Status.SKIP)
    lines: list[str] = []
    for why, names in reasons.items():
        lines += [*labelled("skip", ", ".join(dict.fromkeys(names)), width, style), *wrap(" " * 8, why, width)]
    return lines


def _passed(report: Report, width: int, style: Style) -> list[str]:
    """Return the passes with their pass titles, one line each."""
    fine = digest.passed(report)
    return [line for name in fine for line in labelled("pass", f"{name}  {fine[name]}", width, style)]


def _disturbed(measured: Sequence[Measurement], width: int) -> list[str]:
    """Return why rows are inconclusive, once per reason."""
    disturbed = [each for each in measured if each.status == "inconclusive" and each.inconclusive_why]
    reasons = grouped((each.inconclusive_why, f"{each.op} {size(each.nbytes)}") for each in disturbed)
    return [
        line
        for why, names in reasons.items()
        for line in wrap("inconclusive: ", f"{first_of(names, digest.MOST_NAMED)}: {why}", width)
    ]


def _first_call(cost: FirstCall | None, width: int) -> list[str]:
    """Describe the one-time costs at the start of a job."""
    if cost is None:
        return []
    pairs = "" if cost.pair_s is None else f", pairs {_seconds(cost.pair_s)} (of the slowest rank)"
    told = (
        f"process group {_seconds(cost.process_group_s)}, collective {_seconds(cost.collective_s)} "
        f"(second call {_seconds(cost.second_call_s)}){pairs}"
    )
    return wrap("first calls: ", told, width)


def _seconds(value: float) -> str:
    """Format seconds in a suitable unit."""
    scale, unit = (1, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "us")
    return f"{value * scale:.3g} {unit}"


def _end(shown: Sequence[Problem], report: Report, verbose: bool, width: int, style: Style) -> list[str]:
    """Return how much was checked, and the conclusion."""
    left = any(v.status in (Status.PASS, Status.SKIP) for v in report.checks) and not verbose
    named = " (-v names them)" if left else ""
    lines = wrap("checks: ", f"{digest.counts(report)}{named}", width)
    lines += [f"online: {page(shown[0].id)}"] if shown else []
    last = wrap("", digest.conclusion(report), width)
    unjudged = report.status is Status.PASS and digest.none_judged(report)
    return [*lines, *(style(line, "skip" if unjudged else report.status.value) for line in last)]


def _environment(report: Report, width: int) -> list[str]:
    """Return each node's versions and relevant settings, with their origins."""
    lines: list[str] = []
    for node, environment in report.environment.items():
        versions = ", ".join(f"{name} {version or 'unknown'}" for name, version in environment.versions.items())
        lines += wrap(f"{node}: ", versions, width)
        lines += [f"  {each.kind}: {each.name} ({each.source})" for each in environment.placement]
        lines += [f"  {line}" for line in map(_setting, environment.settings)]
    return lines


def _choices(node: str, made: Choices, width: int) -> list[str]:
    """Return NCCL's choices on a node."""
    lines = [f"{node}: what {f'NCCL {made.nccl}' if made.nccl else 'the newest NCCL'} would choose"]
    return [*lines, *(line for name, said in choice_rows(made) for line in wrap(f"  {name:<11}", said, width))]


def choice_rows(made: Choices) -> Iterator[tuple[str, str]]:
    """Yield each part of the choice: equal ones in one row with their reason, then what decided it all, unnamed."""
    parts: list[tuple[str, Decision[Any], Callable[[Any], tuple[str, str]]]] = [
        ("bootstrap", made.bootstrap, lambda each: ("", f"{each.name} {each.address}")),
        ("sockets", made.sockets, lambda each: ("", f"{each.name} {each.address}")),
        ("HCAs", made.hcas, _hca),
        ("left out", made.hcas_left_out, _hca),
        ("GIDs", made.gids, lambda each: ("", f"{each.port} index {each.index} ({each.type or '?'} {each.address})")),
        ("GPUDirect", made.gpudirect, lambda each: (digest.yes(each.receives), f"{each.gpu} {'/'.join(each.nics)}")),
        ("GPU pairs", made.p2p, lambda each: (each.transport or "unknown", _pairs(each, made.p2p))),
    ]
    for name, part, shown in parts:
        told = [(*shown(each), each.why) for each in part.chosen or ()]
        by_reason = grouped(((verdict, why), subject) for verdict, subject, why in told)
        rows = [f"{verdict} {', '.join(subjects)}: {why}" for (verdict, why), subjects in by_reason.items()]
        rows += [part.why] if name != "left out" and all(part.why != why for _, why in by_reason) else []
        if rows and (part.chosen != () or name in ("bootstrap", "HCAs", "GPUDirect")):
            rows[0] = {None: "unknown: ", (): "none: "}.get(part.chosen, "") + rows[0]
            yield from zip((name, *[""] * len(rows)), rows, strict=False)
    yield "NVLS", f"{digest.yes(made.nvls.available)}: {made.nvls.why}"


def _hca(port: HcaChoice) -> tuple[str, str]:
    return "" if port.rate_gbps is None else f"{port.rate_gbps:g} Gb/s", port.port


def _pairs(peers: PeerChoice, part: Decision[PeerChoice]) -> str:
    if part.chosen == (peers,) and peers.pairs[1:]:
        return f"all {len(peers.pairs)}"
    return first_of(map("-".join, peers.pairs), 3)


def _setting(setting: Setting) -> str:
    value = "(value not recorded)" if setting.value is None else setting.value
    return f"{setting.name}={value}  [{setting.origin}]"


_NEAR = 0.02
"""How far below the usual pair one may lie and still count as near it."""
_MODEL = r"\b(?:RTX [A-Z]*\d+\w*|[A-Z]{1,2}\d{2,4}[A-Z]?)\b"


def accepted_begins(report: Report) -> bool:
    """Return whether the line is printed before the report too: for commands that ask whether a node, or a job, is
    good.
    """
    return _command(report) == "accept"


def accepted_ends(report: Report) -> bool:
    """Return whether the line is printed after the report."""
    return accepted_begins(report) or (_command(report) == "bandwidth" and bool(report.measurements))


def _command(report: Report) -> str:
    return (report.command.split(" ")[1:2] or [""])[0]


def accepted_line(report: Report) -> str:
    """``8 × H100 on n0: all_reduce 8 GiB: busbw 472 GB/s (algbw 270), 98 % of expected (source); 28 of 28 …; PASS``."""
    parts: tuple[str, ...] = (_speed(report),)
    if accepted_begins(report):
        within = (_count_usual_pairs(report), _ladder(report.ladder), _copies(report.copies), _widths(report))
        measured = report.measurements or report.pairs or report.copies
        parts = (*parts, *within) if measured else (_why_nothing(report), _widths(report))
    none = digest.none_judged(report) if report.status is Status.PASS else ""
    verdict = f"{none or report.status.value.upper()} (exit {report.exit_code})"
    return printable(f"{_who(report)}: {'; '.join(part for part in (*parts, *_missing(report), verdict) if part)}")


def _who(report: Report) -> str:
    """The number and type of GPUs; with gloo the number of ranks; and the nodes."""
    ranks, nodes = report.launch.world_size or 0, len(report.nodes)
    where = f" on {fold(node.name for node in report.nodes) if nodes == 1 else f'{nodes} nodes'}" if nodes else ""
    found, backend = report.fingerprint, _backend(report)
    if found is None or backend != "nccl":
        models = Counter(_short(gpu.model) for node in report.topology.values() for gpu in node.gpus or ())
        looked_at = ", ".join(f"{number} × {model}" for model, number in models.most_common())
        return f"{plural(ranks, 'rank')}{where}, {backend}" if backend else f"{looked_at}{where}".removeprefix(" on ")
    gpu = found.machine.get("gpu", "GPU").partition(",")[0].partition(" x ")[2] or "GPU"
    return f"{ranks} × {_short(gpu)}{where}"


def _short(gpu: str) -> str:
    model = re.search(_MODEL, gpu)
    return model[0] if model else gpu.removeprefix("NVIDIA ")


def _gpus_missing(report: Report) -> bool:
    """Return whether there is no GPU, and no option asks for one."""
    found_none = not report.scope.gpus and not report.scope.driver
    return found_none and not any(check.id == "gpu.count" and check.findings for check in report.checks)


def _why_nothing(report: Report) -> str:
    whys = (f"nothing measured: {row.why.partition(';')[0]}" for row in report.skipped_rows)
    return next(whys, "checked, nothing measured")


def _missing(report: Report) -> list[str]:
    """What there is too few of to measure: one GPU, or none."""
    alone = dict.fromkeys(row.why for row in report.skipped_rows if row.cause == "alone")
    return [*alone, *(["no GPU, so gloo jobs only"] if accepted_begins(report) and _gpus_missing(report) else [])]


def _backend(report: Report) -> str:
    return report.fingerprint.software.get("backend", "") if report.fingerprint else ""


def _speed(report: Report) -> str:
    """Return the best row of the largest size, of those that are judged if some are, with what was expected."""
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
    """Return the operation that people compare; if it was not measured the first one that was."""
    ops = [row.op for row in report.measurements]
    return "all_reduce" if "all_reduce" in ops else ops[0]


def _count_usual_pairs(report: Report) -> str:
    """How many pairs are as fast as the usual one both ways, inside nodes and between them each by themselves."""
    rows = [row for row in report.pairs if not row.both and not row.step]
    if not rows:
        return "" if any(row.cause == "alone" for row in report.skipped_rows) else "no pair measured"
    near: dict[frozenset[int], bool] = {}
    for inside in (True, False):
        ways = [row for row in rows if row.inside is inside]
        rates = [row.GBps for row in ways]
        known = report.localisation.usual_GBps(inside=inside) if report.localisation else None
        usual = known or (median(rates) if rates else 0.0)
        for row in ways:
            pair = frozenset((row.src, row.dst))
            near[pair] = near.get(pair, True) and row.GBps >= (1 - _NEAR) * usual
    if len(near) == 1:  # with none to compare it with
        return f"1 pair at {min(row.GBps for row in rows):.3g} GB/s"
    return f"{sum(near.values())} of {plural(len(near), 'pair')} within {100 * _NEAR:.0f} %"


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

    If a node's copies were measured, only the GPUs that copied count, otherwise all.
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
