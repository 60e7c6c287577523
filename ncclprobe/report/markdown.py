"""The report as Markdown for a job's page or a comment: failures first, passes folded, bounded in size.

GitHub accepts 1 MiB of summary from a step, and ten annotations of a kind (docs.github.com, Workflow commands: adding a
job summary, Usage limits: annotations). Text from a machine stays text: no markup, no mention of a user.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ncclprobe import page
from ncclprobe.model.causes import Cause, Moment
from ncclprobe.model.findings import Severity
from ncclprobe.model.measurement import Measurement, operation
from ncclprobe.model.report import Report
from ncclprobe.model.traffic import CopyRow
from ncclprobe.model.units import plural, printable, size
from ncclprobe.report import causes, digest, pairs, traffic
from ncclprobe.report.digest import verdict_line

MOST_BYTES = 900_000
MOST_ANNOTATIONS = 10
_MOST_MOMENTS = 200
_RESERVED = 4_000  # for titles, and for the lines that say what was left out
_MOST_CHARACTERS = 1_000  # of one text from the report
_SPECIAL = re.compile(r"([\\`*_\[\]|~$]|^[#+-])")
_LIST = re.compile(r"^(\d+)([.)])(?=\s|$)")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_BEGINNINGS = (
    *("## ", "### ", "- ", "  - ", "|", "    ", "`", ", by `", "<details>", "</details>"),
    *("… and ", "Did not report: ", "ncclprobe "),
)
_CLASSES = ("class", "ranks", "on", "what they do")
_TABLE = ("op", "size", "place", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "threshold", "wrong", "verdict")


class _Section(NamedTuple):
    """A title and its items, a few lines of Markdown each; `folded`: collapsed. `head` comes first."""

    title: str
    items: list[str]
    folded: bool = False
    head: str = ""


def render(report: Report) -> str:
    """Render `report` as GitHub's Markdown, at most MOST_BYTES of UTF-8. Ends with a newline."""
    left = MOST_BYTES - _RESERVED
    blocks: list[str] = []
    for section in (_file_sections if report.files else _sections)(report):
        if section.items:
            block, used = _block(section, left)
            blocks.append(block)
            left -= used
    return "\n\n".join(blocks) + "\n"


def recognises(text: str) -> bool:
    """Return whether `text` is a complete output of `render`: each line begins as one of ours does."""
    lines = text.splitlines()
    return (
        len(lines) > 2
        and lines[0].startswith("## ")
        and lines[2].startswith("ncclprobe ")
        and all(not line or line.startswith(_BEGINNINGS) for line in lines)
    )


def annotations(report: Report) -> list[str]:
    """Return GitHub's workflow commands: an error per failure, a warning per warning or gap, at most ten of each."""
    errors: list[tuple[str, str]] = [("nodes", f"did not report: {digest.folded(report.missing_nodes)}")]
    errors = errors if report.missing_nodes else []
    warnings: list[tuple[str, str]] = []
    for problem in digest.problems(report):
        if problem.finding.severity is not Severity.NOTE:
            into = errors if problem.finding.severity is Severity.FAIL else warnings
            where = digest.on(problem.nodes, report)
            text = f"{problem.subject}{f' on {where}' if where else ''}: {problem.finding.message}"
            into.append((problem.id, f"{text}; fix: {problem.finding.remedy}" if problem.finding.remedy else text))
    for gap in digest.gaps(report):
        if gap.required:
            warnings.append((", ".join(gap.ids), f"could not be done: {gap.why}"))
    if report.exit_code and not errors and not warnings:
        warnings.append(("verdict", "; ".join((verdict_line(report), *report.notes))))
    return [*_commands("error", errors), *_commands("warning", warnings)]


def _commands(kind: str, found: list[tuple[str, str]]) -> Iterator[str]:
    kept = found if len(found) <= MOST_ANNOTATIONS else found[: MOST_ANNOTATIONS - 1]
    for title, message in kept:
        yield f"::{kind} title={_escape_value(f'ncclprobe {title}', ',:')}::{_escape_value(message)}"
    if len(found) > len(kept):
        yield f"::{kind} title=ncclprobe::{len(found) - len(kept)} more: see the summary of this job"


def _escape_value(text: str, also: str = "") -> str:
    """Escape `text` as a value of a workflow command: one line that nothing in it can end."""
    short = _short(text).replace("%", "%25")
    return "".join(f"%{ord(c):02X}" if c in also else c for c in short)


