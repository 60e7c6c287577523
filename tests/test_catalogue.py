"""``ncclprobe checks`` and ``ncclprobe explain NAME``: nothing is left out, and nothing disagrees with the check."""

import re

import pytest

from ncclprobe import page
from ncclprobe.commands import checks
from ncclprobe.engine import diagnose
from ncclprobe.engine.explain_pages import COLUMNS, entry
from ncclprobe.model.registry import by_id, title_of
from ncclprobe.nccl.parameters import meanings, table

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


def misfit(name: str, heads: tuple[str, ...]) -> list[str]:
    """Return the heads that an entry lacks, and its lines that no screen holds, but for long words; all if too many."""
    lines = entry(name)
    long = [line for line in lines if len(line) > COLUMNS and len(max(line.split(), key=len)) <= 50]
    missing = [head for head in heads if f"\n{head}" not in "\n".join(lines)]
    return missing + (lines if len(lines) > MOST_LINES else long)


@pytest.mark.slow
@pytest.mark.every_time
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


PAGES = (
    "NCCL_IB_TIMEOUT", "NCCL_DEBUG", "NCCL_CROSS_NIC", "CUDA_VISIBLE_DEVICES", "NCCL_NET_GDR_C2C", "NCCL_MNNVL",
    "NCCL_TIMEOUT", "NCCL_RMA_PLUGIN", "nccl_ib_timeout", "ib", "ib.", "ib.*", "NCCL_IB_", "NCCL_IB", "nccl_ib_*",
    "rank-crashed",  # a cause that several checks name
    "iface-missing", "log.interface/no-interface",  # the cause that this check names
    "stated", "log.unexplained",  # a cause that no check knows
    *(page(name) for name in ("ib.state", "log.port", "env.value")), "env.hca",
    "run.bandwidth", "IB.STATE", "env.hca/hca-dup", "pasted-nothing-like-it", "x",
)  # fmt: skip
"""What is explained of each, and listed of some groups, is in tests/data/command_values/entries.txt."""
