"""Logs of jobs that went well have no cause; whose line it is; what is asked of the user. The rest is kept values."""

from pathlib import Path

import pytest

from ncclprobe.commands import explain
from ncclprobe.logs.job_log import LogEvent
from ncclprobe.logs.lines import layer_report
from ncclprobe.logs.reader import read
from tests.each_row import each_row
from tests.log import ends, healthy, others, reasons
from tests.log.whole import cases, explained

CASES = [case for module in (ends, healthy, reasons, others) for text in module.TEXTS for case in cases(text)]


def test_what_went_well_or_goes_on_has_no_cause(tmp_path: Path) -> None:
    wrong, demanded = {}, [case for case in CASES if case.demanded]
    for number, case in enumerate(demanded):
        (folder := tmp_path / str(number)).mkdir()
        report = explained(folder, case)
        ended = report["outcome"] == "ended-well" or case.demanded == "none"
        if not ended or [each for each in report["causes"] if each["severity"] != "note"]:
            wrong[case.name] = report["outcome"], report["causes"]
    assert wrong == {}
    assert len(demanded) >= 45


def test_no_two_cases_have_one_name() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 380


def test_who_may_know_that_the_job_failed_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.log").write_text("n1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n")
    assert explain.main([str(tmp_path / "train.log"), "--no-color"]) == 0
    assert "`--failed`" in capsys.readouterr().out


@each_row(
    ("text", "words"),
    [
        ("[1718000001.10] [g3:7122 :0]  ib_iface.c:9 UCX  ERROR ibv_create_cq failed", "UCX reports: ib_iface.c:9 UCX"),
        ("[ERROR] zeta: slot 3 not found", "zeta: slot 3"),
        (f"zeta begins {'x' * 200}: slot 3 is there: the table of slot 3 was not found", "slot 3 is there: the table"),
        (f"zeta begins {'x ' * 120}the table of slot 3 was not found", "… x"),
    ],
)
def test_a_line_is_quoted_from_its_own_words_on(text: str, words: str) -> None:
    assert layer_report(LogEvent(0, 1, text)).startswith(words)


@each_row(
    ("texts", "ranks"),
    [
        ({"a": "[rank0]: x", "b": "[rank1]: x", "c": "starts"}, [0, 1, 2]),
        ({"a": "[rank0]: x", "b": "[rank4]: x", "c": "starts"}, [0, 4]),
        ({"a": "[rank0]: x\n[rank1]: x", "b": "[rank2]: x", "c": "starts"}, [0, 1, 2]),
        ({"rank0.log": "x", "rank1.log": "x", "config.json": "{}"}, [0, 1]),
    ],
    ids=["of each rank one, the last is left over", "of two hosts", "of several ranks", "others have theirs by name"],
)
def test_a_log_that_names_no_rank_is_of_the_one_that_is_left_over(texts: dict[str, str], ranks: list[int]) -> None:
    log = read((name, [f"{text} failed\n".encode()]) for name, text in texts.items())
    assert list(log.ranks) == ranks


@each_row(
    ("text", "size", "rank"),
    [
        ("started, world size 4", 4, None), ("world_size=16 rank=3", 16, None), ("{'world_size': 8}", 8, None),
        ("Timed out after 9 seconds waiting for clients. 3/4 clients joined.", 4, None),
        ("world size unknown", None, None), ("world_size=2\nworld_size=8\nworld_size=8", 8, None),
        ("rank 3: step 7 failed", None, 3), ("Rank 3/8 | step 7 failed", None, 3),
        ("rank 3 failed to pass", None, None),
    ])  # fmt: skip
def test_the_size_of_a_job_and_the_writer_of_a_line_are_what_lines_say(
    text: str, size: int | None, rank: int | None
) -> None:
    log = read([("a", [text.encode()])])
    assert (log.world_size, [each.rank for each in log.events][-1:]) in ((size, [rank]), (size, []))
