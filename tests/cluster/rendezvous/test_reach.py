"""The way to rank 0 is named layer by layer, over real sockets, and given up at its deadline."""

import asyncio
import contextlib
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rendezvous_lab import TOKEN, saying, soon

from ncclprobe.cluster.rendezvous import reach as module
from ncclprobe.cluster.rendezvous.coordinator import Coordinator
from ncclprobe.cluster.rendezvous.reach import addresses_of, find, source_towards
from ncclprobe.facts.reach import Reach
from ncclprobe.model import bounds
from ncclprobe.wire import Wire
from tests.awaited import awaited
from tests.each_row import each_row

ROOT = Path(__file__).resolve().parents[3]


def reached(target: str, port: int, patience_s: float = 0.6, **details: Any) -> Reach:
    async def run() -> Reach:
        wire, reach = await find(target, port, TOKEN, soon(patience_s), **details)
        assert (wire is not None) == (reach.outcome == "ok")
        if wire is not None:
            wire.close()
        return reach

    return asyncio.run(run())


async def reached_by(target: str, port: int, patience_s: float = 0.6, **details: Any) -> tuple[Wire | None, Reach]:
    return await find(target, port, TOKEN, soon(patience_s), **details)


@each_row("target", ["127.0.0.1", "::1"])
@awaited
async def test_a_hub_that_is_there_is_found_and_the_way_is_told(target: str, tmp_path: Path) -> None:
    async with Coordinator(TOKEN, 2, tmp_path, soon(30)) as coordinator:
        port = await coordinator.listen(0)
        wire, reach = await reached_by(target, port, 5.0, interfaces={target: "lo"})
        assert wire is not None
        wire.close()
    assert (reach.target, reach.port, reach.outcome, reach.detail) == (target, port, "ok", "")
    assert (reach.addresses, reach.address, reach.source, reach.interface) == ((target,), target, target, "lo")
    assert (reach.tries, reach.seen) == (1, ("ok",))


def bound_low(held: socket.socket) -> int:
    """Bind to a port below those that connections take: one of these could connect to itself, and hold it."""
    for port in random.sample(range(20000, 30000), 50):
        with contextlib.suppress(OSError):
            held.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


@awaited
async def test_a_hub_that_starts_later_is_found_and_what_was_before_is_kept(tmp_path: Path) -> None:
    with socket.socket() as held:
        port = bound_low(held)
        search = asyncio.ensure_future(reached_by("127.0.0.1", port, 20.0))
        await asyncio.sleep(0.5)
    async with Coordinator(TOKEN, 2, tmp_path, soon(30)) as coordinator:
        await coordinator.listen(port)
        wire, reach = await search
        assert wire is not None
        wire.close()
    assert reach.seen == ("refused", "ok")
    assert 1 < reach.tries < 40


def test_a_port_that_stays_closed_is_refused_and_a_queue_that_never_answers_is_filtered() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        reach = reached("127.0.0.1", held.getsockname()[1])
    assert (reach.outcome, reach.seen) == ("refused", ("refused",))
    assert 2 <= reach.tries < 40
    with contextlib.ExitStack() as stack:
        full, *crowd = [stack.enter_context(socket.socket()) for _ in range(5)]
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for each in crowd:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        assert reached("127.0.0.1", full.getsockname()[1]).outcome == "filtered"


IN_A_NETWORK_OF_ITS_OWN = """
ip link set lo up
ip link add eth0 type veth peer name eth1
ip addr add 10.9.0.1/24 dev eth0
ip link set eth0 up
ip link set eth1 up
ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev eth0
ip route add unreachable 10.8.0.0/24
ip route add prohibit 10.7.0.0/24
exec "$0" -c '
import asyncio, time
from ncclprobe.cluster.rendezvous.reach import find
async def main():
    addresses, end = ("10.9.0.2", "10.9.0.3", "10.8.0.1", "10.7.0.1", "10.6.0.1"), time.monotonic() + 4
    tried = [find(address, 29500, b"", end, interfaces={"10.9.0.1": "eth0"}) for address in addresses]
    for wire, reach in await asyncio.gather(*tried):
        print(reach.outcome, reach.source, reach.interface)
asyncio.run(main())
'
"""


@pytest.mark.skipif(not (shutil.which("unshare") and shutil.which("ip")), reason="needs unshare(1) and ip(8)")
def test_silence_no_route_and_a_forbidden_one_are_told_apart() -> None:
    """What is sent to eth1 under another's hardware address is dropped there; and nobody answers for 10.9.0.3."""
    command = ["unshare", "--user", "--map-root-user", "--net", "sh", "-ec", IN_A_NETWORK_OF_ITS_OWN, sys.executable]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    if not run.stdout and "Traceback" not in run.stderr:
        pytest.skip(f"no network namespace to be had: {run.stderr.strip()}")
    through = ["filtered 10.9.0.1 eth0", "unreachable 10.9.0.1 eth0"]
    assert run.stdout.splitlines() == [*through, "route  ", "route  ", "route  "], run.stderr


