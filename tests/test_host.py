"""Captures: what was recorded is what is replayed, and nothing else is taken for a capture."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe import __version__
from ncclprobe.host import Question
from ncclprobe.host.capture import Recorder, Replay, dump, load, parse
from ncclprobe.model.errors import REFUSALS, Denied, HostError, Missing, NotCaptured, OutOfTime, UsageError
from tests.each_row import each_row

READ = ("read", "/a")


def save(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


HEADER = {"capture": 1, "node": "n0"}
questions = st.lists(st.one_of(st.text(), st.integers(0, 99)), min_size=1, max_size=3).map(tuple)
refusals = st.sampled_from([kind for kind in REFUSALS.values() if kind is not NotCaptured])
said = st.one_of(st.text(), st.builds(lambda kind, why: kind(why), refusals, st.text()))


@given(answers=st.dictionaries(questions, said, max_size=5))
def test_a_dumped_capture_replays_every_answer_and_refusal(
    answers: dict[Question, str | HostError], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("capture") / "c.jsonl"
    path.write_text(dump(answers, "n0"), encoding="utf-8")
    replay = load(path)
    for question, answer in answers.items():
        if isinstance(answer, HostError):
            with pytest.raises(type(answer)) as caught:
                replay.ask(*question)
            assert str(caught.value) == str(answer)
        else:
            assert replay.ask(*question) == answer


def test_a_question_the_capture_lacks_is_refused_as_such() -> None:
    with pytest.raises(NotCaptured, match="read /b"):
        Replay({READ: "x"}).ask("read", "/b")


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
    assert asked == [READ, ("read", "/b")]
    assert set(recorder.answers) == {READ, ("read", "/b")}


def test_a_capture_like_another_takes_every_row_that_it_does_not_replace(tmp_path: Path) -> None:
    save(tmp_path / "healthy.jsonl", HEADER, {"ask": READ, "said": "1"}, {"ask": ["read", "/b"], "said": "2"})
    sick = save(tmp_path / "sick.jsonl", HEADER, {"like": "healthy.jsonl"}, {"ask": READ, "refused": "Denied"})
    replay = load(sick)
    assert replay.ask("read", "/b") == "2"
    with pytest.raises(Denied):
        replay.ask(*READ)


def test_what_was_measured_is_a_row_of_its_own_and_an_answer(tmp_path: Path) -> None:
    measured: dict[Question, str | HostError] = {("sample", "paths"): '{"rows": []}', READ: "text"}
    path = tmp_path / "c.jsonl"
    path.write_text(dump(measured, "n0"))
    assert json.loads(path.read_text().splitlines()[2]) == {"sample": {"paths": {"rows": []}}}
    assert load(path).ask("sample", "paths") == '{"rows": []}'


def test_what_nobody_measured_is_not_captured_however_new_the_capture(tmp_path: Path) -> None:
    path = save(tmp_path / "c.jsonl", HEADER | {"tool": __version__}, {"ask": READ, "said": "text"})
    with pytest.raises(NotCaptured):
        load(path).ask("sample", "paths")
    path.write_text(dump({("sample", "paths"): NotCaptured("not measured")}, "n0"))
    assert len(path.read_text().splitlines()) == 1


def test_the_rows_of_a_rank_answer_for_that_rank_alone(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(dump({READ: "node's"}, "n0", ranks={3: {READ: "rank 3's"}, 4: {READ: Denied("no")}}))
    replay = load(path)
    assert replay.ask(*READ) == "node's"
    assert replay.ranks[3].ask(*READ) == "rank 3's"
    with pytest.raises(Denied):
        replay.ranks[4].ask(*READ)


def test_a_rank_is_a_number(tmp_path: Path) -> None:
    path = save(tmp_path / "c.jsonl", HEADER, {"ask": READ, "said": "x", "rank": "3"})
    with pytest.raises(UsageError, match=r"c\.jsonl:2: the rank"):
        load(path)


def test_the_job_may_know_a_node_by_a_better_name_than_its_own(tmp_path: Path) -> None:
    text = save(tmp_path / "c.jsonl", HEADER).read_text()
    assert (parse(text, "a text").node, parse(text, "a text", "gpu-007").node) == ("n0", "gpu-007")


def test_a_capture_from_elsewhere_is_like_no_file_of_ours() -> None:
    with pytest.raises(UsageError, match="a text:2: unknown row"):
        parse('{"capture": 1}\n{"like": "other.jsonl"}', "a text")


@each_row(
    ("rows", "message"),
    [
        ([], "empty"),
        (["{}"], 'lacks "capture": 1'),
        (['{"schema": "ncclprobe.report/1"}'], 'lacks "capture": 1'),
        (["not json"], "if it is a job's log, run `ncclprobe explain"),
        (["[rank0]:[W1123 06:19:05] Using [1]"], "if it is a job's log, run `ncclprobe explain"),
        (['{"capture": 1, "no'], ":1: truncated or not a capture"),
        ([HEADER, '{"ask": ["read"], "sa'], ":2: truncated or not a capture"),
        ([HEADER, "[1, 2]"], ":2: not a capture: this line is not a JSON object"),
        ([HEADER | {"rows": 0}, {"ask": READ, "said": "x"}], "1 rows, and its first line says 0"),
        ([HEADER, {"ask": [], "said": "x"}], ":2: unknown row: no question"),
        ([HEADER, {"ask": READ, "said": 7}], ":2: unknown row: neither"),
        ([HEADER, {"ask": READ, "refused": "Eaten"}], ":2: unknown row: neither"),
        ([HEADER, {"ask": READ, "refused": "NotCaptured"}], ":2: unknown row: neither"),
        ([HEADER, {"novelty": 1}], ":2: unknown row: no question in it (keys: novelty)"),
        ([HEADER, {"like": "c.jsonl"}], "form a circle"),
        ([HEADER, {"like": "absent.jsonl"}], "cannot be read: No such file"),
        (["[" * 100_000], "not a capture"),
        (['{"a": ' * 100_000], ":1: truncated or not a capture"),
    ],
)
def test_whatever_is_no_whole_capture_is_refused_by_file_and_line(
    tmp_path: Path, rows: list[object], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load(save(tmp_path / "c.jsonl", *rows))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_capture_that_lacks_what_its_tool_asks_was_cut(tmp_path: Path) -> None:
    for tool, kind in (("0.0.1", NotCaptured), (__version__, OutOfTime), (None, OutOfTime)):
        replay = load(save(tmp_path / "c.jsonl", HEADER | {"tool": tool}))
        with pytest.raises(kind):
            replay.ask(*READ)


@each_row("end", ["", '{"ask": ["read", "/b"], "sa'])
def test_a_capture_that_was_cut_is_read_as_far_as_it_goes(tmp_path: Path, end: str) -> None:
    path = save(tmp_path / "c.jsonl", HEADER | {"rows": 3}, {"ask": READ, "said": "x"})
    path.write_text(path.read_text() + end)
    replay = load(path)
    assert (replay.ask(*READ), replay.cut) == ("x", "its capture was cut: 1 of 3 rows are left")
    with pytest.raises(OutOfTime, match="1 of 3 rows are left"):
        replay.ask("read", "/elsewhere")
    with pytest.raises(UsageError, match="truncated"):
        parse(path.read_text(), "from a node")


def test_a_wide_family_of_likes_is_read_once_each(tmp_path: Path) -> None:
    save(tmp_path / "0.jsonl", HEADER, {"ask": READ, "said": "x"})
    for n in range(1, 8):
        save(tmp_path / f"{n}.jsonl", HEADER, *[{"like": f"{n - 1}.jsonl"}] * 8)
    assert load(tmp_path / "7.jsonl").ask(*READ) == "x"


def test_likes_are_few(tmp_path: Path) -> None:
    save(tmp_path / "0.jsonl", HEADER, {"ask": READ, "said": "x"})
    with pytest.raises(UsageError, match="more than 8 'like' rows"):
        load(save(tmp_path / "1.jsonl", HEADER, *[{"like": "0.jsonl"}] * 9))


@each_row("like", ["/etc/passwd", "../../x.jsonl", "a/b.jsonl", "..", "", "../", "x\0.jsonl", 7])
def test_a_capture_is_like_none_but_its_neighbours(tmp_path: Path, like: object) -> None:
    with pytest.raises(UsageError, match=r"'like' names a capture|cannot be read"):
        load(save(tmp_path / "c.jsonl", HEADER, {"like": like}))


def test_a_pipe_is_no_capture(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.jsonl")
    with pytest.raises(UsageError, match="not a regular file"):
        load(tmp_path / "c.jsonl")


@each_row("name", ["missing.jsonl", "."])
def test_an_unreadable_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path / name)


def test_binary_is_no_capture(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        load(tmp_path / "c.jsonl")
