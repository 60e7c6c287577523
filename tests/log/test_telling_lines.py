"""The lines that most likely say why, by their form, their writer and what is unusual, none of them being known."""

import errno
import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.checks.log.known import harmless
from ncclprobe.logs import lines
from ncclprobe.logs import reader as log_reader
from ncclprobe.logs.job_log import LogEvent
from ncclprobe.logs.lines import WEIGHTS, has_own_reason, reason_of, says_only_of_others, telling_lines
from tests.log import healthy

FAILURES = Path(__file__).resolve().parents[1] / "data" / "failures"


def said(*texts: str | tuple[str, Mapping[str, Any]]) -> tuple[LogEvent, ...]:
    """The events of one log, which goes on after them; a text may come with fields of its event."""
    pairs = [(each, {}) if isinstance(each, str) else each for each in (*texts, *["frob is at work"] * 30)]
    return tuple(LogEvent(0, at, text, **fields) for at, (text, fields) in enumerate(pairs, 1))


RANK = {"level": "ERROR"}
BY_EVIDENCE: Mapping[str, tuple[int, tuple[LogEvent, ...]]] = {
    "fatal": (2, said("zeta: error: the widget of slot 3 was not written", "zeta: FATAL slot 3 was not written")),
    "error": (2, said("frob: the widget has failed", "frob: error: the widget has failed")),
    "warning": (2, said("frob: a widget timed out", "frob: WARN a widget timed out in slot 3")),
    "exception": (2, said("frob: the widget has failed in slot 4", "zeta.WidgetError: slot 4")),
    "wrapping exception": (2, said(("zeta.OuterError: slot 4", {"level": "OUTER"}),
                                   ("zeta.WidgetError: slot 4", {"level": "EXCEPTION"}))),
    "reason": (2, said("frob: error: failed to start", "frob: error: failed to start, widget not found")),
    "failure": (2, said("frob: error: slot 3", "frob: error: slot 3 has failed")),
    "errno": (2, said("frob: error: widget has failed", "frob: error: widget has failed: Stale file handle")),
    "exit": (2, said("frob: error: widget failed", "frob: error: widget failed, SIGBUS")),
    "exit code": (2, said("frob: error: a widget failed with exit code 4", "frob: error: a widget has failed")),
    "return chain": (2, said("the widget is here", ("widget.cc:12 -> 3", {"level": "INFO", "host": "n1", "pid": 7}))),
    "named": (2, said("frob: error: a widget has failed", "frob: error: a widget has failed at 10.0.0.7<43>")),
    "outside": (2, said("frob: a widget failed", ("Power key pressed short.", {"level": "INFO"}))),
    "heading": (2, said("frob: error: widget has failed:", "frob: error: slot 3 has failed")),
    "advice": (2, said("frob: error: make sure the widget has not failed", "frob: error: the widget has failed")),
    "goes on": (2, said("frob: error: widget has failed, retrying", "frob: error: widget has failed")),
    "source or stack": (2, said('    raise WidgetError("widget not found, failed")', "frob: the widget has failed")),
    "long": (2, said("frob: error: widget has failed " + "and so on " * 50, "frob: error: widget has failed")),
    "wraps": (2, said("srun: error: widget failed in slot 3", "nvidia-container-cli: error: no widget")),
    "launcher": (2, said("mpirun: widget failed in slot 3, SIGBUS", "frob: widget failed")),
    "hearsay": (2, said("frob: error: by peer, widget failed", "frob: error: widget failed")),
    "guess": (2, said("frob: error: widget may have failed", "frob: error: widget has failed")),
    "follows": (1, said("ucx_a.c:9 error: widget failed", "frob: ready", "ucx_b.c:9 error: widget failed at 10.0.0.7")),
    "common": (5, said(*["frob: WARN widget 1 failed"] * 4, "frob: WARN a widget failed")),
    "one rank": (4, said(*[("frob: widget failed", {"rank": rank, **RANK}) for rank in range(3)],
                         ("frob: slot failed", {"rank": 2, **RANK}))),
    "worked after": (2, said(("frob: error: widget failed", {"step": 3}), ("frob: error: slot failed", {"step": 9}))),
    "early": (1, said("frob: error: widget failed", "frob: error: slot failed"))}  # fmt: skip
