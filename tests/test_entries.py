"""`ncclprobe explain ID` and `explain VARIABLE`: one screen each, in plain words, and nothing that a check denies."""

import re

import pytest

from ncclprobe.engine import diagnose
from ncclprobe.engine.explain_pages import COLUMNS, LINES, Difference, differences, entry, plain
from ncclprobe.facts.infiniband import Fabric, Port, RdmaDevice
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.facts.nvml import Gpu
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Severity, Status
from ncclprobe.model.registry import Check
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.values import Struct, replace
from ncclprobe.nccl.parameters import Parameter, meanings, table
from tests.each_row import each_row

CHECKS = sorted(diagnose.every_check(), key=lambda check: check.key)
every_check = pytest.mark.parametrize("check", CHECKS, ids=[check.key for check in CHECKS])
every_variable = pytest.mark.parametrize("variable", list(table().values()), ids=list(table()))
SENTENCE = re.compile(r"[A-Z].*[.]")


def fits(lines: list[str]) -> bool:
    """Whether a text fits a screen, but for words that are longer than a line."""
    return len(lines) <= LINES and all(len(line) <= COLUMNS or len(max(line.split(), key=len)) > 50 for line in lines)


@every_check
def test_a_check_is_explained_on_one_screen_by_two_examples_that_differ(check: Check) -> None:
    lines = entry(check.key)
    assert fits(lines), "\n".join(lines)
    above, _, examples = "\n".join(lines).partition("example that triggers it:")
    triggers, _, does_not = examples.partition("example that does not:")
    assert not [cls.__name__ for cls in Struct.__subclasses__() if re.search(rf"\b{cls.__name__}\(", examples)]
    assert triggers.partition("-> ")[0].strip() != does_not.partition("-> ")[0].strip()
    assert re.search("-> (FAIL|WARN|NOTE) ", triggers)
    assert re.search("-> (pass|NOTE )", does_not)
    assert "-> FAIL" not in does_not
    assert "-> WARN" not in does_not
    for heading in ("passes: ", "why: ", "fix: ", "looks at:", "standing:", "silenced:"):
        assert f"\n{heading}" in above


@every_variable
def test_a_variable_is_explained_on_one_screen_by_a_right_and_a_wrong_setting(variable: Parameter) -> None:
    lines = entry(variable.name)
    assert fits(lines), "\n".join(lines)
    above, *right, wrong = "\n".join(lines).split("\nexample:  ")
    assert all(f"\n{heading}" in above for heading in ("does:     ", "values:   ", "releases: ", "wrong:    "))
    assert len(right) == (1 if variable.is_read or variable.instead in meanings() else 0)
    assert not [text for text in right if "-> WARN" in text or "-> FAIL" in text]
    assert re.search("-> (WARN|FAIL|not a name) ?", wrong)
    assert wrong.partition("\n")[0] not in [text.partition("\n")[0] for text in right]
    name, _, _value = wrong.partition("\n")[0].partition("=")
    assert "not a name" not in wrong or name not in table()


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
        ("CUDA_VISIBLE_DEVICES", ["releases: since when is not known"]),
        ("NCCL_NET_GDR_C2C", ["releases: since 2.26.2", "values:   0 or 1"]),
        ("NCCL_MNNVL", ["releases: since 2.20.3, until 2.21.0, which ignores it", "instead:  NCCL_MNNVL_ENABLE"]),
        ("NCCL_TIMEOUT", ["read by:  nothing", "releases: none"]),
    ],
)
def test_values_releases_and_successors_of_a_variable_are_said(name: str, lines: list[str]) -> None:
    assert set(lines) <= set(entry(name))


def test_a_wrong_value_is_shown_with_what_its_check_says() -> None:
    text = "\n".join(entry("NCCL_IB_TIMEOUT"))
    assert "example:  NCCL_IB_TIMEOUT=22\n    -> nothing is said of it" in text
    assert "example:  NCCL_IB_TIMEOUT=32\n    -> FAIL env.value: is 32, outside 0..31" in text


def test_a_name_that_nothing_reads_shows_what_to_use_now() -> None:
    text = "\n".join(entry("NCCL_MNNVL"))
    assert "example:  NCCL_MNNVL_ENABLE=2" in text
    assert "env.name" in text


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
    assert entry("iface-missing") == entry("log.no-interface")
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
    with pytest.raises(UsageError, match="is no check or variable; did you mean ") as refusal:
        entry(wanted)
    assert near in str(refusal.value)


@each_row("wanted", ["", "*", "?\x1b", "zzzzzz", "_", "."])
def test_what_is_like_nothing_brings_no_suggestion(wanted: str) -> None:
    with pytest.raises(UsageError, match="`ncclprobe checks` lists the checks") as refusal:
        entry(wanted)
    assert "\x1b" not in str(refusal.value)


PORT = Port("mlx5_0", 1, "ACTIVE", "LinkUp", Absent("denied"))
DOWN = replace(PORT, state="DOWN")


@each_row(
    ("one", "other", "where", "here", "there"),
    [
        (
            Fabric((RdmaDevice("mlx5_0", (DOWN,)),)),
            Fabric((RdmaDevice("mlx5_0", (PORT,)),)),
            "mlx5_0:1 state",
            "DOWN",
            "ACTIVE",
        ),
        (Launch("torchrun", 0, 16), Launch("torchrun", 0, 8), "thing world size", "16", "8"),
        (Absent("denied"), Launch(), "thing", "not known (denied)", plain(Launch())),
        (Settings({"A": Setting("A", "1", "environment")}), Settings(), "A", "1", "none"),
        (Settings({"A": Setting("A", "1", "/etc/nccl.conf")}), Settings(), "A", "1 (from /etc/nccl.conf)", "none"),
        ((Gpu(3, mig=True),), (Gpu(3, mig=False),), "GPU3 mig", "yes", "no"),
        (Every({"a": Launch("torchrun")}), Every({"a": Launch("slurm")}), "a kind", "torchrun", "slurm"),
        (
            NvLinks(((NvLink(0, "active"),),)),
            NvLinks(((NvLink(0, "inactive"),),)),
            "no. 1 nvlink 0 state",
            "active",
            "inactive",
        ),
    ],
)
def test_what_differs_is_said_where_it_stands(one: object, other: object, where: str, here: str, there: str) -> None:
    assert differences(one, other, "thing")[0] == Difference(where, here, there)


@each_row(
    ("value", "text"),
    [
        (Absent("denied"), "not known (denied)"),
        (tuple(range(64)), "0 to 63"),
        ((1, 2, 5), "1, 2, 5"),
        (frozenset({"up", "running"}), "running, up"),
        ({"a": Severity.FAIL}, "a: FAIL"),
        (Status.PASS, "PASS"),
        ((), "none"),
        ("", "(empty)"),
        (0.25, "0.25"),
        ("x" * 80, "x" * 58 + " …"),
    ],
)
def test_values_are_shown_as_people_write_them(value: object, text: str) -> None:
    assert plain(value) == text


def test_of_long_texts_that_begin_alike_the_part_is_shown_in_which_they_differ() -> None:
    (found,) = differences("x" * 70 + " one", "x" * 70 + " two", "text")
    assert (found.here, found.there) == ("… " + "x" * 19 + " one", "… " + "x" * 19 + " two")


def test_equal_values_do_not_differ() -> None:
    assert differences(PORT, replace(PORT), "port") == []
