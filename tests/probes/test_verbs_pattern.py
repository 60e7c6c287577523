"""What is written on a rail, and what is made of what came."""

from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.model.rails import RailTest
from ncclprobe.probes.verbs.pattern import REGION_BYTES, complement, judge, slots, tile
from tests.each_row import each_row


def test_a_byte_that_is_neither_is_wrong() -> None:
    data = tile(1, True, 1000)
    came = bytearray(data[:600] + complement(data)[600:])
    came[300] ^= 0x40
    found = judge("in", data, bytes(came))
    assert (found.arrived_bytes, found.wrong_bytes, found.offset) == (600, 1, 300)
    assert found.expected ^ found.found == 0x40


@given(st.binary(min_size=1, max_size=300), st.data())
def test_every_byte_is_counted_once_and_one_that_nothing_wrote_is_not_wrong(data: bytes, drawn: st.DataObject) -> None:
    other = st.binary(min_size=len(data), max_size=len(data))
    came = drawn.draw(st.sampled_from((data, complement(data))) | other)
    found = judge("out", data, came)
    assert (found.direction, found.checked_bytes) == ("out", len(data))
    untouched = sum(one ^ other == 255 for one, other in zip(data, came, strict=True))
    assert found.arrived_bytes == len(data) - untouched
    assert found.arrived_bytes - found.wrong_bytes == sum(one == other for one, other in zip(data, came, strict=True))


def test_both_ends_write_other_bytes_and_no_two_messages_the_same() -> None:
    mine, theirs = tile(7, True, REGION_BYTES), tile(7, False, REGION_BYTES)
    assert mine != theirs
    blocks = {mine[at : at + 4096] for at in range(0, REGION_BYTES, 4096)}
    assert len(blocks) == REGION_BYTES // 4096


@each_row("message_bytes", [8, 4096, 1 << 20, 64 << 20])
@each_row("pairs", [1, 3])
@each_row("messages", [1, 2, 5, 64, 1000])
def test_every_message_of_the_region_is_written(message_bytes: int, pairs: int, messages: int) -> None:
    """By the places in the chains, as the queues post them."""
    test = RailTest(message_bytes=message_bytes, messages=messages, chain=8)
    count = slots(test, pairs)
    written = {
        (place * pairs + index) % count
        for index in range(pairs)
        for place in range(min(8, len(range(index, messages, pairs))))
    }
    assert written == set(range(count))
    assert count * message_bytes <= max(REGION_BYTES, message_bytes)
