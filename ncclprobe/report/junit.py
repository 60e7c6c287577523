"""The report as JUnit XML, which CI systems show as a page of tests.

A test suite per node, one for the comparisons of nodes, one per measured operation. A test case is a check on a node or
one measured row. As in pytest, a *failure* is a verdict against the machine, an *error* is a test that could not be
carried out (something required that could not be examined, a number too noisy to judge), *skipped* is a test that
needed a privilege that a job does not need. Checks that do not apply are not tests; they are most of a machine's, and a
property of the suite counts them. A warning leaves its test passed, unless the run stopped at it (``--fail-on warn``).

The schema of Jenkins' xUnit plugin (its junit-10.xsd) knows no properties of a test case, so the numbers of the rows
are properties of their suite, and each row's own are in its output too.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ncclprobe import page
from ncclprobe.model.findings import ExitCode, Finding, Severity, Status, Verdict
from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import Report
from ncclprobe.model.traffic import CopyRow
from ncclprobe.model.units import printable, size
from ncclprobe.model.values import grouped
from ncclprobe.report import digest
from ncclprobe.report.digest import verdict_line

if TYPE_CHECKING:
    from junitparser import FinalResult, TestCase, TestSuite

BETWEEN = "between nodes"
"""Name of the suite of comparisons."""
_MOST_CHARACTERS = 400
_BEGIN = '<?xml version="1.0" encoding="utf-8"?>\n'


def render(report: Report) -> str:
    """Render `report` as XML text with a final newline."""
    from junitparser import JUnitXml

    xml = JUnitXml(printable(report.tool.name))
    way = digest.transport(report)
    headline = [("headline", verdict_line(report)), *([("transport", printable(way))] if way else [])]
    # The whole run is a case: a page of tests is red only if the exit code is not 0.
    from junitparser import Error, Failure, Skipped

    case = _case("verdict", "run")
    if none := digest.none_judged(report):
        case.result = [_result(Skipped, none, "unjudged")]
    if report.exit_code:
        kind = Failure if report.exit_code == ExitCode.FAIL else Error
        why = "\n".join(map(printable, report.notes))
        case.result = [_result(kind, verdict_line(report), report.status.value, why)]
    suites = [_suite(report, "run", [case], properties=headline), *_suites(report), *_row_suites(report)]
    if report.copies:
        suites.append(_suite(report, "measured copies", map(_copy, report.copies)))
    xml.extend(suites)
    # Not update_statistics(): it also counts what is skipped, which the schema does not know here.
    xml.tests = sum(suite.tests for suite in suites)
    xml.failures = sum(suite.failures for suite in suites)
    xml.errors = sum(suite.errors for suite in suites)
    lines = xml.tostring().decode().replace("><", ">\n<")  # only between elements: in texts both are escaped
    return f"{_BEGIN}{lines}\n"


def recognises(text: str) -> bool:
    """Return whether `text` is a complete output of `render`."""
    from xml.etree import ElementTree

    if not text.startswith(f"{_BEGIN}<testsuites "):  # so that no document type can stand before the root
        return False
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError):
        return False
    return root.tag == "testsuites" and root.get("name") == "ncclprobe"


def _suites(report: Report) -> "Iterator[TestSuite]":
    by_node: dict[str | None, list[Verdict]] = {node.name: [] for node in report.nodes}
    for verdict in report.checks:
        by_node.setdefault(verdict.node, []).append(verdict)
    warns = report.status is Status.WARN and report.exit_code != 0
    for node, verdicts in by_node.items():
        if verdicts:
            cases = (_check(verdict, warns) for verdict in verdicts if verdict.status is not Status.SKIP)
            name, idle = BETWEEN if node is None else node, sum(each.status is Status.SKIP for each in verdicts)
            counted = [("does not apply", str(idle))] if idle else []
            yield _suite(report, name, cases, hostname=node, properties=counted)
    if report.missing_nodes:
        cases = (_missing(node) for node in report.missing_nodes)
        yield _suite(report, "missing nodes", cases)


def _row_suites(report: Report) -> "Iterator[TestSuite]":
    """Yield one suite per operation."""
    by_op = grouped((row.op, row) for row in report.measurements)
    for op, rows in by_op.items():
        numbers = ((f"{row.nbytes}.{row.place}.{name}", number) for row in rows for name, number in _numbers(row))
        yield _suite(report, f"measured {op}", map(_row, rows), properties=numbers)


def _suite(
    report: Report,
    name: str,
    cases: "Iterable[TestCase]",
    *,
    hostname: str | None = None,
    properties: Iterable[tuple[str, str]] = (),
) -> "TestSuite":
    from junitparser import TestSuite

    suite = TestSuite(printable(name))
    suite.timestamp = printable(report.started)
    if hostname is not None:
        suite.hostname = printable(hostname)
    for key, value in properties:
        suite.add_property(key, value)
    suite.add_testcases(list(cases))
    return suite


def _case(name: str, group: str, time_s: float = 0.0) -> "TestCase":
    from junitparser import TestCase

    return TestCase(printable(name), f"ncclprobe.{printable(group)}", time_s)


def _check(verdict: Verdict, warns: bool) -> "TestCase":
    from junitparser import Error, Failure, Skipped

    case = _case(verdict.key, verdict.id.partition(".")[0])
    failed = verdict.status is Status.FAIL or (warns and verdict.status is Status.WARN)
    if failed:
        case.result = [_result(Failure, _line(verdict), verdict.status.value, _story(verdict))]
    elif verdict.status is Status.UNKNOWN and verdict.required:
        case.result = [_result(Error, f"could not be done: {verdict.why}", "unknown")]
    elif verdict.status is Status.UNKNOWN:
        case.result = [_result(Skipped, verdict.why, verdict.status.value)]
    elif verdict.findings:
        case.system_out = _story(verdict)
    return case


def _missing(node: str) -> "TestCase":
    from junitparser import Error

    case = _case(node, "nodes")
    case.result = [_result(Error, "this node did not report", "missing")]
    return case


def _row(row: Measurement) -> "TestCase":
    """Return a row's test case, its time in whole milliseconds: the schema allows no exponent; the properties are
    exact.
    """
    where = f"{size(row.nbytes)}, {row.place} place"
    case = _case(f"{row.op} {where}", f"bandwidth.{row.op}", round(row.time_us.typical / 1e6, 3))
    least = _least(row)
    said = f"bus bandwidth {row.busbw_GBps:.4g} GB/s{least}"
    case.result = _row_results(row.status, said, row.inconclusive_why)
    case.system_out = "\n".join(f"{name}={number}" for name, number in _numbers(row))
    return case


def _least(row: Measurement) -> str:
    if row.expectation is None:
        return ""
    if row.status == "unjudged":
        return f", {row.expectation.value:.4g} expected: {row.expectation.known}"
    return f", {row.expectation.least(row.busbw_GBps)}"


def _copy(row: CopyRow) -> "TestCase":
    to = f" {row.peer}" if row.peer else ""
    how = ", all at once" if row.concurrent else ""
    where = "" if row.numa is None else f", NUMA node {row.numa}"
    case = _case(f"{row.node} {row.device} {row.kind}{to}{where}{how}", f"copies.{row.kind}")
    least = "" if row.threshold_GBps is None else f", at least {row.threshold_GBps:.4g} expected"
    case.result = _row_results(row.status, f"{row.GBps:.4g} GB/s{least}", "")
    case.system_out = f"GBps={row.GBps:.6g}\nmin_GBps={row.min_GBps:.6g}\nmax_GBps={row.max_GBps:.6g}"
    return case


def _row_results(status: str, said: str, doubt: str) -> "list[FinalResult]":
    """Return the test result for a measured row's status; empty if it passed or only warns."""
    from junitparser import Error, Failure, Skipped

    if status == "fail":
        return [_result(Failure, said, status)]
    if status == "inconclusive":
        return [_result(Error, f"{doubt or 'too noisy to judge'}: {said}", status)]
    return [_result(Skipped, f"measured, and not judged: {said}", status)] if status == "unjudged" else []


