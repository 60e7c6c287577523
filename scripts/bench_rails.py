#!/usr/bin/env python3
"""Bandwidth of a rail beside `ib_write_bw` on the same two ports, alternating: the ratio with its 95 % interval.

    NCCLPROBE_TOKEN=… scripts/bench_rails.py mlx5_0 --gid-index 3 [--listen]     on the one host
    NCCLPROBE_TOKEN=… scripts/bench_rails.py mlx5_0 --gid-index 3 --call HOST    on the other, which writes and judges

Needs perftest on both. Each round sends the same messages by both, one way, with 128 in flight and at the path MTU that
each finds by itself; who goes first changes from round to round. A ratio of 0.95 to 1.05 at 1 MiB and more is what
hardware should show.
"""

import argparse
import asyncio
import contextlib
import hashlib
import os
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ncclprobe.model.rails import RailPort, RailTest
from ncclprobe.model.stats import median_interval
from ncclprobe.model.units import parse_size
from ncclprobe.probes.verbs.pair import run_rail
from ncclprobe.wire import Wire, WireError, accept, connect

WAYS = ("ours", "ib_write_bw")
PATIENCE_S, GREETING_S, RUN_S = 120.0, 600.0, 3600.0
TRIES_S = 30.0
"""Until ib_write_bw on the other host listens."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device")
    parser.add_argument("--gid-index", type=int, default=0)
    parser.add_argument("--ib-port", type=int, default=1)
    parser.add_argument("--port", type=int, default=18514, help="of TCP; the next one is ib_write_bw's")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--listen", action="store_true", help="wait for the other host (the default)")
    ends.add_argument("--call", metavar="HOST")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sizes", default="64K,1M,4M,16M", help="of messages, in binary units")
    parser.add_argument("--volume", default="4G", help="sent in a turn, 8 messages at least")
    options = parser.parse_args()
    key = hashlib.sha256(os.environ["NCCLPROBE_TOKEN"].encode()).digest()
    end = End(options)
    asyncio.run(end.lead(key) if options.call else end.follow(key))


class End:
    """One of the two hosts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._port = RailPort(device=options.device, port=options.ib_port, gid_index=options.gid_index, timeout=14)

    async def lead(self, key: bytes) -> None:
        """Ask for turn after turn, and print the ratio of each size as it is known."""
        options = self._options
        late = time.monotonic() + RUN_S
        wire = await self._met(key)
        for size in map(parse_size, options.sizes.split(",")):
            seen: dict[str, list[float]] = {way: [] for way in WAYS}
            count = max(8, parse_size(options.volume) // size)
            for number in range(options.rounds):
                for way in WAYS if number % 2 else WAYS[::-1]:
                    await wire.send({"do": way, "size": size, "count": count}, late)
                    seen[way].append(await self._turn(wire, way, size, count, leads=True))
            ratios = [a / b for a, b in zip(*seen.values(), strict=True)]
            low, high = median_interval(ratios)
            each = ", ".join(f"{way} {statistics.median(rates):.4g} GB/s" for way, rates in seen.items())
            ratio = f"{statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]"
            print(f"{size >> 10} KiB x {count}: {each}; ratio {ratio} of {len(ratios)} rounds", flush=True)
        wire.close()

    async def _met(self, key: bytes) -> Wire:
        """Call until the other host listens. Raises WireError."""
        late = time.monotonic() + GREETING_S
        while True:
            try:
                return await connect(self._options.call, self._options.port, key, late, patience_s=GREETING_S)
            except WireError as error:
                if error.kind != "refused" or time.monotonic() > late:
                    raise
            await asyncio.sleep(0.5)

    async def follow(self, key: bytes) -> None:
        """Do what the other host asks for, until it hangs up."""
        met: asyncio.Future[Wire] = asyncio.get_running_loop().create_future()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(WireError):  # a stranger
                wire = await accept(reader, writer, key, time.monotonic() + GREETING_S)
                if not met.done():
                    met.set_result(wire)

        server = await asyncio.start_server(answer, sock=socket.create_server(("", self._options.port)))
        wire = await asyncio.wait_for(met, GREETING_S)
        server.close()
        with contextlib.suppress(WireError):  # it has hung up
            while True:
                asked = await wire.receive(time.monotonic() + RUN_S)
                await self._turn(wire, asked["do"], asked["size"], asked["count"], leads=False)

    async def _turn(self, wire: Wire, way: str, size: int, count: int, *, leads: bool) -> float:
        """Return GB/s; 0 where this end did not write."""
        if way == "ib_write_bw":
            return await self._perftest(size, count, leads=leads)
        test = RailTest(
            round_trips=0,
            message_bytes=size,
            messages=count,
            directions=("out",),
            seconds=PATIENCE_S,
            setup_seconds=PATIENCE_S / 2,
        )
        done = await run_rail(self._port, test, leads=leads, channel=wire, deadline=time.monotonic() + 2 * PATIENCE_S)
        if done.failures:
            raise SystemExit(f"{self._options.device}: {done.failures[0].text}")
        return done.streams[0].nbytes / done.streams[0].seconds / 1e9 if leads else 0.0

    async def _perftest(self, size: int, count: int, *, leads: bool) -> float:
        options = self._options
        words = ["ib_write_bw", "-d", options.device, "-i", str(options.ib_port), "-x", str(options.gid_index), "-F"]
        words += ["-s", str(size), "-n", str(count), "--report_gbits", "-p", str(options.port + 1)]
        words += [options.call] if leads else []
        late = time.monotonic() + TRIES_S
        while True:
            run = await asyncio.create_subprocess_exec(*words, stdout=-1, stderr=-2, stdin=-3)
            try:
                said = (await asyncio.wait_for(run.communicate(), PATIENCE_S))[0].decode(errors="replace")
            except asyncio.TimeoutError:
                run.kill()
                raise SystemExit(f"{words[0]} did not end within {PATIENCE_S:g} s") from None
            if run.returncode == 0:
                return _rate(said.splitlines(), size) if leads else 0.0
            if time.monotonic() > late:
                raise SystemExit(f"{' '.join(words)}: exit {run.returncode}\n{said[-2000:]}")
            await asyncio.sleep(0.5)


def _rate(lines: Sequence[str], size: int) -> float:
    """Return the average of ib_write_bw's row for messages of `size`, GB/s: its fourth column, Gb/s."""
    rows = [line.split() for line in lines]
    (row,) = (row for row in rows if len(row) >= 4 and row[0] == str(size))
    return float(row[3]) / 8


if __name__ == "__main__":
    main()
