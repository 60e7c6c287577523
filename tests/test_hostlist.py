"""Lists of host names: what Slurm writes comes out one by one, and goes back on one line."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.model.bounds import HOST_NAMES
from ncclprobe.model.hostlist import expand, fold
from tests.each_row import each_row

NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9.-]{0,8}[0-9]{0,4}", fullmatch=True), max_size=20)


@each_row(
    ("text", "names"),
    [
        ("", ()), ("gpu1", ("gpu1",)), ("n[3],n1", ("n3", "n1")), ("n[8-11]", ("n8", "n9", "n10", "n11")),
        ("gpu[007-010,20],cpu1", ("gpu007", "gpu008", "gpu009", "gpu010", "gpu20", "cpu1")),
        ("rack[1-2]n[0-1]", ("rack1n0", "rack1n1", "rack2n0", "rack2n1")),
        ("a-b[1-2]-ib,c", ("a-b1-ib", "a-b2-ib", "c")),
    ],
)  # fmt: skip
def test_a_list_is_expanded_in_its_own_order(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@each_row("text", ["gpu[", "gpu[1-2", "[]", "n[]", ",gpu1", "gpu1,", "n[2-1]", "n[a-b]", "a,,b", "a b"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        expand(text)


def test_as_many_names_as_allowed_and_not_one_more() -> None:
    assert len(expand(f"n[0-{HOST_NAMES - 1}]")) == HOST_NAMES
    for text in (f"n[0-{HOST_NAMES - 1}],m", "n[0-999]r[0-999]", "n[" + ",".join(["0-60000"] * 50_000) + "]"):
        with pytest.raises(ValueError, match="more than"):
            expand(text)


@each_row(
    ("names", "text"),
    [
        ([], ""), (["n3", "n1", "n0", "n2", "n7"], "n[0-3,7]"), (["n08", "n09", "n10"], "n[08-10]"),
        (["n5", "n5"], "n5"), (["login", "n1"], "login,n1"),
    ],
)  # fmt: skip
def test_names_are_folded(names: list[str], text: str) -> None:
    assert fold(names) == text


@given(NAMES)
def test_what_was_folded_is_read_as_the_same_names_by_expand_and_by_clustershell(names: list[str]) -> None:
    assert sorted(expand(fold(names))) == sorted(set(names))
    nodeset = pytest.importorskip("ClusterShell.NodeSet", reason="ClusterShell is not installed (extra `test`)")
    assert set(nodeset.NodeSet(fold(names), resolver=nodeset.RESOLVER_NOGROUP)) == set(names)


@given(st.text(alphabet="n0123[]-,", max_size=30))
def test_any_text_is_a_list_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert len(expand(text)) <= HOST_NAMES