"""For each piece of evidence: the line that says why, of those that it decides between."""
DECIDES_NO_FIRST = ("said before",)


def test_every_piece_of_evidence_has_lines_that_it_decides() -> None:
    assert {*BY_EVIDENCE, *DECIDES_NO_FIRST} == {*WEIGHTS}


def test_each_piece_of_evidence_puts_the_line_that_says_why_first_and_without_it_another_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {name: [event.line for event in telling_lines(events)][:1] for name, (_, events) in BY_EVIDENCE.items()}
    assert told == {name: [why] for name, (why, _) in BY_EVIDENCE.items()}
    needless = []
    for name, (why, events) in BY_EVIDENCE.items():
        monkeypatch.setattr(lines, "WEIGHTS", {**WEIGHTS, name: 0.0})
        if [event.line for event in telling_lines(events)][:1] == [why] and name != "early":
            needless.append(name)
    assert not needless


UNHEARD_OF = """\
zorp 3.1 ready
zorp: loading flux table
E zorp: flux table '/data/t7.flx': checksum mismatch
zorp: pump 3 has failed
zorpd: worker 4 exited with exit code 1
zorp: see the manual
"""


def kept(text: str) -> tuple[LogEvent, ...]:
    return log_reader.read([("a.log", [text.encode()])]).events


def test_a_program_that_nobody_has_heard_of_is_understood_by_its_forms() -> None:
    found = telling_lines(kept(UNHEARD_OF))
    assert "checksum mismatch" in found[0].text
    assert 1 <= len(found) <= lines.MOST_LINES


def test_lines_that_differ_in_digits_alone_are_one() -> None:
    found = telling_lines(said(*[f"frob: error: widget {number} failed" for number in range(2)], "frob: a slot failed"))
    assert [event.line for event in found] == [1, 3]


def test_a_line_that_speaks_of_no_trouble_is_never_shown() -> None:
    for text in ("step 7 loss 2.1", "saved the checkpoint", "INFO all is well", ""):
        assert telling_lines(said(text)) == ()
    assert telling_lines(()) == ()


def test_a_harmless_line_comes_last_and_never_by_itself() -> None:
    events = said("frob: error: known to mean nothing, not found", "frob: a widget failed")
    assert [e.line for e in telling_lines(events, lambda event: "known" in event.text)] == [2, 1]
    assert telling_lines(events[:1], lambda _: True) == ()
    late, soon = (
        LogEvent(0, 1, "frob: error: a failed", time_s=9.0),
        LogEvent(1, 1, "frob: error: b failed", time_s=5.0),
    )
    assert [each.stream for each in telling_lines((late, soon))] == [1, 0]  # of two logs, what was said first


def test_healthy_logs_have_no_telling_line() -> None:
    logs = [text for version in healthy.VERSIONS for text in healthy.job(version).values()]
    assert len(logs) > 15
    assert [found for text in logs if (found := telling_lines(kept(text), harmless))] == []


def test_of_recorded_failures_the_line_of_the_cause_is_among_those_shown() -> None:
    """Of those whose log has an exception that is of no other rank, the one that the rank raised."""
    missed, seen = [], 0
    for case in sorted(FAILURES.glob("crash-*/case.json")):
        logs = [(path.name, [gzip.decompress(path.read_bytes())]) for path in sorted(case.parent.glob("*.log.gz"))]
        events = log_reader.read(logs).events
        if not any("loss is not a number" in event.text for event in events):
            continue
        seen += 1
        ranks = json.loads(case.read_text())["ranks"]
        found = telling_lines(events, harmless)
        if not any("loss is not a number" in each.text and each.rank in (None, *ranks) for each in found):
            missed.append((case.parent.name, [each.text for each in found]))
    assert not missed
    assert seen >= 3


