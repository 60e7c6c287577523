"""`ncclprobe explain ID` and `explain VARIABLE`: one screen each, in plain words, and nothing that a check denies."""

import re
from pathlib import Path

import pytest

from ncclprobe import page
from ncclprobe.commands import explain
from ncclprobe.engine import diagnose
from ncclprobe.engine.explain_pages import COLUMNS, entry
from ncclprobe.model.errors import UsageError
from ncclprobe.nccl.parameters import meanings, table
from tests.each_row import each_row

SENTENCE = re.compile(r"[A-Z].*[.]")
MOST_LINES = 40


def misfits(lines: list[str]) -> list[str]:
    """Return the lines that are too long for a screen, but for words that are longer than a line; all if too many."""
    long = [line for line in lines if len(line) > COLUMNS and len(max(line.split(), key=len)) <= 50]
    return lines if len(lines) > MOST_LINES else long


def test_every_check_is_explained_on_one_screen_with_what_it_finds_and_a_link() -> None:
    wrong, checks = {}, diagnose.every_check()
    for check in checks:
        lines = entry(check.key)
        above, _, example = "\n".join(lines).partition("\nexample of what it finds:\n")
        heads = [
            head for head in ("passes: ", "why: ", "fix: ", "importance:", "silenced:") if f"\n{head}" not in above
        ]
        found = re.search("^    (FAIL|WARN|NOTE) ", example)
        if misfits(lines) or heads or not found or lines[-1] != page(check.id):
            wrong[check.key] = misfits(lines) or heads or lines
    assert wrong == {}
    assert len(checks) > 150


def test_every_variable_is_explained_on_one_screen() -> None:
    wrong = {}
    for variable in table().values():
        lines = entry(variable.name)
        heads = [
            head for head in ("does: ", "values: ", "releases: ", "wrong: ") if f"\n{head}" not in "\n".join(lines)
        ]
        if misfits(lines) or heads:
            wrong[variable.name] = misfits(lines) or heads
    assert wrong == {}
    assert len(table()) > 500


def test_variables_that_their_maker_describes_are_described_in_a_sentence() -> None:
    assert sum(meaning.documented for meaning in meanings().values()) > 290
    assert meanings().keys() <= table().keys()
    assert all(SENTENCE.fullmatch(meaning.does) for meaning in meanings().values())
    assert all(meaning.example for meaning in meanings().values())


def test_a_variable_without_a_description_says_so() -> None:
    text = "\n".join(entry("NCCL_RMA_PLUGIN"))
    assert "does:     Not documented by NVIDIA; read by NCCL." in text
    assert "not in NVIDIA's documentation" in text


@each_row(
    ("name", "lines"),
    [
        ("NCCL_IB_TIMEOUT", ["values:   a whole number, 0 to 31", "ranks:    may differ between ranks"]),
        (
            "NCCL_DEBUG",
            ["values:   VERSION, WARN, INFO, ABORT, TRACE, in any case", "releases: since 2.3.5 or before"],
        ),
        ("NCCL_CROSS_NIC", ["values:   a whole number, 0 to 2"]),
        ("CUDA_VISIBLE_DEVICES", ["releases: since an unknown release"]),
        ("NCCL_NET_GDR_C2C", ["releases: since 2.26.2", "values:   0 or 1"]),
        ("NCCL_MNNVL", ["releases: since 2.20.3, until 2.21.0, which ignores it", "instead:  NCCL_MNNVL_ENABLE"]),
        ("NCCL_TIMEOUT", ["read by:  nothing", "releases: none"]),
    ],
)
def test_values_releases_and_successors_of_a_variable_are_said(name: str, lines: list[str]) -> None:
    assert set(lines) <= set(entry(name))


def test_a_name_that_nothing_reads_names_what_to_use_now() -> None:
    text = "\n".join(entry("NCCL_MNNVL"))
    assert "instead:  NCCL_MNNVL_ENABLE" in text
    assert "example:" not in text
    assert "example:  NCCL_IB_TIMEOUT=22" in "\n".join(entry("NCCL_IB_TIMEOUT"))


@each_row(
    ("wanted", "first", "last"),
    [
        ("ib", "ib.gdr", "checks; `ncclprobe explain NAME` explains one"),
        ("ib.", "ib.gdr", "checks; "),
        ("ib.*", "ib.gdr", "checks; "),
        ("NCCL_IB_", "NCCL_IB_ADAPTIVE_ROUTING", "variables; `ncclprobe explain NAME` explains one"),
        ("NCCL_IB", "NCCL_IB_ADAPTIVE_ROUTING", "variables; "),
        ("nccl_ib_*", "NCCL_IB_ADAPTIVE_ROUTING", "variables; "),
    ],
)
def test_a_prefix_lists_its_group_with_a_line_each(wanted: str, first: str, last: str) -> None:
    *rows, blank, count = entry(wanted)
    assert rows[0].split()[0] == first
    assert not blank
    assert last in count
    assert count.startswith(f"{len(rows)} ")
    assert all(len(row) <= COLUMNS and len(row.split()) > 2 for row in rows)


def test_a_cause_is_explained_by_the_check_that_names_it_and_several_are_listed() -> None:
    assert entry("iface-missing") == entry("log.interface/no-interface")
    assert len(entry("rank-crashed")) > 5
    assert entry("rank-crashed")[-1].endswith(" checks; `ncclprobe explain NAME` explains one")


def test_the_case_of_a_variable_does_not_matter() -> None:
    assert entry("nccl_ib_timeout") == entry("NCCL_IB_TIMEOUT")


@each_row(
    ("wanted", "near"),
    [
        ("env.bool-words", "env.value"),
        ("bool-word", "env.value"),
        ("state", "ib.state"),
        ("NCCL_IB_TIMEUOT", "NCCL_IB_TIMEOUT"),
        ("IB_TIMEOUT", "NCCL_IB_TIMEOUT"),
        ("NCCL_SOCKET_IFNAM", "NCCL_SOCKET_IFNAME"),
        ("nccl_buffsiz", "NCCL_BUFFSIZE"),
        ("MASTER_ADRESS", "MASTER_ADDR"),
    ],
)
def test_a_near_miss_suggests_checks_and_variables(wanted: str, near: str) -> None:
    with pytest.raises(UsageError, match="is not a known check or variable; did you mean ") as refusal:
        entry(wanted)
    assert near in str(refusal.value)


@each_row("wanted", ["", "*", "?\x1b", "zzzzzz", "_", "."])
def test_what_is_like_nothing_brings_no_suggestion(wanted: str) -> None:
    with pytest.raises(UsageError, match="`ncclprobe checks` lists the checks") as refusal:
        entry(wanted)
    assert "\x1b" not in str(refusal.value)


def test_the_address_that_is_printed_for_a_check_is_taken_by_explain(capsys: pytest.CaptureFixture[str]) -> None:
    for wanted in ("ib.state", "log.port", "env.value"):
        assert explain.main([page(wanted)]) == 0
        assert capsys.readouterr().out == "\n".join(entry(wanted)) + "\n"


def test_a_page_of_a_check_is_not_a_report_that_could_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--json: only the answer to files is written"):
        explain.main(["env.value", "--json", str(tmp_path / "x.json")])