def test_an_address_without_a_route_or_a_connection_ends_at_its_layer() -> None:
    assert reached("0.0.0.0", 1).outcome == "refused"
    assert reached("fe80::1", 29500).outcome in ("address", "route")


@each_row(
    ("text", "stay_s", "outcome", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", 0.0, "foreign", "HTTP/1.1 400"),
        (b"", 0.0, "hung-up", "closed the connection without a message"),
        (b"ncclprobe/2 token " + b"0" * 32 + b"\n", 5.0, "silent", "said nothing"),
        (b"ncclprobe/2 token " + b"0" * 32 + b"\n", 0.0, "reset", "hung up"),
        (b"ncclprobe/2 token " + b"0" * 32 + b"\n" + b"\0" * 60, 5.0, "stranger", "token"),
    ],
)
@awaited
async def test_what_answers_but_is_not_ours_is_said(text: bytes, stay_s: float, outcome: str, words: str) -> None:
    async with saying(text, stay_s) as port:
        reach = (await reached_by("127.0.0.1", port, 1.0))[1]
    assert (reach.outcome, words in reach.detail) == (outcome, True), reach


@awaited
async def test_a_service_that_is_not_ours_is_called_a_few_times_only(tmp_path: Path) -> None:
    async with saying(b"220 mail\r\n") as port, Coordinator(b"another", 2, tmp_path, soon(60)) as coordinator:
        other = await coordinator.listen(0)
        seen = (await reached_by("127.0.0.1", port, 60.0))[1], (await reached_by("127.0.0.1", other, 60.0))[1]
    for reach, outcome in zip(seen, ("foreign", "stranger"), strict=True):
        assert (reach.outcome, reach.tries) == (outcome, 3)
        assert reach.seconds < 20


def never(name: str) -> Sequence[str]:
    time.sleep(600)
    return ()


def fails(name: str) -> Sequence[str]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@each_row(
    ("target", "resolve", "words"),
    [
        ("no-such-host", fails, "no-such-host: Name or service not known"),
        ("empty", lambda name: (), "empty: resolves to nothing"),
        ("slow", never, "slow: no answer from the resolver"),
        ("\ud800" * 70, addresses_of, ""),
    ],
)
def test_a_name_that_does_not_resolve_is_tried_again_until_the_deadline(
    target: str, resolve: Callable[[str], Sequence[str]], words: str
) -> None:
    reach = reached(target, 29500, resolve=resolve)
    assert (reach.outcome, reach.addresses, words in reach.detail) == ("resolve", (), True), reach
    assert reach.tries > 1 or (resolve is never and reach.seconds > 0.5)


@awaited
async def test_of_several_addresses_the_one_that_is_open_is_taken(tmp_path: Path) -> None:
    async with Coordinator(TOKEN, 2, tmp_path, soon(30)) as coordinator:
        port = await coordinator.listen(0)
        names = {"hub": ("fe80::1", "127.0.0.1")}
        wire, reach = await reached_by("hub", port, 10.0, resolve=lambda name: names[name])
        assert wire is not None
        wire.close()
    assert (reach.outcome, reach.address, reach.addresses) == ("ok", "127.0.0.1", ("fe80::1", "127.0.0.1"))


def test_of_several_addresses_the_one_that_came_farthest_is_told() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        reach = reached("hub", port, resolve=lambda name: ("127.0.0.1", "fe80::1"))
    assert (reach.outcome, reach.address) == ("refused", "127.0.0.1")


def test_of_many_addresses_a_few_are_tried_and_without_time_none() -> None:
    reach = reached(
        "hub", 1, resolve=lambda name: [f"127.0.1.{number}" for number in range(bounds.RESOLVED_ADDRESSES + 1)]
    )
    assert len(reach.addresses) == bounds.RESOLVED_ADDRESSES
    reach = reached("127.0.0.1", 1, -1.0)
    assert (reach.tries, reach.outcome) == (0, "resolve")
    assert set(addresses_of("localhost")) <= {"127.0.0.1", "::1"}
    assert [source_towards(address, 1) for address in ("127.0.0.1", "::1")] == ["127.0.0.1", "::1"]


@given(st.binary(max_size=120), st.booleans())
@awaited
async def test_whatever_a_server_says_ends_in_a_known_outcome(text: bytes, greets: bool) -> None:
    async with saying(b"ncclprobe/1 " * greets + text) as port:
        seen = (await reached_by("127.0.0.1", port, 0.3))[1]
    assert seen.outcome in module._FARTHER
