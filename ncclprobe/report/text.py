"""The report as a person reads it: problems first, then what could not be looked at, passes folded, verdict last."""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, TypeVar

from ncclprobe.model.findings import Finding, Severity, Status, Verdict
from ncclprobe.model.hostlist import fold
from ncclprobe.model.measurement import FirstCall, Measurement
from ncclprobe.model.nccl_selection import Choices, HcaChoice, Part, PeerChoice
from ncclprobe.model.report import Report, Setting
from ncclprobe.model.values import Struct, replace
from ncclprobe.report import digest, pairs, traffic, training
from ncclprobe.units import plural, printable, size

T = TypeVar("T")
Style = Callable[[str, str], str]
"""Takes text and a status word (fail, warn, note, unknown, pass, skip) and may colour the text."""

_LOUDEST_FIRST = ("fail", "warn", "unknown", "pass", "skip")
_ORDER = (Severity.FAIL, Severity.WARN, Severity.NOTE)
_COLUMNS = "{:<15}{:>11} {:>5} {:>10} {:>4} {:>9} {:>6} {:>9} {:>9} {:>5} {:<8}"


def unstyled(text: str, _status: str) -> str:
    """The Style of a pipe or a file."""
    return text


def render(
    report: Report, *, rows: bool = True, verbose: bool = False, width: int = 100, style: Style = unstyled
) -> str:
    """The whole report as text, lines no wider than `width` where words allow. Ends with a newline.

    `rows` is False where the measurements have been shown already, as they came.
    """
    report = _legible(report)
    width = max(width, 40)
    blocks = [
        [_headline(report)],
        _measurements(report.measurements) if rows else [],
        *pairs.blocks(report.pairs, report.localisation, width),
        *traffic.blocks(report, width),
        *training.blocks(report.groups, report.steps, report.ladder, width),
        *_findings(report, width, style),
        _unknown(report, width, style),
        _skipped(report, verbose, width, style),
        _passed(report, verbose, width, style),
        _environment(report, width) if verbose else [],
        *(_choices(node, made, width) for node, made in report.choices.items() if verbose),
        _first_call(report.first_call),
        [f"suppressed: {s.id} on {s.subject} ({s.reason})" for s in report.suppressed],
        [line for remark in report.notes for line in _wrapped("note: ", remark, width)],
        [style(verdict_line(report), report.status.value)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def verdict_line(report: Report) -> str:
    """The run in one line of at most 80 characters: status, the counts, exit code.

    Numbers that nothing judged are the headline: a PASS in front of them would be taken for theirs.
    """
    counts = ", ".join(f"{report.coverage[s]} {s}" for s in _LOUDEST_FIRST if report.coverage.get(s))
    if unjudged := none_judged(report):
        lead = "" if report.status is Status.PASS else f"{report.status.value.upper()}  "
        loud = ", ".join(f"{report.coverage[s]} {s}" for s in _LOUDEST_FIRST[:-1] if report.coverage.get(s))
        return f"{lead}{unjudged}; {loud or 'nothing checked'}  (exit {report.exit_code})"
    judged = sum(m.status in ("pass", "warn", "fail") for m in report.measurements)
    rows = f"; {plural(len(report.measurements), 'row')}, {judged} judged" if report.measurements else ""
    return f"{report.status.value.upper()}  {counts or 'nothing checked'}{rows}  (exit {report.exit_code})"


def none_judged(report: Report) -> str:
    """How many rows were measured where none of them was judged; empty where one was, or none was measured."""
    rows = report.measurements
    none = rows and all(row.status == "unjudged" for row in rows)
    return f"{plural(len(rows), 'row')} measured, none judged" if none else ""


def quiet(report: Report) -> str:
    """One line of at most 80 characters: the worst finding or what is not known, how much more, and the exit code."""
    worst = [(v, f) for v, f in _all_findings(report) if f.severity is not Severity.NOTE]
    blind = [v for v in report.checks if v.status is Status.UNKNOWN and v.required]
    if worst:
        verdict, finding = worst[0]
        text = f"{finding.severity.value.upper()} {verdict.id} {finding.subject}: {finding.message}"
    elif blind:
        text = f"UNKNOWN {blind[0].id}: {blind[0].why}"
    else:
        return verdict_line(report) + "\n"
    more = len(worst or blind) - 1
    end = f" (+{more} more, exit {report.exit_code})" if more else f" (exit {report.exit_code})"
    return textwrap.shorten(printable(text), 80 - len(end), placeholder="…") + end + "\n"


def _legible(value: T) -> T:
    """`value` with every text in it made printable: values, tuples and dictionaries all the way down."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return printable(value)  # type: ignore[return-value]
    if isinstance(value, tuple):
        return tuple(map(_legible, value))  # type: ignore[return-value]
    if isinstance(value, dict):
        return {_legible(k): _legible(v) for k, v in value.items()}  # type: ignore[return-value]
    if isinstance(value, Struct):
        return replace(value, **{name: _legible(getattr(value, name)) for name in value.__struct_fields__})
    return value


def measurement_header(first: Measurement) -> str:
    """What stands above rows like `first`: how they were measured, and the columns with their units (GB/s is 1e9)."""
    about = (
        f"{first.backend} {first.library.version}, {plural(first.ranks, 'rank')} on {plural(first.nodes, 'node')}, "
        f"{first.mode}, {first.dtype}, {_often(first)}, {size(first.footprint_bytes)} buffers"
        + (f", over {first.transport.network}" if first.transport.network else "")
    )
    names = ("op", "size", "in", "time", "+-", "issue", "calls", "algbw", "busbw", "wrong", "verdict")
    units = ("", "(bytes)", "place", "(us)", "(%)", "(us)", "", "(GB/s)", "(GB/s)", "", "")
    return "\n".join((about, _COLUMNS.format(*names).rstrip(), _COLUMNS.format(*units).rstrip()))


def measurement_row(m: Measurement) -> str:
    """One measurement as a line under :func:`measurement_header`.

    ``in place`` is x where it is. ``+-`` is how well the median time is known: half its 95 % interval, in percent.
    ``issue`` is what the host needs to hand a call over; where that is most of the time, the row is launch-bound.
    """
    expected = (
        f" of {m.expectation.threshold:.4g}" if m.expectation and m.status in ("warn", "fail", "inconclusive") else ""
    )
    expected = (
        f", {m.expectation.value:.4g} expected" if m.expectation and m.expectation.worst == "unjudged" else expected
    )
    bound = ", launch-bound" if m.launch_bound else ""
    return _COLUMNS.format(
        f"{m.op} {m.redop}" if m.redop not in (None, "sum") else m.op,
        m.nbytes,
        "x" if m.place == "in" else "-",
        f"{m.time_us.typical:.2f}",
        "-" if m.precision is None else _percent(m.precision),
        f"{m.issue_us:.2f}",
        m.iters * m.batches,
        _rate(m.algbw_GBps),
        _rate(m.busbw_GBps),
        "-" if m.wrong is None else m.wrong,
        m.status + expected + bound,
    ).rstrip()


def _often(first: Measurement) -> str:
    """How often each row was measured."""
    if first.precision_asked is None:
        return f"{first.iters} calls x {first.batches} batches"
    return f"±{_percent(first.precision_asked)} % asked for"


def _percent(share: float) -> str:
    """A share in percent, with two digits that mean something: 0.15, 2, 15, 120."""
    return f"{100 * share:.2g}" if share < 0.095 else f"{100 * share:.0f}"


def _rate(value: float) -> str:
    """A rate with four digits that mean something: 0.001234, 1.234, 483.2."""
    return f"{value:#.4g}" if value >= 1e-4 else f"{value:.1e}"


_STARTED = {"self": " started by ncclprobe", "environment": " by hand", "single": ""}


def _headline(report: Report) -> str:
    launch = report.launch
    by = _STARTED.get(launch.kind, f" by {launch.kind}")
    ranks = f", {plural(launch.world_size, 'rank')}{by}" if launch.world_size else ""
    if launch.kind == "options":
        ranks = f", {plural(launch.nnodes or 1, 'node')} by the command line"
    nodes = fold(node.name for node in report.nodes)
    missing = f"; not heard of: {fold(report.missing_nodes)}" if report.missing_nodes else ""
    return f"{report.tool.name} {report.tool.version} · {nodes}{ranks}{missing} · {report.started}"


def _measurements(rows: tuple[Measurement, ...]) -> list[str]:
    return [measurement_header(rows[0]), *map(measurement_row, rows)] if rows else []


def _first_call(cost: FirstCall | None) -> list[str]:
    """What a job pays once, at its start."""
    if cost is None:
        return []
    return [
        f"first calls: process group {_seconds(cost.process_group_s)}, collective {_seconds(cost.collective_s)} "
        f"(again {_seconds(cost.second_call_s)}), pairs {_seconds(cost.pair_s)}; the slowest rank's"
    ]


def _seconds(value: float) -> str:
    """Seconds in the unit that suits them."""
    scale, unit = (1, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "us")
    return f"{value * scale:.3g} {unit}"


def _all_findings(report: Report) -> list[tuple[Verdict, Finding]]:
    found = [(verdict, finding) for verdict in report.checks for finding in verdict.findings]
    return sorted(found, key=lambda pair: _ORDER.index(pair[1].severity))


def _findings(report: Report, width: int, style: Style) -> Iterator[list[str]]:
    """Each finding once, with all the nodes on which it was found."""
    for name, finding, nodes in digest.problems(report):
        word = finding.severity.value
        head = f"{name}  {finding.subject}{_on(nodes, report)}"
        lines = [f"{style(f'{word.upper():<6}', word)}{head}", *_wrapped("      ", finding.message, width)]
        if finding.evidence:
            lines += _wrapped("      seen: ", finding.seen, width)
        if finding.related:
            lines += _wrapped("      see also: ", finding.see_also, width)
        if finding.remedy:
            lines += _wrapped("      fix:  ", finding.remedy, width)
        if finding.severity is not Severity.NOTE:
            lines += _wrapped("      blame: ", digest.blamed(finding, nodes), width)
        yield lines


def _on(nodes: Sequence[str], report: Report) -> str:
    """Where something holds, if there are several nodes: `` on n[0-3]``."""
    if not nodes or len(report.nodes) < 2:
        return ""
    everywhere = len(nodes) == len(report.nodes)
    return f"  on all {len(nodes)} nodes" if everywhere else f"  on {fold(nodes)}"


def _unknown(report: Report, width: int, style: Style) -> list[str]:
    """What could not be looked at, by reason, and by node where there are several."""
    unknown = [v for v in report.checks if v.status is Status.UNKNOWN]
    nodes: dict[tuple[str, str], list[str]] = {}
    for v in unknown:
        nodes.setdefault((v.why, f"{v.id} (required)" if v.required else v.id), []).extend([v.node] if v.node else [])
    groups: dict[tuple[str, str], list[str]] = {}
    for (why, name), where in nodes.items():
        groups.setdefault((why, _on(where, report)), []).append(name)
    lines: list[str] = []
    for (why, on), names in groups.items():
        lines += [*_labelled("unknown", ", ".join(names) + on, width, style), *_wrapped(" " * 8, why, width)]
    return lines


def _skipped(report: Report, verbose: bool, width: int, style: Style) -> list[str]:
    """How many checks do not apply; `verbose`: which, and why."""
    reasons: dict[str, list[str]] = {}
    for v in report.checks:
        if v.status is Status.SKIP:
            reasons.setdefault(v.why, []).append(v.id)
    if not reasons:
        return []
    if not verbose:
        number = plural(sum(map(len, reasons.values())), "check")
        return _labelled("skip", f"{number} without anything to judge here (-v names them)", width, style)
    lines: list[str] = []
    for why, names in reasons.items():
        lines += [*_labelled("skip", ", ".join(dict.fromkeys(names)), width, style), *_wrapped(" " * 8, why, width)]
    return lines


def _passed(report: Report, verbose: bool, width: int, style: Style) -> list[str]:
    """The passes, a line per subject; `verbose`: a line each, with what holds."""
    spoiled = {v.id for v in report.checks if v.status not in (Status.PASS, Status.SKIP)}
    titles = {v.id: v.title for v in report.checks if v.status is Status.PASS and v.id not in spoiled}
    if verbose:
        return [line for i in titles for line in _labelled("pass", f"{i}  {titles[i]}", width, style)]
    subjects: dict[str, list[str]] = {}
    for name in titles:
        subjects.setdefault(name.partition(".")[0], []).append(name)
    return [line for names in subjects.values() for line in _labelled("pass", ", ".join(names), width, style)]


def _labelled(status: str, text: str, width: int, style: Style) -> list[str]:
    lines = textwrap.wrap(text, width - 8, break_on_hyphens=False)
    return [(style(f"{status:<8}", status) if n == 0 else " " * 8) + line for n, line in enumerate(lines)]


def _environment(report: Report, width: int) -> list[str]:
    lines: list[str] = []
    for node, environment in report.environment.items():
        versions = ", ".join(f"{name} {version or 'unknown'}" for name, version in environment.versions.items())
        lines += _wrapped(f"{node}: ", versions, width)
        lines += [f"  {line}" for line in map(_setting, environment.settings)]
    return lines


def _choices(node: str, made: Choices, width: int) -> list[str]:
    """What NCCL would choose on a node: equal choices on one line with their reason, then what decided it all."""
    parts: list[tuple[str, Part[Any], Callable[[Any], tuple[str, str]]]] = [
        ("bootstrap", made.bootstrap, lambda each: ("", f"{each.name} {each.address}")),
        ("sockets", made.sockets, lambda each: ("", f"{each.name} {each.address}")),
        ("HCAs", made.hcas, _hca),
        ("left out", made.hcas_left_out, _hca),
        ("GIDs", made.gids, lambda each: ("", f"{each.port} index {each.index} ({each.type or '?'} {each.address})")),
        ("GPUDirect", made.gpudirect, lambda each: (_yes(each.receives), f"{each.gpu} {'/'.join(each.nics)}")),
        ("GPU pairs", made.p2p, lambda each: (each.transport or "unknown", _pairs(each, made.p2p))),
    ]
    lines = [f"{node}: what {f'NCCL {made.nccl}' if made.nccl else 'the newest NCCL'} would choose"]
    for name, part, shown in parts:
        by_reason: dict[tuple[str, str], list[str]] = {}
        for each in part.chosen or ():
            verdict, subject = shown(each)
            by_reason.setdefault((verdict, each.why), []).append(subject)
        rows = [f"{verdict} {', '.join(subjects)}: {why}" for (verdict, why), subjects in by_reason.items()]
        rows += [part.why] if name != "left out" and all(part.why != why for _, why in by_reason) else []
        if part.chosen != () or name in ("bootstrap", "HCAs", "GPUDirect"):
            rows[0] = {None: "unknown: ", (): "none: "}.get(part.chosen, "") + rows[0]
            for label, row in zip((name, *[""] * len(rows)), rows, strict=False):
                lines += _wrapped(f"  {label:<11}", row, width)
    return [*lines, *_wrapped(f"  {'NVLS':<11}", f"{_yes(made.nvls.available)}: {made.nvls.why}", width)]


def _hca(port: HcaChoice) -> tuple[str, str]:
    return "" if port.rate_gbps is None else f"{port.rate_gbps:g} Gb/s", port.port


def _pairs(peers: PeerChoice, part: Part[PeerChoice]) -> str:
    if part.chosen == (peers,) and peers.pairs[1:]:
        return f"all {len(peers.pairs)}"
    more = f" and {len(peers.pairs) - 3} more" if peers.pairs[3:] else ""
    return ", ".join(map("-".join, peers.pairs[:3])) + more


def _yes(answer: bool | None) -> str:
    return "unknown" if answer is None else "yes" if answer else "no"


def _setting(setting: Setting) -> str:
    value = "(value not recorded)" if setting.value is None else setting.value
    return f"{setting.name}={value}  [{setting.origin}]"


def _wrapped(lead: str, text: str, width: int) -> Iterable[str]:
    words, indent = " ".join(text.split()), " " * len(lead)
    return textwrap.wrap(words, width, initial_indent=lead, subsequent_indent=indent, break_on_hyphens=False) or [lead]