def _file_sections(report: Report) -> Iterator[_Section]:
    """Yield the sections of a report on a job's files."""
    about = f"{report.tool.name} {report.tool.version} read {', '.join(report.files)}"
    about += f"; {causes.looked(report.standing)}" if report.standing else ""
    yield _Section("", [f"## {text(causes.headline(report))}\n\n{text(about)}"])
    ranks = [_line_of(row) for row in causes.class_rows(report)]
    yield _Section("Ranks by activity", ranks, head=_head_of(_CLASSES))
    yield _Section("Why it failed", [_cause(cause) for cause in report.causes])
    yield _Section("Notes", [f"- {text(remark)}" for remark in report.notes])
    yield _Section("Timeline", [_moment(moment) for moment in report.timeline[:_MOST_MOMENTS]], folded=True)
    odd = [f"- {code(each.source)}, {each.count}: {code(each.text)}" for each in report.not_understood]
    yield _Section(f"Not recognised ({len(odd)})", odd, folded=True)


def _sections(report: Report) -> Iterator[_Section]:
    found = digest.problems(report)
    bad = [problem for problem in found if problem.finding.severity is not Severity.NOTE]
    notes = [problem for problem in found if problem.finding.severity is Severity.NOTE]
    gaps = digest.gaps(report)
    where = digest.folded([node.name for node in report.nodes])
    nodes = plural(len(report.nodes), "node")
    about = f"{report.tool.name} {report.tool.version}, {nodes}, {digest.looked(report)}"
    way = digest.transport(report)
    lines = f"## {text(verdict_line(report))}\n\n{text(about)}\n{code(where)}, by {code(report.command)}"
    yield _Section("", [f"{lines}\n\n- transport: {text(way)}" if way else lines])
    lost = [f"Did not report: {code(digest.folded(report.missing_nodes))}."]
    yield _Section("", lost if report.missing_nodes else [])
    yield _Section("Problems", [_problem(problem, report) for problem in bad])
    yield _Section("Notes", [f"- {text(remark)}" for remark in report.notes])
    slow = [row for row in report.measurements if row.status in ("fail", "warn", "inconclusive")]
    yield _Section("Rows that did not pass", [_row(row) for row in slow], head=_head_of(_TABLE))
    yield _Section(
        "Copies that are slower than expected", [_copy(row) for row in report.copies if row.status == "fail"]
    )
    yield _Section("Pairs", [f"- {text(line)}" for line in _who_is_slow(report)])
    yield _Section("Required checks that could not be done", [_gap(gap, report) for gap in gaps if gap.required])
    yield _Section(f"Measurements ({len(report.measurements)})", [_row(row) for row in report.measurements],
                  folded=True, head=_head_of(_TABLE))  # fmt: skip
    blocks = traffic.training_tables(report.groups, report.steps, report.ladder, 120)
    tables = [line for block in blocks for line in (*block, "")]
    yield _Section("Training groups, steps and ladder", [f"    {printable(line)}" for line in tables], folded=True)
    yield _Section(f"Notes ({len(notes)})", [_problem(problem, report) for problem in notes], folded=True)
    yield _Section("Could not be looked at", [_gap(gap, report) for gap in gaps if not gap.required], folded=True)
    fine = digest.passed(report)
    titles = [f"- {code(name)} {text(title)}" for name, title in fine.items()]
    yield _Section(f"Passed ({len(fine)})", titles, folded=True)
    lived_with = [f"- {code(s.id)} on {code(s.subject)}: {text(s.reason)}" for s in report.suppressed]
    yield _Section(f"Suppressed ({len(lived_with)})", lived_with, folded=True)


def _cause(cause: Cause) -> str:
    where = f" on {text(place)}" if (place := causes.who(cause.ranks, cause.nodes)) else ""
    named = " or ".join(map(code, cause.could_be)) or code(cause.code)
    lines = [f"- **{cause.confidence}** {named}{where}: {text(cause.message)}"]
    lines += [f"  - {code(str(each))}" for each in cause.evidence]
    lines += [f"  - suspect: {text(causes.suspected(each))}" for each in cause.suspects]
    whose = causes.blamed(cause) if cause.confidence != "unknown" else ""
    lines += [f"  - whose fault: {text(whose)}"] if whose else []
    lines += [f"  - fix: {text(cause.remedy)}"] if cause.remedy else []
    lines += [f"  - to find out: {text(step)}" for step in cause.collect]
    lines += [f"  - followed by: {text(each.message)} ({each.count})" for each in cause.consequences]
    lines += [f"  - found before the next launch by {code('ncclprobe doctor')} {cause.doctor}"] if cause.doctor else []
    return "\n".join(lines)