REASONS = (
    "denied", "not found", "no such", "refused", "unreachable", "no route", "not supported", "unsupported", "mismatch",
    "invalid", "illegal", "insufficient", "not enough", "exceeds", "exceeded", "out of", "no space", "no available",
    "no GPU of them eligible", "no port found", "no x configured", "no x detected", "no x provided", "no x methods",
    "corrupt", "corrupted", "corruption", "unauthorized", "forbidden", "expired", "in use", "in use by", "busy",
    "too small", "too large", "too many", "too few", "too long", "too old", "too new", "too low", "too high",
    "undefined symbol", "unrecognised", "unrecognized", "unknown", "duplicate", "incompatible", "missing", "preempted",
    "preemption", "reclaimed", "fallen off", "not accessible", "not allowed", "not available", "not built",
    "not compiled", "not detected", "not enumerated", "not implemented", "not installed", "not loaded", "not mounted",
    "not permitted", "not ready", "not responding", "not set", "not writable", "not valid", "not a valid", "bus error",
    "segmentation fault", "segmentation violation", "assert", "assertion", "does not", "doesn't", "do not match",
    "empty list", "neither", "could not find", "couldn't resolve", "can't open", "cannot read", "can not load",
    "unable to insert", "cannot allocate", "cannot bind", "cannot determine", "could not select", "couldn't mount",
    "can't parse", "cannot access", "can not contact", "unable to access", "differ", "differs", "no data available",
    "unavailable", "temporarily unavailable", "uncorrectable", "lost", "empty", "overflow", "nan", "must be",
    "must have", "must match", "expected", "limit", "limits", "limited", "is too", "killed", "interruption",
    "cancelled", "quota", "wrong", "divisible", "hardware error", "hardware exception", "hardware fault",
    "check failed", "misconfigured", "is required", "are required", "unexpected nan", "unexpected result",
    "unexpected keyword", "unexpected value", "unexpected types", "unexpected tokens", "bad address", "has only",
    "have only", "more ranks than", "more free ranks than", "less than", "fewer than", "greater than", "larger than",
    "smaller than", "lower than", "higher than", "exhausted", "no active", "is full", "not yet initialised",
    "not yet initialized", "cannot be parsed", "cannot be read", "cannot be opened", "cannot be loaded",
    "cannot be found", "cannot be resolved", "cannot be used", "cannot be mounted", "cannot be created",
    *map(os.strerror, (errno.EIO, errno.ETIMEDOUT, errno.ESTALE)))  # fmt: skip
NO_REASONS = (
    "out of 3", "unknown: ", "bad alloc", "action required", "required by x", "unexpected", "founded", "limitx",
)  # fmt: skip
OF_OTHERS = (
    "connect", "connected", "disconnected", "connection", "peer", "peers", "socket", "timed out", "timeout", "time-out",
    "deadline_exceeded", "heartbeat", "heartbeats", "other rank", "other ranks", "another rank", "remote", "worker",
    "workers", "child", "children", "subprocess", "subprocesses", "exited", "exitcode", "exit code", "exit status",
    "nonzero", "non-zero", "return code", "terminated", "died", "dead", "crashed", "shutdown", "shut down", "closed",
    "interrupt", "interrupted", "cancel", "canceled", "abort", "aborted", "see above", "root cause", "previous error",
    "ncclResult", "rcclComm", "hcclProxyThread", "nccl error", "ncclComm failure", "gloo", "rendezvous", "barrier",
    "collective", "collectives", "signal")  # fmt: skip
