#!/usr/bin/env python3
"""What does the interpreter cost on a rail? Time to post a chain of RDMA writes and to see it complete.

    .venv/bin/python scripts/rail_cost.py [--write PATH]

Both ends are ports of the stand-in for the verbs library (tests/fake_verbs.c) in one process, whose writes complete
without copying, so that what is left is what this package does for a message, and what any library must do to take it:
the stand-in's own work of 64 requests is in the figures. Each is the median of many; what else runs hardly counts.
"""

import argparse
import asyncio
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ncclprobe.model.values import Struct

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import fake_verbs

from ncclprobe.model.rails import RailPort, RailTest
from ncclprobe.probes.verbs.library import Library
from ncclprobe.probes.verbs.port import Port
from ncclprobe.probes.verbs.stream import Stream
from ncclprobe.probes.verbs.traffic import Traffic

SIZES = (1, 8, 64)
"""Of chains, in messages."""
CHAINS = 3000
RATES_GBPS = (100, 200, 400, 800)
_INSIDE = "FAKE_VERBS_INSIDE"


class Cost(Struct, frozen=True):
    """Of one chain of `chain` writes, in µs: to see it complete and to post the next one."""

    chain: int
    turn_us: float

    @property
    def message_us(self) -> float:
        """Of one message."""
        return self.turn_us / self.chain


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print or write the section."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", type=Path, metavar="PATH", help="write it there, as Markdown")
    options = parser.parse_args(argv)
    if _INSIDE not in os.environ:
        _begin_again(argv)
    text = _written([_cost(chain) for chain in SIZES], _half_round_trip_us())
    if options.write:
        options.write.write_text(text)
    else:
        print(text)
    return 0


def _begin_again(argv: Sequence[str] | None) -> None:
    """Start this program where the stand-in is the verbs library: the loader looks at the variables only at a start."""
    folder = Path(tempfile.mkdtemp(prefix="rail-cost-"))
    devices = (fake_verbs.device("left", 1), fake_verbs.device("right", 2))
    settings = fake_verbs.environment(fake_verbs.build(folder), folder, *devices, faults="no_copy")
    words = sys.argv[1:] if argv is None else list(argv)
    os.execve(sys.executable, [sys.executable, __file__, *words], {**os.environ, **settings, _INSIDE: "1"})


def _connected(test: RailTest) -> tuple[Traffic, Traffic]:
    library = Library(_nothing)
    ports = [Port(library, RailPort(device=name, gid_index=3), test) for name in ("left", "right")]
    for port in ports:
        port.create()
    for port, other in zip(ports, reversed(ports), strict=True):
        port.connect(other.address())
    left, right = (Traffic(p, o.address(), _nothing, _never) for p, o in zip(ports, reversed(ports), strict=True))
    return left, right


def _nothing(call: str) -> None:
    """Stand for the shared memory that a child writes what it calls to."""


def _never() -> bool:
    return False


def _cost(chain: int) -> Cost:
    test = RailTest(message_bytes=4096, messages=CHAINS * chain, chain=chain)
    traffic, _ = _connected(test)
    stream = Stream(traffic, writes=True, reads=False)
    stream.run("out", 60.0)
    return Cost(chain, 1e6 * statistics.median(seconds / chains for seconds, chains in stream.turns))


def _half_round_trip_us() -> float:
    """Return the time of a small message between two processes, without a network, when neither waits to run."""
    ports = [RailPort(device=name, gid_index=3) for name in ("left", "right")]
    test = RailTest(round_trips=1000, directions=(), seconds=60)
    with fake_verbs.variables({"FAKE_VERBS_FAULTS": ""}):  # these are copied
        left, _ = asyncio.run(fake_verbs.both(ports[0], ports[1], test))
    return statistics.quantiles(left.half_round_trip_us, n=10)[0]


def _written(costs: Sequence[Cost], half_us: float) -> str:
    chained, title = costs[-1], (__doc__ or "").partition("\n\n")[0]
    about = (__doc__ or "").split("\n\n", 2)[2].strip()
    rows = [f"| {c.chain} | {c.turn_us:.1f} | {c.message_us:.3f} | {1 / c.message_us:.2f} |" for c in costs]
    limits = [f"| {rate:,} | {_limit_kib(rate, chained):.1f} | {_share(rate, chained):.2%} |" for rate in RATES_GBPS]
    return f"""# {title}

{about}

Made by `scripts/rail_cost.py --write reports/rails-engine.md` on {os.cpu_count()} processors, which
{os.getloadavg()[0]:.0f} processes wanted; Python {platform.python_version()}.

| messages in a chain | µs per chain | µs per message | million messages/s |
| ---: | ---: | ---: | ---: |
{chr(10).join(rows)}

In chains of 64, which is what a test posts, a message costs {chained.message_us:.3f} µs of processor time to post and
to account for, whatever its size and the rate of the rail: that much for each posted MiB where messages are of 1 MiB,
and {256 * chained.message_us:.0f} µs for each MiB of messages of 4 KiB. So the interpreter limits where the wire
carries a message in less:

| rail (Gb/s) | the interpreter limits messages below (KiB) | its share of the time at 1 MiB |
| ---: | ---: | ---: |
{chr(10).join(limits)}

Every stream tells it of itself: `work_s` is that time, and where it nears `seconds`, not the rail was measured.

A word goes from one process to the other in {half_us:.1f} µs (half a round trip, the fastest tenth of 900, in which
neither process had to wait for a processor). So much of every latency is the interpreter's and the library's: latencies
are compared among rails, not with a data sheet.
"""


def _limit_kib(rate_gbps: float, cost: Cost) -> float:
    """Return the size of a message that the wire carries in the time that it costs."""
    return cost.message_us * rate_gbps / 8 * 1e3 / 1024


def _share(rate_gbps: float, cost: Cost) -> float:
    return cost.message_us / ((1 << 20) / (rate_gbps / 8 * 1e3))


if __name__ == "__main__":
    sys.exit(main())
