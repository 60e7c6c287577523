"""Lists of host names: what Slurm writes comes out one by one, and goes back on one line."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.model.bounds import HOST_NAMES
from ncclprobe.model.hostlist import expand, fold

NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9.-]{0,8}[0-9]{0,4}", fullmatch=True), max_size=20)


@given(NAMES)
def test_what_was_folded_is_read_as_the_same_names_by_expand_and_by_clustershell(names: list[str]) -> None:
    assert sorted(expand(fold(names))) == sorted(set(names))
    nodeset = pytest.importorskip("ClusterShell.NodeSet", reason="ClusterShell is not installed (extra `test`)")
    assert set(nodeset.NodeSet(fold(names), resolver=nodeset.RESOLVER_NOGROUP)) == set(names)


@given(st.text(alphabet="n0123[]-,", max_size=30))
def test_any_text_is_a_list_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert len(expand(text)) <= HOST_NAMES
