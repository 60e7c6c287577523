"""Two processes agree on a key by munge: of one user and one run, and of no other."""

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
from ncclprobe.cluster.rendezvous.token import Munge
from ncclprobe.wire import Key, WireError

pytestmark = pytest.mark.skipif(
    not (shutil.which("munged") and shutil.which("unmunge")), reason="munge is not installed"
)


@pytest.fixture
def munged(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A munged of this test's own; its clients are found before the machine's."""
    folder = tmp_path_factory.mktemp("munge")
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o400)
    files = [f"--{name}-file={folder / name}" for name in ("key", "log", "pid", "seed")]
    daemon = subprocess.Popen(
        [str(shutil.which("munged")), "--foreground", "--force", f"--socket={folder / 'socket'}", *files],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for name in ("munge", "unmunge"):
        (folder / name).write_text(f'#!/bin/sh\nexec {shutil.which(name)} --socket={folder / "socket"} "$@"\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    end_s = time.monotonic() + 20.0
    while not (folder / "socket").exists() and time.monotonic() < end_s:
        time.sleep(0.01)
    yield
    daemon.terminate()
    daemon.wait()


async def talk(caller: Key, answerer: Key) -> tuple[object, object]:
    """What each side says of the other: its message, or what was wrong."""
    heard: list[object] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            connection = await wire.accept(reader, writer, answerer, soon())
            heard.append(await connection.receive(soon()))
            connection.close()
        except WireError as error:
            heard.append(str(error))

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    said: object = "ok"
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


@pytest.mark.slow
@pytest.mark.usefixtures("munged")
def test_one_user_and_one_run_agree() -> None:
    assert token.is_here()
    said, heard = asyncio.run(talk(Munge(b"run 1"), Munge(b"run 1")))
    assert (said, isinstance(heard, dict)) == ("ok", True)


@pytest.mark.slow
@pytest.mark.usefixtures("munged")
def test_another_run_of_the_user_is_a_stranger() -> None:
    said, heard = asyncio.run(talk(Munge(b"run 1"), Munge(b"run 2")))
    assert (said, "another token" in str(heard)) == ("stranger", True)


@pytest.mark.slow
@pytest.mark.usefixtures("munged")
def test_another_user_is_a_stranger_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        credential, _ = await Munge(b"run 1").offer(soon())
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(WireError, match=f"is of user {user}, but this run is of user 12345"):
            await Munge(b"run 1").key(credential, soon())

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.usefixtures("munged")
def test_a_credential_is_good_once_and_for_its_user_alone() -> None:
    async def run() -> None:
        run_1 = Munge(b"run 1")
        credential, key = await run_1.offer(soon())
        assert await run_1.key(credential, soon()) == key
        for bad in (credential, b"MUNGE:garbage:", b"", b"\xff" * 5000):
            with pytest.raises(WireError) as caught:
                await run_1.key(bad, soon())
            assert caught.value.kind == "stranger"

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.usefixtures("munged")
def test_a_node_that_has_a_token_instead_is_told_so() -> None:
    said, heard = asyncio.run(talk(b"a token", Munge(b"run 1")))
    assert (said, "with a token, but this node with a munge" in str(heard)) == ("stranger", True)


def test_a_machine_without_munge_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not token.is_here()
