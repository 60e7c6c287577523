"""Through torchrun's store rank 0's address gets to the others; a store that stops or refuses holds nobody up."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from rendezvous_lab import soon

from ncclprobe.cluster.rendezvous.store import StoreError, announce, look_up

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
ROOT = Path(__file__).resolve().parents[3]
NOTE = {"addresses": ["10.0.0.1"], "port": 4711, "token": "00ff"}


@contextmanager
def store(*row: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    command = [sys.executable, str(Path(__file__).with_name("store_server.py")), *row]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout
            yield int(server.stdout.readline()), server
        finally:
            server.kill()


@pytest.fixture(autouse=True)
def _what_a_client_tells_torch_is_told_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "FATAL")


@pytest.mark.slow
def test_what_rank_0_leaves_is_found_also_by_who_asked_before() -> None:
    async def run(port: int) -> object:
        early = asyncio.ensure_future(look_up("127.0.0.1", port, "0", soon(30)))
        await asyncio.sleep(0.5)
        await announce("127.0.0.1", port, "0", NOTE, soon(30))
        return await early, await look_up("127.0.0.1", port, "0", soon(30))

    with store() as (port, _):
        assert asyncio.run(run(port)) == (NOTE, NOTE)


@pytest.mark.slow
def test_what_another_attempt_left_is_not_taken() -> None:
    async def run(port: int) -> str:
        await announce("127.0.0.1", port, "0", NOTE, soon(30))
        with pytest.raises(StoreError) as caught:
            await look_up("127.0.0.1", port, "1", soon(0.5))
        return caught.value.kind

    with store() as (port, _):
        assert asyncio.run(run(port)) in ("empty", "silent")


@pytest.mark.slow
def test_a_note_that_is_none_is_garbled() -> None:
    with store("ncclprobe/doctor/0/coordinator", "[1") as (port, _), pytest.raises(StoreError) as caught:
        asyncio.run(look_up("127.0.0.1", port, "0", soon(30)))
    assert caught.value.kind == "garbled"


@pytest.mark.slow
def test_a_store_that_is_stopped_holds_up_neither_the_run_nor_its_exit() -> None:
    script = (
        "import asyncio, sys, time\n"
        "import torch.distributed\n"
        "from ncclprobe.cluster.rendezvous.store import StoreError, look_up\n"
        "started = time.monotonic()\n"
        "try:\n"
        "    asyncio.run(look_up('127.0.0.1', int(sys.argv[1]), '0', started + 2))\n"
        "except StoreError as error:\n"
        "    print(error.kind, time.monotonic() - started)\n"
    )
    with store() as (port, server):
        os.kill(server.pid, signal.SIGSTOP)
        run = subprocess.run(
            [sys.executable, "-c", script, str(port)], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True
        )
    kind, took_s = run.stdout.split()
    assert kind == "silent"
    assert float(took_s) > 1


def test_a_port_without_a_store_is_said() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(StoreError) as caught:
            asyncio.run(look_up("127.0.0.1", held.getsockname()[1], "0", soon(3)))
    assert caught.value.kind in ("refused", "silent")


def test_a_store_that_says_nothing_is_given_up() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        with pytest.raises(StoreError) as caught, contextlib.closing(mute):
            asyncio.run(look_up("127.0.0.1", mute.getsockname()[1], "0", soon(2)))
    assert caught.value.kind in ("refused", "silent")
