"""Captures: what was recorded is what is replayed, and nothing else is taken for a capture."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe import __version__
from ncclprobe.host import Question, capture
from ncclprobe.host.capture import Recorder, Replay, dump, is_overlay, is_text, load, parse, received
from ncclprobe.model import bounds
from ncclprobe.model.errors import REFUSALS, Denied, HostError, Missing, NotCaptured, OutOfTime, UsageError
from tests.each_row import each_row

READ, HEADER = ("read", "/a"), {"capture": 1, "node": "n0"}
SAID = {"ask": READ, "said": "x"}
questions = st.lists(st.one_of(st.text(), st.integers(0, 99)), min_size=1, max_size=3).map(tuple)
refusals = st.sampled_from([kind for kind in REFUSALS.values() if kind is not NotCaptured])
answers_ = st.one_of(st.text(), st.builds(lambda kind, why: kind(why), refusals, st.text()))


def save(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@given(answers=st.dictionaries(questions, answers_, max_size=5))
def test_a_dumped_capture_replays_every_answer_and_refusal(answers: dict[Question, str | HostError]) -> None:
    replay = parse(dump(answers, "n0"), "a text")
    for question, answer in answers.items():
        if isinstance(answer, HostError):
            with pytest.raises(type(answer)) as caught:
                replay.ask(*question)
            assert str(caught.value) == str(answer)
        else:
            assert replay.ask(*question) == answer


def test_the_recorder_asks_each_question_once_and_keeps_refusals() -> None:
    asked: list[Question] = []

    class Counting:
        def ask(self, *question: str | int) -> str:
            asked.append(question)
            if question == READ:
                return "x"
            raise Missing("not there")

    recorder = Recorder(Counting())
    assert [recorder.ask(*READ), recorder.ask(*READ)] == ["x", "x"]
    for _ in range(2):
        with pytest.raises(Missing):
            recorder.ask("read", "/b")
    assert asked == list(recorder.answers) == [READ, ("read", "/b")]


def test_what_was_measured_is_a_row_of_its_own_and_what_nobody_measured_is_not_captured(tmp_path: Path) -> None:
    sample = ("sample", "paths")
    text = dump({sample: '{"rows": []}', READ: "text"}, "n0")
    assert json.loads(text.splitlines()[2]) == {"sample": {"paths": {"rows": []}}}
    assert parse(text, "a text").ask(*sample) == '{"rows": []}'
    with pytest.raises(NotCaptured, match="this run did not try it"):
        load(save(tmp_path / "c.jsonl", HEADER | {"tool": __version__}, SAID)).ask(*sample)
    assert len(dump({sample: NotCaptured("not measured")}, "n0").splitlines()) == 1


def test_the_rows_of_a_rank_answer_for_that_rank_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    text = dump({READ: "node's"}, "n0", ranks={0: {READ: "rank 0's"}, 4: {READ: Denied("no")}})
    replay = parse(text, "a text")
    assert (replay.ask(*READ), replay.ranks[0].ask(*READ), replay.ranks[0].node) == ("node's", "rank 0's", "n0 rank 0")
    with pytest.raises(Denied):
        replay.ranks[4].ask(*READ)
    monkeypatch.setattr(bounds, "CAPTURE_RANKS", 2)
    assert len(parse(text, "a text").ranks) == 2
    monkeypatch.setattr(bounds, "CAPTURE_RANKS", 1)
    with pytest.raises(UsageError, match="a text: has rows of more than 1 ranks"):
        parse(text, "a text")


@each_row(
    ("taken", "utc"),
    [
        ("2026-03-01T10:00:00Z", "2026-03-01T10:00:00+00:00"),
        ("2026-03-01T10:00:00+02:00", "2026-03-01T08:00:00+00:00"), ("2026-03-01T10:00", "2026-03-01T10:00:00+00:00"),
        ("yesterday", ""), (None, ""), (7, ""), ("0001-01-01T00:00:00+23:00", ""), ("9999-12-31T23:59:59-23:00", ""),
    ],
)  # fmt: skip
def test_when_a_capture_was_taken_is_in_utc_and_its_node_may_have_a_better_name(taken: object, utc: str) -> None:
    text = json.dumps(HEADER | {"taken": taken}) + "\n"
    assert (parse(text, "a text").taken, parse(text, "a text").node) == (utc, "n0")
    assert parse(text, "a text", "gpu-007").node == "gpu-007"
    assert parse('{"capture": 1}\n', "a text").node == "a text"


NOT_JSON = "truncated or not a capture: this line is not JSON"
NO_CAPTURE = 'c: not a capture: its first line lacks "capture": 1; take one with `ncclprobe capture`'
A_LOG = "c is not a capture; if it is a job's log, run `ncclprobe explain c`"
A_REPORT = "c is not a capture; if it is a report, run `ncclprobe report c`"
NO_ANSWER = "c:2: unknown row: neither an answer nor a refusal we know (keys: ask, {})"
NO_QUESTION, BAD_RANK = (
    "c:2: unknown row: no question in it (keys: {})",
    "c:2: the rank of this row is not a number from 0 up",
)
CHANGED = "c: {} rows, and its first line says {}: the file is incomplete or was changed; copy it again"
NOT_NEAR = "c:2: 'like' names a capture in the same folder or the one above, not {!r}"


@each_row(
    ("rows", "message"),
    [
        ([], "c: the file is empty; take a capture with `ncclprobe capture`"),
        *(([text], NO_CAPTURE) for text in ("{}", '{"schema": "ncclprobe.report/1"}')),
        *(([text], A_LOG) for text in ("not json", "[rank0]:[W1123 06:19:05] Using [1]", "[" * 100_000)),
        *(([text, "}"], A_REPORT) for text in ("{", " {")), ([" " + json.dumps(HEADER), "?"], f"c:2: {NOT_JSON}"),
        *(([text], f"c:1: {NOT_JSON}") for text in ('{"capture": 1, "no', '{"a": ' * 100_000)),
        ([HEADER, '{"ask": ["read"], "sa'], f"c:2: {NOT_JSON}"), ([HEADER, SAID, "?"], f"c:3: {NOT_JSON}"),
        ([HEADER, "[1, 2]"], "c:2: not a capture: this line is not a JSON object"),
        *(([HEADER | {"rows": of}, SAID], CHANGED.format(1, repr(of))) for of in (0, "1", None, 1.5)),
        ([HEADER | {"rows": 1}, SAID, SAID], CHANGED.format(2, 1)),
        *(([HEADER, {"ask": READ, "said": said}], NO_ANSWER.format("said")) for said in (7, None, ["x"])),
        *(([HEADER, {"ask": READ, "refused": kind}], NO_ANSWER.format("refused")) for kind in (
            "Eaten", "NotCaptured", ["Denied"])),
        *(([HEADER, SAID | {"rank": rank}], BAD_RANK) for rank in ("3", -1, True, 0.0)),
        *(([HEADER, {"ask": ask, "said": "x"}], NO_QUESTION.format("ask, said")) for ask in (
            "read", ["read", {}], [{}], [])),
        *(([HEADER, row], NO_QUESTION.format(keys)) for row, keys in (
            ({"novelty": 1}, "novelty"), ({"z": 1, "a": 2}, "a, z"), ({"k" * 99: 1}, "k" * 80), ({"é'": 1}, r"\xe9'"))),
        ([HEADER, {"like": "c"}], "c: its 'like' rows form a circle; remove one"),
        *(([HEADER, {"like": like}], f"{like}: cannot be read: No such file or directory") for like in ("absent", 7)),
        *(([HEADER, {"like": like}], NOT_NEAR.format(like)) for like in (
            "/etc/passwd", "../../x.jsonl", "a/b.jsonl", "..", ".", "", "../", "../.", "x\0.jsonl")),
        ([HEADER, SAID, {"like": "x/" + "y" * 99}], NOT_NEAR.format("x/" + "y" * 78).replace(":2:", ":3:")),
    ],
)  # fmt: skip
def test_whatever_is_no_whole_capture_is_refused_by_file_and_line(
    tmp_path: Path, rows: list[object], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load(save(tmp_path / "c", *rows))
    assert str(caught.value).replace(f"{tmp_path}/", "") == message


def test_a_capture_that_lacks_what_its_tool_asks_was_cut_if_the_tool_is_no_older_one(tmp_path: Path) -> None:
    later = f"{int(__version__.partition('.')[0]) + 1}.0"
    for tool, kind in (("0.0.1", NotCaptured), (__version__, OutOfTime), (later, OutOfTime), (None, OutOfTime)):
        with pytest.raises(kind, match="read /b"):
            load(save(tmp_path / "c.jsonl", HEADER | {"tool": tool}, SAID)).ask("read", "/b")
    with pytest.raises(NotCaptured, match="read /b"):
        Replay({READ: "x"}).ask("read", "/b")


@each_row("end", ["", '{"ask": ["read", "/b"], "sa', "[" * 100_000])
def test_a_capture_that_was_cut_is_read_as_far_as_it_goes(tmp_path: Path, end: str) -> None:
    path = save(tmp_path / "c.jsonl", HEADER | {"rows": 3}, SAID)
    path.write_text(path.read_text() + end)
    replay = load(path)
    assert (replay.ask(*READ), replay.cut) == ("x", "its capture was cut: 1 of 3 rows are left")
    with pytest.raises(OutOfTime, match="1 of 3 rows are left"):
        replay.ask("read", "/elsewhere")
    with pytest.raises(UsageError, match=r"from a node: truncated: .* copy it again"):
        parse(path.read_text(), "from a node")
    bare = save(tmp_path / "bare.jsonl", HEADER, SAID)  # its first line does not say how many rows it has
    bare.write_text(bare.read_text() + end)
    assert load(bare).cut == ("its capture was cut: 1 of 2 rows are left" if end else "")


def test_a_capture_like_another_takes_every_row_that_it_does_not_replace_and_is_like_few(tmp_path: Path) -> None:
    save(tmp_path / "0.jsonl", HEADER, SAID, {"ask": ["read", "/b"], "said": "2"})
    sick = save(tmp_path / "sick.jsonl", HEADER, {"like": "0.jsonl"}, {"ask": READ, "refused": "Denied"})
    assert load(sick).ask("read", "/b") == "2"
    with pytest.raises(Denied):
        load(sick).ask(*READ)
    for n in range(1, 10):  # each is read once
        save(tmp_path / f"{n}.jsonl", HEADER, *[{"like": f"{n - 1}.jsonl"}] * 8)
    assert load(tmp_path / "8.jsonl").ask(*READ) == "x"
    with pytest.raises(UsageError, match="more than 8 captures in a chain of 'like' rows"):
        load(tmp_path / "9.jsonl")
    with pytest.raises(UsageError, match="more than 8 'like' rows"):
        load(save(tmp_path / "many.jsonl", HEADER, *[{"like": "0.jsonl"}] * 9))
    (tmp_path / "below").mkdir()
    assert load(save(tmp_path / "below" / "c.jsonl", HEADER, {"like": "../0.jsonl"})).ask(*READ) == "x"
    assert (is_overlay(sick), is_overlay(tmp_path / "0.jsonl")) == (True, False)
    again = "c: a second capture of node n0; `ncclprobe compare OLD NEW` says what changed"
    assert str(capture.second("c", "n0")) == again
    above = save(tmp_path / "above.jsonl", HEADER, {"ask": READ, "said": "own"}, {"like": "0.jsonl"})
    assert (load(above).ask(*READ), load(above).ask("read", "/b")) == ("own", "2")
    assert not is_overlay(save(tmp_path / "text", "like"))
    assert not is_overlay(save(tmp_path / "odd.jsonl", HEADER, "{", "[]"))
    with pytest.raises(UsageError, match="the capture of n7:2: unknown row"):  # from elsewhere it is like none of ours
        received(sick, "n7")


def test_what_is_no_regular_file_of_text_is_no_capture(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, why in (("pipe", "not a regular file"), ("binary", "not UTF-8"), ("none", "cannot be read"),
                      (".", "cannot be read")):  # fmt: skip
        with pytest.raises(UsageError, match=why):
            load(tmp_path / name)
    for text, wanted in (("ibstat", True), ('{"capture": 1}', False), (' {"schema": "ncclprobe.report/1"}', False),
                         ('{"a": 1}', True), ("", True), ('see "capture": 1', True)):  # fmt: skip
        assert is_text(save(tmp_path / "t", text)) is wanted


def test_only_another_capture_is_overwritten(tmp_path: Path) -> None:
    path = save(tmp_path / "c.jsonl", HEADER, SAID)
    capture.save(path, dump({READ: "y"}, "n0"))
    assert (load(path).ask(*READ), path.stat().st_mode & 0o777) == ("y", 0o600)
    with pytest.raises(UsageError, match="not overwritten"):
        capture.save(save(tmp_path / "log", "rank 0: lost"), dump({}, "n0"))
