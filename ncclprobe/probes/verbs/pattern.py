"""The bytes to write, their places, and the check of what arrived: pure, and equal on both ends.

The region of each direction holds `slots` messages, and writes wrap around in it. It is first filled with the
complement
of the expected bytes, so that a byte that was not written differs from one that was written wrongly.
"""

import random

from ncclprobe.model.rails import RailArrival, RailDirection, RailTest

REGION_BYTES = 4 << 20
"""NCCL's buffer size per channel (NCCL_BUFFSIZE): its writes, like these, return to the same memory."""
_PERIOD = 65521
"""A prime: no two places a power of two apart hold the same bytes."""
_INVERTED = bytes(255 - byte for byte in range(256))


def slots(test: RailTest, queue_pairs: int) -> int:
    """Return how many messages the region holds; every one of them is written."""
    return max(1, min(test.messages, test.chain * queue_pairs, REGION_BYTES // test.message_bytes))


def tile(seed: int, by_leader: bool, nbytes: int) -> bytes:
    """Return what one end writes to a region of `nbytes`: the leading end, or the other."""
    block = random.Random(2 * seed + by_leader).randbytes(_PERIOD)
    return (block * (nbytes // _PERIOD + 1))[:nbytes]


def complement(data: bytes) -> bytes:
    """Return bytes that all differ from those of `data`."""
    return data.translate(_INVERTED)


def judge(direction: RailDirection, expected: bytes, found: bytes) -> RailArrival:
    """Judge what arrived in a region that was filled with the complement of `expected`."""
    if found == expected:
        return RailArrival(direction=direction, checked_bytes=len(found), arrived_bytes=len(found))
    numbers = (int.from_bytes(data, "little") for data in (expected, found))
    differing = (next(numbers) ^ next(numbers)).to_bytes(len(expected), "little")
    right, untouched = differing.count(0), differing.count(255)
    arrived, wrong = len(found) - untouched, len(found) - untouched - right
    at = len(differing) - len(differing.lstrip(b"\0\xff")) if wrong else 0
    return RailArrival(
        direction=direction,
        checked_bytes=len(found),
        arrived_bytes=arrived,
        wrong_bytes=wrong,
        offset=at,
        expected=expected[at] if wrong else 0,
        found=found[at] if wrong else 0,
    )
