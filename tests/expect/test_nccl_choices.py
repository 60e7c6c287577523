"""Transports, channels, algorithms and protocols: ours beside what ranks of NCCL 2.30.7 printed on 42 machines."""

from collections import Counter

import pytest

from expect.nccl_choices import MACHINES, Line, lines, recorded

OTHERWISE = {
    ("b200-4", "speed and path"): "NCCL finds chains of 50 GB/s, where our tree has the ring's 45",
    ("a100-4-pairs", "speed and path"): "our tree over AMD's sockets is faster than NCCL's",
    ("a100-4-pairs", "algorithm and protocol"): "and so it is taken from 128 MiB on",
}
"""Where ours differs, by machine and kind."""
NOT_KNOWN = {"pro6000-2", "pro6000-4", "pro6000-8"}
"""No speed of NCCL's list fits between AMD's sockets: it takes one channel, of 0.1 GB/s, and ours is not known."""


def said(line: Line) -> tuple[object, object]:
    return tuple(each if not isinstance(each, list) else tuple(each) for each in (line.theirs, line.ours))  # type: ignore[return-value]


def test_each_machine_was_played_to_its_end_with_each_of_its_settings() -> None:
    assert {row["machine"] for row in recorded()} == {*MACHINES}
    assert all({*row["exit_codes"]} == {0} for row in recorded())
    assert len(recorded()) == 126


def test_a_line_of_nccls_is_ours_too_but_for_what_is_named() -> None:
    differing = Counter(
        (line.machine, line.kind) for line in lines() if line.ours is not None and len({*said(line)}) > 1
    )
    assert differing == Counter(
        {
            ("b200-4", "speed and path"): 2,
            ("a100-4-pairs", "speed and path"): 2,
            ("a100-4-pairs", "algorithm and protocol"): 2,
        }
    )
    assert {*differing} == {*OTHERWISE}
    assert {line.machine for line in lines() if line.ours is None} == NOT_KNOWN


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("transport", 1300),
        ("channels", 138),
        ("speed and path", 138),
        ("algorithm and protocol", 2654),
        ("channels of a call", 2654),
    ],
)
def test_so_many_lines_of_a_kind_are_compared(kind: str, number: int) -> None:
    assert sum(line.kind == kind for line in lines()) == number
