"""Through torchrun's store rank 0's address gets to the others; a store that stops or refuses holds nobody up."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from rendezvous_lab import soon

from ncclprobe.cluster.rendezvous.store import StoreError, announce, look_up

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
ROOT = Path(__file__).resolve().parents[3]
NOTE = {"addresses": ["10.0.0.1"], "port": 4711, "token": "00ff"}
STOPPED = """
import asyncio, sys, time
import torch.distributed
from ncclprobe.cluster.rendezvous.store import StoreError, look_up
started = time.monotonic()
try:
    asyncio.run(look_up("127.0.0.1", int(sys.argv[1]), "0", started + 2))
except StoreError as error:
    print(error.kind, time.monotonic() - started)
"""


@pytest.fixture(autouse=True)
def _what_a_client_tells_torch_is_told_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "FATAL")


async def trouble(port: int, attempt: str = "0", patience_s: float = 2.0) -> str:
    with pytest.raises(StoreError) as caught:
        await look_up("127.0.0.1", port, attempt, soon(patience_s))
    return caught.value.kind


def test_what_rank_0_leaves_is_found_and_what_another_attempt_left_or_is_none_is_not() -> None:
    async def run(port: int) -> None:
        early = asyncio.ensure_future(look_up("127.0.0.1", port, "0", soon(30)))
        await asyncio.sleep(0.5)
        await announce("127.0.0.1", port, "2", {"port": 1}, soon(30))  # of a run before
        for attempt in ("0", "2"):
            await announce("127.0.0.1", port, attempt, NOTE, soon(30))
        assert await early == NOTE
        assert await look_up("127.0.0.1", port, "2", soon(30)) == NOTE
        assert await trouble(port, "1", 0.5) in ("empty", "silent")
        assert [await trouble(port, each, 30.0) for each in ("garbled", "a list")] == ["garbled"] * 2

    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    server.set("ncclprobe/doctor/garbled/coordinator", "[1")
    server.set("ncclprobe/doctor/a list/coordinator", "[1]")
    asyncio.run(run(server.port))


@pytest.mark.slow
def test_a_store_that_says_nothing_as_if_it_was_stopped_holds_up_neither_the_run_nor_its_exit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        line = [sys.executable, "-c", STOPPED, str(mute.getsockname()[1])]
        run = subprocess.run(line, capture_output=True, text=True, timeout=60, cwd=ROOT, check=True)
    kind, took_s = run.stdout.split()
    assert (kind, float(took_s) > 1) == ("silent", True)


def test_a_port_without_a_store_and_one_that_says_nothing_are_given_up() -> None:
    with socket.socket() as held, socket.socket() as mute:
        for each in (held, mute):
            each.bind(("127.0.0.1", 0))
        mute.listen()
        with contextlib.closing(mute):
            found = [asyncio.run(trouble(each.getsockname()[1])) for each in (held, mute)]
    assert {*found} <= {"refused", "silent"}
