"""The report at a terminal: what matters first, within its width, and nothing that steers it."""

from collections.abc import Callable

from ncclprobe.model.findings import Finding, Related, Status, fail, note, seen, warn
from ncclprobe.model.measurement import FirstCall
from ncclprobe.model.report import Report
from ncclprobe.model.values import replace
from ncclprobe.report import html as as_html
from ncclprobe.report import junit as as_junit
from ncclprobe.report import markdown as as_markdown
from ncclprobe.report import text as as_text
from tests.each_row import each_row

from .samples import HEALTHY, ROW, report, verdict


def with_findings(*findings: Finding, hostile: str = "") -> Report:
    blind = verdict(Status.UNKNOWN, id="c.d", why="permission denied" + hostile, required=True)
    return report(verdict(Status.FAIL, *findings, id="a.b"), blind)


def test_problems_come_first_and_the_verdict_last() -> None:
    made = with_findings(note("x", "by the way"), warn("y", "hm"), fail("z", "broken", remedy="mend it"))
    lines = as_text.render(made).splitlines()
    order = [line.split()[0] for line in lines if line.startswith(("FAIL", "WARN", "NOTE", "unknown"))]
    assert order[:5] == ["FAIL", "FAIL", "WARN", "unknown", "NOTE"]
    assert lines[2].split() == ["FAIL", "z:", "broken"]
    assert lines[-1].startswith("Not ready for NCCL jobs")
    assert lines[-1].endswith("(exit 4)")
    assert any("fix:   mend it" in line for line in lines)
    assert "unknown c.d (required)" in lines


def test_a_healthy_report_has_no_problem_in_it() -> None:
    text = as_text.render(HEALTHY)
    assert [word for word in ("FAIL", "WARN", "first calls") if word in text] == []
    assert text.splitlines()[-2:] == ["checks: 1 pass (-v names them)", "Ready for NCCL jobs on 1 node. (exit 0)"]


def test_hostile_text_cannot_steer_the_terminal() -> None:
    made = with_findings(fail("\x1b[2Jeth0", "is \x9b31m odd\r\n", evidence="\x00"), hostile="\x1b]0;x\x07")
    for text in (as_text.render(made), as_text.quiet(made)):
        assert not any(c in text for c in "\x1b\x9b\x00\x07\r")
        assert "\\x1b" in text


@each_row("width", [40, 80, 200])
def test_lines_fit_the_terminal_where_words_allow(width: int) -> None:
    made = with_findings(fail("eth0", "word " * 80, evidence="seen " * 40, remedy="fix " * 40))
    body = [line for line in as_text.render(made, width=width).splitlines() if line.startswith(" ")]
    assert max(len(line) for line in body if "https://" not in line) <= width  # an address is copied whole


@each_row("message", ["short", "long " * 40])
def test_the_quiet_line_is_whole_in_a_log_and_fits_a_terminal(message: str) -> None:
    line = as_text.quiet(with_findings(fail("eth0", message), warn("eth1", message)))
    assert line.startswith(f"FAIL a.b eth0: {message}")
    assert line.endswith(" (on n0, +1 more, exit 4)\n")
    short = as_text.shortened(line, 80)
    assert len(short.rstrip("\n")) <= 80
    assert short.endswith(" (on n0, +1 more, exit 4)\n")


def test_what_the_first_calls_cost_is_one_line() -> None:
    text = as_text.render(replace(HEALTHY, first_call=FirstCall(1.25, 3, 0.214, 0, 4e-6, 0.0213, 1)))
    costs = "process group 1.25 s, collective 214 ms (second call 4 us), pairs 21.3 ms (of the slowest rank)"
    assert f"first calls: {costs}" in " ".join(text.split())


def test_evidence_is_a_source_its_line_and_what_stands_there() -> None:
    finding = fail("NCCL_ALGO", "is odd", evidence=("NVML", "", seen("/etc/nccl.conf", "NCCL_ALGO=Ring", 3)))
    assert [(each.source, each.line, each.text) for each in finding.evidence] == [
        ("NVML", None, ""),
        ("/etc/nccl.conf", 3, "NCCL_ALGO=Ring"),
    ]
    assert finding.seen == "NVML; /etc/nccl.conf:3: NCCL_ALGO=Ring"


@each_row("render", [as_text.render, as_markdown.render, as_junit.render, as_html.render])
def test_every_format_for_people_names_the_related_findings(render: Callable[[Report], str]) -> None:
    finding = fail("all_reduce 64 MiB", "is slow", related=(Related("ib.mtu", "mlx5_3:1"),))
    assert "mlx5_3:1" in render(with_findings(finding))
    assert "mlx5_3:1" not in render(with_findings(replace(finding, related=())))


@each_row(
    ("advisory", "required", "verbose", "named", "not_named"),
    [
        (12, (), False, ["unknown a.b0, ", "a.b11", "-v names them"], []),
        (13, (), False, ["unknown 13 advisory checks"], ["a.b1"]),
        (13, (), True, ["a.b12"], ["-v names them"]),
        (2, ("d.e",), False, ["unknown d.e (required) and 2 advisory checks"], ["a.b1"]),
        (2, ("d.e",), True, ["unknown a.b0, a.b1"], []),
    ],
)
def test_what_one_reason_keeps_from_looking_is_named_up_to_twelve_and_all_of_it_with_v(
    advisory: int, required: tuple[str, ...], verbose: bool, named: list[str], not_named: list[str]
) -> None:
    some = [verdict(Status.UNKNOWN, id=f"a.b{n}", why="not root") for n in range(advisory)]
    must = [verdict(Status.UNKNOWN, id=each, why="not root", required=True) for each in required]
    made = report(*some, *must, verdict(Status.PASS, id="a.c"), status=Status.UNKNOWN)
    shown = " ".join(as_text.render(made, verbose=verbose, width=400).split())
    assert [words for words in named if words not in shown] == []
    assert [words for words in not_named if words in shown] == []


def test_a_verdict_has_its_colour_and_a_pass_that_nothing_judged_has_that_of_what_was_skipped() -> None:
    unjudged = replace(ROW, status="unjudged", expectation=None)
    for changes, colour in (({}, "pass"), ({"measurements": (unjudged,)}, "skip"), ({"status": Status.FAIL}, "fail")):
        made: Report = replace(HEALTHY, **changes)  # type: ignore[arg-type]
        shown = as_text.render(made, style=lambda text, status: f"<{status}>{text}")
        assert shown.rstrip().rpartition("<")[2].startswith(f"{colour}>")
