"""Processes of one run share a secret; those of another do not, and strangers cannot find it out."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rendezvous_lab import soon

from ncclprobe import wire
from ncclprobe.cluster.rendezvous import token
from ncclprobe.cluster.rendezvous.token import Munge, find_token
from ncclprobe.facts.launcher import Launch
from ncclprobe.wire import Key, WireError
from tests.awaited import awaited

LAUNCH = Launch("openmpi", 0, 16, 0, 8, 2, 0, "node0", 29500, run_id="job 7")
BY_HAND = Launch("options", 0, 2, 0, 1, 2, 0, "node0", 29500)


IS_HERE = token.is_here


@pytest.fixture(autouse=True)
def no_munge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token, "is_here", lambda: False)


@pytest.fixture
def shared_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(token, "is_shared", lambda home: True)
    return tmp_path


def test_node_0_of_nodes_started_by_hand_makes_another_one_each_time() -> None:
    assert find_token({}, BY_HAND).made != find_token({}, BY_HAND).made


def test_a_shared_home_has_a_file_that_all_nodes_of_a_user_read(shared_home: Path) -> None:
    made = find_token({"HOME": str(shared_home)}, LAUNCH)
    path = shared_home / ".config/ncclprobe/token"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert made.proof.proved
    assert made.key == find_token({"HOME": str(shared_home)}, LAUNCH).key
    assert made.key != find_token({"HOME": str(shared_home)}, Launch("openmpi", nnodes=2, run_id="job 8")).key
    assert [each.name for each in path.parent.iterdir()] == ["token"]


def test_a_node_that_made_the_file_first_wins_and_a_file_that_is_there_is_taken(
    shared_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = find_token({"HOME": str(shared_home)}, LAUNCH)
    token.write_secret(shared_home / ".config/ncclprobe/token")
    monkeypatch.setattr(token, "is_shared", lambda home: False)
    assert find_token({"HOME": str(shared_home)}, LAUNCH).key == first.key
    alone = shared_home / "alone"
    alone.mkdir()
    assert find_token({"HOME": str(alone)}, LAUNCH).unproven  # the home of one machine gets no file
    assert list(alone.iterdir()) == []
    (alone / ".config").touch()  # and one that cannot be written is as none
    monkeypatch.setattr(token, "is_shared", lambda home: True)
    assert find_token({"HOME": str(alone)}, LAUNCH).unproven


needs_munge = pytest.mark.skipif(
    not (shutil.which("munged") and shutil.which("unmunge")), reason="munge is not installed"
)


@pytest.fixture
def munged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A munged of this test's own; its clients are found before the machine's."""
    (tmp_path / "key").write_bytes(os.urandom(128))
    (tmp_path / "key").chmod(0o400)
    files = [f"--{name}-file={tmp_path / name}" for name in ("key", "log", "pid", "seed")]
    line = [str(shutil.which("munged")), "--foreground", "--force", f"--socket={tmp_path / 'socket'}", *files]
    daemon = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for name in ("munge", "unmunge"):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {shutil.which(name)} --socket={tmp_path / "socket"} "$@"\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    end_s = time.monotonic() + 20.0
    while not (tmp_path / "socket").exists() and time.monotonic() < end_s:
        time.sleep(0.01)
    yield
    daemon.terminate()
    daemon.wait()


async def talk(caller: Key, answerer: Key) -> tuple[str, str]:
    """What each side says of the other: "ok", or what was wrong."""
    heard: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            connection = await wire.accept(reader, writer, answerer, soon())
            await connection.receive(soon())
            connection.close()
            heard.append("ok")
        except WireError as error:
            heard.append(str(error))

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    said = "ok"
    try:
        connection = await wire.connect("127.0.0.1", server.sockets[0].getsockname()[1], caller, soon())
        await connection.send({"sealed": connection.seal(bytes(32)).hex()}, soon())
        connection.close()
    except WireError as error:
        said = error.kind
    while not heard:
        await asyncio.sleep(0.01)
    server.close()
    return said, heard[0]


@needs_munge
def test_one_user_and_one_run_agree_and_no_other(munged: None) -> None:
    assert IS_HERE()
    assert asyncio.run(talk(Munge(b"run 1"), Munge(b"run 1"))) == ("ok", "ok")
    for caller, words in ((Munge(b"run 2"), "another token"), (b"a token", "with a token, but this node with a munge")):
        said, heard = asyncio.run(talk(caller, Munge(b"run 1")))
        assert (said, words in heard) == ("stranger", True), heard


@needs_munge
@awaited
async def test_a_credential_is_good_once_and_for_its_user_alone(munged: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run_1 = Munge(b"run 1")
    credential, key = await run_1.offer(soon())
    assert await run_1.key(credential, soon()) == key
    for bad in (credential, b"MUNGE:garbage:", b"", b"\xff" * 5000):
        with pytest.raises(WireError) as caught:
            await run_1.key(bad, soon())
        assert caught.value.kind == "stranger"
    credential, _ = await run_1.offer(soon())
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(WireError, match=f"is of user {user}, but this run is of user 12345"):
        await run_1.key(credential, soon())
