"""The log of a run: whatever was written can be read as far as it came, and no disk ends a run."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.host import SAMPLE
from ncclprobe.host.run_log import CUT_SHORT, FILE, RunLog, ends, is_run_log
from ncclprobe.model.errors import NotCaptured, UsageError
from tests.each_row import each_row

names = st.sampled_from(["row", "pair", "note", "lost", "é\n"])
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
samples = st.lists(st.tuples(names, values), max_size=8)


def of(log: RunLog, name: str) -> list[Any]:
    """The samples called `name`; none where the log has none."""
    try:
        found: list[Any] = json.loads(log.ask(SAMPLE, name))
    except NotCaptured:
        return []
    return found


def all_of(log: RunLog) -> dict[str, list[Any]]:
    return {name: of(log, name) for name in ("row", "pair", "note", "lost", "é\n")}


def written(path: Path, rows: list[tuple[str, Any]]) -> RunLog:
    path.unlink(missing_ok=True)
    log = RunLog(path)
    for name, value in rows:
        log.add(name, value)
    return log


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / FILE


@given(rows=samples, why=st.none() | st.text(max_size=20))
def test_what_is_written_is_read_back_in_its_order_with_its_end(
    path: Path, rows: list[tuple[str, Any]], why: str | None
) -> None:
    log = written(path, rows)
    if why is not None:
        log.close(why)
    again = RunLog.read(path)
    assert all_of(again) == all_of(log)
    assert (again.end, of(again, "end")) == (why, [CUT_SHORT if why is None else why])
    assert ends(path) is (why is not None)


@given(rows=samples, data=st.data())
def test_a_log_that_is_cut_at_any_byte_is_a_prefix_that_says_it_was_cut_short(
    path: Path, rows: list[tuple[str, Any]], data: st.DataObject
) -> None:
    written(path, rows).close()
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 2))  # the newline alone is no loss
    path.write_bytes(whole[:cut])
    again = RunLog.read(path)
    most = {name: [value for own, value in rows if own == name] for name in all_of(again)}
    for name, found in all_of(again).items():
        assert found == most[name][: len(found)]
    came = sum(map(len, all_of(again).values()))
    header = whole.index(b"\n") + 1
    assert came >= whole[:cut].count(b"\n") - (cut >= header)
    assert (again.end, of(again, "end")) == (None, [CUT_SHORT])


@given(rows=samples, more=samples, data=st.data())
def test_a_log_goes_on_after_its_last_whole_line(
    path: Path, rows: list[tuple[str, Any]], more: list[tuple[str, Any]], data: st.DataObject
) -> None:
    written(path, rows)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(whole.index(b"\n") + 1, len(whole)))])
    log = RunLog.resume(path)
    for name, value in more:
        log.add(name, value)
    log.close("ranks were lost")
    again = RunLog.read(path)
    assert all_of(again) == all_of(log)
    assert again.end == "ranks were lost"


@each_row("cut", [False, True])
def test_what_is_found_out_after_the_end_leaves_the_end_the_last_line(tmp_path: Path, cut: bool) -> None:
    written(tmp_path / FILE, [("note", 1)]).close("cut short")
    RunLog.resume(tmp_path / FILE).add("lost", {"rank": 1})
    if cut:  # killed in the middle of writing it
        (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:-9])
    again = RunLog.read(tmp_path / FILE)
    assert (of(again, "lost"), again.end) == ([{"rank": 1}], "cut short")
    assert ends(tmp_path / FILE) is not cut
    assert cut or list(json.loads((tmp_path / FILE).read_text().splitlines()[-1])) == ["end"]


@each_row(
    ("line", "says"),
    [
        ('{"answer": 1}', "unknown row: neither a sample nor the end of a run"), ('{"sample": 3}', "unknown row"),
        ('{"end": "x"}', "unknown row"), ('{"end": {"why": 3}}', "unknown row"),
        ("[1]", "truncated or not a run log"), ('{"sample": {"row"', "truncated or not a run log"),
        ("[" * 100_000, "truncated or not a run log"),
        ('{"sample": {"' + "x" * 50 + '": [NaN]}}', f"sample '{'x' * 40}' contains a number that is infinite or NaN"),
    ],
)  # fmt: skip
def test_a_row_that_is_none_is_refused_with_its_line(tmp_path: Path, line: str, says: str) -> None:
    written(tmp_path / FILE, [("note", "x")])
    with (tmp_path / FILE).open("a") as file:
        file.write(f'{line}\n{{"sample": {{"note": "y"}}}}\n')
    with pytest.raises(UsageError, match=rf"run\.jsonl:3: {says}"):
        RunLog.read(tmp_path / FILE)


def test_the_last_words_that_were_foreseen_are_the_end_of_a_log_without_one(tmp_path: Path) -> None:
    log = written(tmp_path / FILE, [("row", 1)])
    log.foresee("ended by SIGTERM")
    log.foresee("ended by SIGINT")
    assert of(log, "end") == of(RunLog.read(tmp_path / FILE), "end") == ["ended by SIGINT"]
    log.close()
    log.close("later")
    assert of(log, "end") == of(RunLog.read(tmp_path / FILE), "end") == [""]


def test_a_log_is_whole_in_its_file_as_it_comes_and_goes_on_after_a_line_without_its_newline(tmp_path: Path) -> None:
    log = written(tmp_path / FILE, [("note", "early"), ("note", "late")])
    with pytest.raises(ValueError, match="JSON"):
        log.add("note", float("nan"))  # a number that JSON does not have
    assert of(RunLog.read(tmp_path / FILE), "note") == of(log, "note") == ["early", "late"]
    assert is_run_log(tmp_path / FILE)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    (tmp_path / "half").write_text('{"capt')
    RunLog.resume(tmp_path / "half").close("x")
    assert (tmp_path / "half").read_text() == '{"end": {"why": "x"}}\n'
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:-1])
    RunLog.resume(tmp_path / FILE).add("note", 3)
    assert of(RunLog.read(tmp_path / FILE), "note") == ["early", "late", 3]
    for question in ((SAMPLE, "row"), ("read", "/etc/passwd"), ("env",)):
        with pytest.raises(NotCaptured):
            log.ask(*question)


def test_a_log_that_cannot_be_begun_is_refused_and_a_full_disk_loses_nothing_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        RunLog(tmp_path / "gone" / FILE)
    log = RunLog(tmp_path / FILE)
    with open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123
        monkeypatch.setattr(log, "_file", full.fileno())
        log.add("note", "x")
    assert log._file is None
    log.close()
    assert (of(log, "note"), log.end) == (["x"], "")


OTHERS = ["", "{", "hello", '{"capture": 1, "node": "n"}', '{"run": 2}', "[1]", "[" * 9999]


@each_row(("text", "marked"), [*((text, False) for text in OTHERS), ('{"run": 1}\n{"sample": {}}\n{"row": 1}', True)])
def test_another_file_is_no_run_log_and_is_not_overwritten(tmp_path: Path, text: str, marked: bool) -> None:
    for written in (f"{text}\n", text):
        (tmp_path / "x").write_text(written)
        assert is_run_log(tmp_path / "x") is marked
        assert not ends(tmp_path / "x")
        if text:
            with pytest.raises(UsageError, match="not overwritten"):
                RunLog(tmp_path / "x")
