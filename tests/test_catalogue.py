"""``ncclprobe checks`` and ``ncclprobe explain``: nothing is left out, and nothing disagrees with the check itself."""

import json

import pytest

from ncclprobe.commands import checks, explain
from ncclprobe.engine import diagnose
from ncclprobe.engine.explain_pages import entry
from ncclprobe.model.errors import UsageError
from ncclprobe.model.registry import by_id, title_of
from tests.each_row import each_row

CHECKS = by_id(sorted(diagnose.every_check(), key=lambda check: check.key))


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


def test_the_catalogue_fits_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    checks.main([])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


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


def test_a_check_and_a_variable_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for wanted in ("host.limits", "NCCL_IB_TIMEOUT"):
        assert explain.main([wanted]) == 0
        assert capsys.readouterr().out.splitlines() == entry(wanted)


def test_the_code_of_a_cause_that_no_check_knows_is_explained() -> None:
    assert entry("stated") == entry("log.unexplained")


def test_an_id_of_several_parts_is_explained_with_each_and_a_part_with_its_examples() -> None:
    parts = CHECKS["env.hca"]
    lines = "\n".join(entry("env.hca"))
    assert len(parts) >= 5
    assert all(f"{part.part}:" in lines for part in parts)
    assert "example of what it finds" in "\n".join(entry("env.hca/hca-down"))


def test_the_ids_that_are_not_of_logs_are_few() -> None:
    assert len([name for name in CHECKS if not name.startswith("log.")]) <= 130
