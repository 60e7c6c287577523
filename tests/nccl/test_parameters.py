"""The shipped table, and names that resemble one in it."""

import re
from pathlib import Path

import pytest

from ncclprobe.facts.software import parse_version
from ncclprobe.nccl.parameters import Parameter, distance, nearest, table
from tests.each_row import each_row, some

ROOT = Path(__file__).parents[2]
TORCH_VARIABLES = ROOT / "tests" / "data" / "torch_variables.txt"
TYPES = {"bool", "int", "size", "enum", "list", "path", "string"}


def test_the_table_has_every_row_of_the_file_once_and_in_order_and_cannot_be_changed() -> None:
    lines = (ROOT / "ncclprobe/nccl/parameters.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert [line.partition(",")[0] for line in lines] == list(table()) == sorted(table())
    with pytest.raises(TypeError):
        table()["NCCL_DEBUG"] = None  # type: ignore[index]


@each_row("row", table().values(), ids=lambda row: row.name)
def test_every_row_makes_sense_and_its_default_is_in_its_range(row: Parameter) -> None:
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", row.name)
    assert (row.type in TYPES, row.scope in ("job", "rank", "")) == (True, True)
    assert row.owner
    assert row.source
    assert row.high is None or (row.low is not None and row.low < row.high)
    assert all(word == word.strip() != "" for word in row.words)
    assert not row.any_case or row.words or row.type in ("list", "string")
    assert row.instead == "" or table()[row.instead].is_read
    assert row.instead != row.name
    assert row.gone is None or row.since is None or row.since < row.gone
    number = re.match(r"(-?\d+)(?![\w.])", row.default)
    if row.low is not None and number:
        assert row.low <= int(number[1]) <= (row.high if row.high is not None else int(number[1]))
    if row.owner == "none":  # a name that never was bounds nothing, is not read, and resembles no other
        bounds = (row.low, row.high, row.words, row.since, row.gone, row.is_read)
        assert bounds == (None, None, (), None, None, False)
        assert nearest(row.name) is None


DISTANCES = {
    ("ab", "ab"): 0, ("abcd", "abdc"): 1, ("abcd", "badc"): 2, ("abc", "abcd"): 1, ("abcd", "acd"): 1, ("", "ab"): 2,
    ("abcd", "bcda"): 2, ("ca", "abc"): 3, ("kitten", "sitting"): 3, ("abcdef", "badcfe"): 3, ("aab", "baa"): 2,
}  # fmt: skip


def test_the_distance_counts_edits_and_swaps_of_neighbours_up_to_its_limit() -> None:
    for limit in range(5):
        assert {pair: distance(*pair, limit) for pair in DISTANCES} == {
            pair: min(steps, limit + 1) for pair, steps in DISTANCES.items()
        }


def test_the_table_has_each_variable_from_the_release_of_torch_that_reads_it() -> None:
    """``torch_variables.txt``: the names in the libraries of torch's CUDA wheels, as `strings` finds them."""
    rows = [row for row in table().values() if row.name.startswith(("TORCH_NCCL_", "TORCH_FR_")) and row.since]
    for line in some(TORCH_VARIABLES.read_text().splitlines()):
        release, *names = line.split()
        version = parse_version(release)
        read = {row.name for row in rows if (row.since or version) <= version < (row.gone or (99, 0, 0))}
        assert read == {*names}, release