def _numbers(row: Measurement) -> Iterator[tuple[str, str]]:
    """Yield the numbers of a row by name, which includes the unit."""
    times = row.time_us
    yield from (("busbw_GBps", f"{row.busbw_GBps:.6g}"), ("algbw_GBps", f"{row.algbw_GBps:.6g}"))
    yield "time_us", f"{times.mean:.6g}"
    if times.median is not None:
        yield "median_us", f"{times.median:.6g}"
    if row.wrong is not None:
        yield "wrong", str(row.wrong)
    if row.expectation:
        yield "expected_GBps", f"{row.expectation.value:.6g}"
        if row.status != "unjudged":
            yield "least_GBps", f"{row.expectation.mark(row.busbw_GBps):.6g}"


def _result(kind: "type[FinalResult]", message: str, word: str, story: str = "") -> "FinalResult":
    """Return a result with `message` on one line, as pages show it next to the test's name; `word` is its type."""
    line = printable(" ".join(message.split()))
    result = kind(line if len(line) <= _MOST_CHARACTERS else line[: _MOST_CHARACTERS - 1] + "…", word)
    if story:
        result.text = story
    return result


def _ranked_findings(verdict: Verdict) -> list[Finding]:
    """Return the findings, worst first, without notes if there is worse."""
    ranked = [Severity.FAIL, Severity.WARN, Severity.NOTE]
    return sorted(verdict.findings, key=lambda finding: ranked.index(finding.severity))


def _line(verdict: Verdict) -> str:
    found = _ranked_findings(verdict)
    if not found:
        return verdict.title
    more = f" (+{len(found) - 1} more)" if found[1:] else ""
    return f"{found[0].line}{more}"


def _story(verdict: Verdict) -> str:
    """Return every finding with its evidence and remedy, one line each."""
    lines = []
    for finding in _ranked_findings(verdict):
        lines.append(f"{finding.severity.value.upper()} {finding.line}")
        lines += [f"  nodes: {', '.join(finding.nodes)}"] if finding.nodes else []
        lines += [f"  seen: {finding.seen}"] if finding.evidence else []
        lines += [f"  see also: {finding.see_also}"] if finding.related else []
        lines += [f"  fix: {finding.remedy}"] if finding.remedy else []
        lines += [f"  {digest.blamed(finding)}"] if finding.severity is not Severity.NOTE else []
    lines += [f"more: ncclprobe explain {verdict.id}, {page(verdict.id)}"] if lines else []
    return "\n".join(map(printable, lines))
