"""The fault matrix: each fault once, and a healthy lab. `scripts/lab matrix --select GLOB` plays rows of it by hand."""

import pytest

from . import LabError, why_not
from .matrix import ROWS, Row, play

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "a lab can be made here")]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_the_fault_is_named_and_nothing_else(row: Row) -> None:
    """The second of two runs counts: other tests share this machine's processors. A bug of ours is one at the first."""
    try:
        odd = play(row)
        if odd and "a bug of ncclprobe" not in odd:
            odd = play(row)
    except LabError as error:
        pytest.skip(str(error))
    assert odd == ""