LESS = {
    "advice": ("to enable", "for more info", "for more details", "for more information", "please try", "please see",
               "please check", "please refer", "please make sure", "make sure", "to find out", "see the", "see http",
               "see https", "for debugging", "compile with", "this usually is caused by", "you can also",
               "consider setting", "consider passing", "consider decorating", "consider using", "to avoid",
               "could be caused by", "might be asynchronously", "if you", "if your", "if this", "if the",
               "usually means", "most likely caused by", "run with", "to troubleshoot"),
    "goes on": (
        "retry", "retrying", "falling back", "fallback", "ignored", "ignoring", "instead", "using internal",
        "won't affect", "deprecated", "UserWarning", "continuing", "still trying", "set by environment", "closing",
        "setting NCCL_ALGO environment", "will use", "default to", "defaulting to", "may not be optimal", "optional"),
    "guess": (
        "can lead", "can cause", "might", "may", "could be", "could be caused", "possible", "possibly", "probably",
        "likely", "perhaps"),
    "exit code": (
        "exit code", "exited with exit code", "exits with status", "exitcode", "return code", "non-zero status"),
    "hearsay": (
        "remote process", "by peer", "by remote peer", "another rank", "other rank", "other ranks", "some rank",
        "some ranks", "Connection reset", "closed by", "broken pipe", "SIGTERM", "SIGQUIT", "sigquit", "heartbeat",
        "received a signal", "heartbeats", "no such process", "unhandled system", "unhandled cuda", "internal error",
        "got 0 bytes", "flight recorder", "subsequent", "data inconsistency", "dump signal", "timed out waiting",
        "timed out while wait", "timeout waiting", "wait timeout", "child", "subprocess", "MPI_ERRORS_ARE_FATAL",
        "connection closed", "see above", "failures above", "errors above", "root cause", "most likely", "see inner",
        "possible reasons", "potential root causes", "reported by", "library call failed", "exception was",
        "exception ignored", "exception in", "operations have failed", "entire process down", "could happen because",
        "can happen because", "may be due to", "might be caused by")}  # fmt: skip
MORE = (
    "fail", "failed", "fails", "failure", "failures", "failing", "abort", "aborted", "aborting", "crash", "crashed",
    "crashes", "timed out", "timeout", "time-out", "exception", "died", "dead", "terminated", "unexpected",
    "unexpectedly", "stuck", "hang", "fault", "broken", "skipping", "unhandled", "skipped", "disabled", "could not go",
    "couldn't go", "can't go", "cannot go", "can not go", "unable to go", "deadline exceeded", "deadline_exceeded",
    "failed: none could be loaded", "failed, 3 could be read", "failed: could only go", "signal 9", "signals 11",
    "SIGBUS", "SIGABRT", "core dumped", "x -> 3", *REASONS)  # fmt: skip


def test_words_of_a_reason_are_found_and_those_of_others_are_told_apart() -> None:
    assert [text for text in REASONS if reason_of(f"x {text}, y").lower() != text.lower()] == []
    assert [text for text in NO_REASONS if reason_of(f"the {text}")] == []
    assert [text for text in OF_OTHERS if not says_only_of_others(f"the {text}")] == []
    assert [text for text in OF_OTHERS if has_own_reason(f"{text} invalid")] == []
    assert [text for text in ("the widget", "peer invalid") if says_only_of_others(text)] == []
    assert [text for text in LESS["hearsay"] if has_own_reason(f"{text}, invalid")] == []
    theirs = (errno.ECONNREFUSED, errno.ETIMEDOUT, errno.ENOTCONN, errno.EINTR)
    assert [number for number in theirs if has_own_reason(f"socket 3: {os.strerror(number)}")] == []
    rows = {f"socket 3: {os.strerror(errno.ENOSPC)}": True, "socket 3: invalid": False}
    assert {text: has_own_reason(text) for text in rows} == rows


def test_each_word_makes_its_line_more_or_less_likely_to_say_why() -> None:
    plain = "frob: error: zeta"
    less = [f"{name}: {text}" for name, texts in LESS.items() for text in texts
            if [each.line for each in telling_lines(said(f"frob: error: {text}", plain))][:1] != [2]]  # fmt: skip
    more = [text for text in MORE
            if [each.line for each in telling_lines(said(plain, f"frob: error: {text}"))][:1] != [2]]  # fmt: skip
    assert (less, more) == ([], [])
