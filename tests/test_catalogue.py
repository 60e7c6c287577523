"""``ncclprobe checks`` and ``ncclprobe explain NAME``: nothing is left out, and nothing disagrees with the check."""

import json
import re

import pytest

from ncclprobe import page
from ncclprobe.commands import checks, explain
from ncclprobe.engine import diagnose
from ncclprobe.engine.explain_pages import COLUMNS, entry
from ncclprobe.model.errors import UsageError
from ncclprobe.model.registry import by_id, title_of
from ncclprobe.nccl.parameters import meanings, table
from tests.each_row import each_row

CHECKS = by_id(sorted(diagnose.every_check(), key=lambda check: check.key))
MOST_LINES = 40


def test_the_catalogue_has_a_line_for_every_check_below_its_group(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert checks.main([]) == 0
    *rows, _blank, last = capsys.readouterr().out.splitlines()
    listed = [row.split() for row in rows if row.startswith(" ")]
    assert [row[0] for row in listed] == [*CHECKS]
    assert [" ".join(row[1:]).removeprefix("* ") for row in listed] == [title_of(parts) for parts in CHECKS.values()]
    assert [row[1] == "*" for row in listed] == [any(check.required for check in parts) for parts in CHECKS.values()]
    groups = [row for row in rows if row and not row.startswith(" ")]
    assert [row.partition(":")[0] for row in groups] == sorted({name.partition(".")[0] for name in CHECKS})
    assert "ib: InfiniBand and RoCE" in "".join(groups)
    assert last.startswith(f"{len(CHECKS)} checks, * required")


@each_row(("groups", "prefixes"), [(["ib"], {"ib"}), (["ib", "gpu.*"], {"ib", "gpu"}), (["host.shm"], {"host"})])
def test_a_group_is_listed_alone(groups: list[str], prefixes: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert checks.main([*groups, "--json", "-"]) == 0
    listed = {row["id"] for row in json.loads(capsys.readouterr().out)["checks"]}
    assert {each.partition(".")[0] for each in listed} == prefixes
    assert listed == {"host.shm"} or listed >= {name for name in CHECKS if name.partition(".")[0] in prefixes}


def test_a_group_without_a_check_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'ibb' is not a known group of checks; did you mean ib\?"):
        checks.main(["ibb"])


def test_the_catalogue_as_json_says_what_a_check_needs(capsys: pytest.CaptureFixture[str]) -> None:
    checks.main(["--json", "-"])
    rows = {row["part"] or row["id"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    memlock = rows["memlock"]
    assert memlock["required"]
    assert memlock["facts"] == ["Memlock", "Fabric", "Process", "JobUser", "NamedMachine"]
    assert memlock["applies"].startswith("to jobs on GPUs")


def misfit(name: str, heads: tuple[str, ...]) -> list[str]:
    """Return the heads that an entry lacks, and its lines that no screen holds, but for long words; all if too many."""
    lines = entry(name)
    long = [line for line in lines if len(line) > COLUMNS and len(max(line.split(), key=len)) <= 50]
    missing = [head for head in heads if f"\n{head}" not in "\n".join(lines)]
    return missing + (lines if len(lines) > MOST_LINES else long)


def test_every_check_and_variable_is_explained_on_one_screen() -> None:
    of_checks = ("passes: ", "why: ", "fix: ", "importance:", "silenced:", "example of what it finds:")
    keys = [check.key for parts in CHECKS.values() for check in parts]
    assert {key: wrong for key in keys if (wrong := misfit(key, of_checks))} == {}
    assert [key for key in keys if entry(key)[-1] != page(key.partition("/")[0])] == []
    assert [key for key in keys if not re.search("(?m)^    (FAIL|WARN|NOTE) ", "\n".join(entry(key)))] == []
    of_variables = ("does: ", "values: ", "releases: ", "wrong: ")
    assert {each.name: wrong for each in table().values() if (wrong := misfit(each.name, of_variables))} == {}
    assert (len(keys) > 150, len(table()) > 500) == (True, True)


def test_variables_that_their_maker_describes_are_described_in_a_sentence() -> None:
    assert sum(meaning.documented for meaning in meanings().values()) > 290
    assert meanings().keys() <= table().keys()
    assert all(re.fullmatch(r"[A-Z].*[.]", meaning.does) and meaning.example for meaning in meanings().values())


@each_row(
    ("name", "lines"),
    [
        (
            "NCCL_IB_TIMEOUT",
            ["values:   a whole number, 0 to 31", "ranks:    may differ between ranks", "example:  NCCL_IB_TIMEOUT=22"],
        ),
        ("NCCL_DEBUG", ["values:   VERSION, WARN, INFO, ABORT, TRACE, in any case"]),
        ("NCCL_DEBUG", ["releases: since 2.3.5 or before"]),
        ("NCCL_CROSS_NIC", ["values:   a whole number, 0 to 2"]),
        ("CUDA_VISIBLE_DEVICES", ["releases: since an unknown release"]),
        ("NCCL_NET_GDR_C2C", ["releases: since 2.26.2", "values:   0 or 1"]),
        ("NCCL_MNNVL", ["releases: since 2.20.3, until 2.21.0, which ignores it", "instead:  NCCL_MNNVL_ENABLE"]),
        ("NCCL_TIMEOUT", ["read by:  nothing", "releases: none"]),
        ("NCCL_RMA_PLUGIN", ["does:     Not documented by NVIDIA; read by NCCL."]),
    ],
)
def test_what_is_said_of_a_variable(name: str, lines: list[str]) -> None:
    assert [line for line in lines if not any(each.startswith(line) for each in entry(name))] == []
    if name == "NCCL_MNNVL":  # it names what to use now
        assert "example:" not in "\n".join(entry(name))


@each_row(
    ("wanted", "first", "last"),
    [
        ("ib", "ib.gdr", "checks; `ncclprobe explain NAME` explains one"),
        ("ib.", "ib.gdr", "checks; "),
        ("ib.*", "ib.gdr", "checks; "),
        ("NCCL_IB_", "NCCL_IB_ADAPTIVE_ROUTING", "variables; `ncclprobe explain NAME` explains one"),
        ("NCCL_IB", "NCCL_IB_ADAPTIVE_ROUTING", "variables; "),
        ("nccl_ib_*", "NCCL_IB_ADAPTIVE_ROUTING", "variables; "),
        ("rank-crashed", "job.gone", "checks; "),  # a cause that several checks name
    ],
)
def test_a_prefix_lists_its_group_with_a_line_each(wanted: str, first: str, last: str) -> None:
    *rows, blank, count = entry(wanted)
    assert rows[0].split()[0].startswith(first)
    assert not blank
    assert last in count
    assert count.startswith(f"{len(rows)} ")
    assert all(len(row) <= COLUMNS and len(row.split()) > 2 for row in rows)


@each_row(
    ("wanted", "same"),
    [
        ("iface-missing", "log.interface/no-interface"),  # the cause that this check names
        ("stated", "log.unexplained"),  # a cause that no check knows
        ("nccl_ib_timeout", "NCCL_IB_TIMEOUT"),
        *((page(name), name) for name in ("ib.state", "log.port", "env.value")),
    ],
)
def test_other_names_of_an_entry_lead_to_it(wanted: str, same: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main([wanted]) == 0
    assert capsys.readouterr().out == "\n".join(entry(same)) + "\n"


def test_an_id_of_several_parts_is_explained_with_each() -> None:
    assert len(CHECKS["env.hca"]) >= 5
    assert all(f"{part.part}:" in "\n".join(entry("env.hca")) for part in CHECKS["env.hca"])