def _moment(moment: Moment) -> str:
    when = "" if moment.time_s is None else f"{moment.time_s:.3f} "
    who = "" if moment.rank is None else f"rank {moment.rank} "
    return f"- {when}{who}{code(moment.host)} {text(moment.text)}: {code(str(moment.evidence))}"


def _who_is_slow(report: Report) -> Iterator[str]:
    return (text for _, text in pairs.words(report.localisation)) if report.localisation else iter(())


def _block(section: _Section, left: int) -> tuple[str, int]:
    """Return as much of the section as fits into `left` bytes, and its size."""
    kept: list[str] = []
    used = 0
    for item in section.items:
        nbytes = len(item.encode()) + 1
        if used + nbytes > left:
            break
        kept.append(item)
        used += nbytes
    lines = "\n".join([section.head, *kept] if section.head else kept)
    if len(kept) < len(section.items):
        lines += f"\n\n… and {len(section.items) - len(kept)} more; the JSON report has them all."
    if section.folded:
        return f"<details><summary>{section.title}</summary>\n\n{lines}\n\n</details>", used
    return (f"### {section.title}\n\n{lines}" if section.title else lines), used


def _problem(problem: digest.Problem, report: Report) -> str:
    finding, where = problem.finding, digest.on(problem.nodes, report)
    on = f" on {code(where)}" if where else ""
    lines = [f"- **{finding.severity.value.upper()}** {code(problem.id)} {code(problem.subject)}{on}: "
             f"{text(finding.message)}"]  # fmt: skip
    if finding.evidence:
        lines.append(f"  - seen: {code(finding.seen)}")
    lines += [f"  - so: {text(follows)}" for follows in problem.consequences]
    if finding.related:
        lines.append(f"  - see also: {code(finding.see_also)}")
    if finding.remedy:
        lines.append(f"  - fix: {text(finding.remedy)}")
    if finding.severity is not Severity.NOTE:
        lines.append(f"  - {text(digest.blame_of(problem))}")
    lines.append(f"  - more: {code(f'ncclprobe explain {problem.id}')}, {_link(problem.id)}")
    return "\n".join(lines)


def _link(check: str) -> str:
    """Return a link to a check's page; empty for an id that is not spelled like ours."""
    return f"<{page(check)}>" if re.fullmatch(r"[a-z0-9.-]{1,64}", check) else ""


def _gap(gap: digest.Gap, report: Report) -> str:
    where = digest.on(gap.nodes, report)
    return f"- {', '.join(map(code, gap.ids))}{f' on {code(where)}' if where else ''}: {text(gap.why)}"


def _head_of(columns: Sequence[str]) -> str:
    return f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}"


def _line_of(cells: Iterable[object]) -> str:
    return f"| {' | '.join(text(str(cell)) for cell in cells)} |"


def _row(row: Measurement) -> str:
    cells = (
        operation(row.op, row.redop),
        size(row.nbytes),
        row.place,
        f"{row.time_us.typical:.2f}",
        f"{row.algbw_GBps:.4g}",
        f"{row.busbw_GBps:.4g}",
        f"{row.expectation.mark(row.busbw_GBps):.4g}" if row.expectation and row.status != "unjudged" else "",
        "not verified" if row.wrong is None else row.wrong,
        row.status,
    )
    return _line_of(cells)


def _copy(row: CopyRow) -> str:
    who = " ".join(filter(None, (row.node, row.device, row.kind, row.peer)))
    least = "" if row.threshold_GBps is None else f", at least {row.threshold_GBps:.4g} expected"
    return f"- {text(who)}: {row.GBps:.4g} GB/s{least}"


def text(said: str) -> str:
    """Escape text so that nothing in it is markup, and no ``@`` mentions a person."""
    plain = "".join(_HTML.get(c, c) for c in _SPECIAL.sub(r"\\\1", _short(said)))
    return _LIST.sub(r"\1\\\2", plain).replace("@", "@\u200b")


def code(said: str) -> str:
    """Return a code span, with a fence longer than any run of backticks in the text."""
    short = _short(said)
    if not short:
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", short)), default=0))
    pad = " " if short.startswith("`") or short.endswith("`") else ""
    return f"{fence}{pad}{short}{pad}{fence}"


def _short(said: str) -> str:
    """Return one printable line of bounded length."""
    line = printable(" ".join(said.split()))
    return line if len(line) <= _MOST_CHARACTERS else line[:_MOST_CHARACTERS] + "…"
