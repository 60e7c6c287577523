"""Processes of one run share a secret; those of another do not, and strangers cannot find it out."""

import asyncio
import contextlib
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
from ncclprobe.model.errors import UsageError
from ncclprobe.wire import Key, WireError
from tests.awaited import awaited
from tests.each_row import each_row

SECRET = "correct horse battery"
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


def test_a_given_token_is_taken_and_never_printed() -> None:
    found = find_token({"NCCLPROBE_TOKEN": SECRET}, LAUNCH)
    assert found.key == find_token({"NCCLPROBE_TOKEN": SECRET}, BY_HAND).key
    assert found.key != find_token({"NCCLPROBE_TOKEN": "correct cow battery"}, LAUNCH).key
    assert repr(found) == "Token(NCCLPROBE_TOKEN)"
    assert found.proof.proved


@each_row("given", ["qwerty", "changeme", "fifteen letters"])
def test_a_token_that_can_be_guessed_is_refused_without_saying_it(given: str) -> None:
    with pytest.raises(UsageError, match="openssl rand") as caught:
        find_token({"NCCLPROBE_TOKEN": given}, LAUNCH)
    assert given not in str(caught.value).replace("16", "")
    assert find_token({"NCCLPROBE_TOKEN": "sixteen  letters"}, LAUNCH).proof.proved


def test_without_any_secret_nothing_is_proved_and_the_mark_keeps_runs_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_token({"NCCLPROBE_TOKEN": ""}, LAUNCH)
    assert (found.key, found.unproven, found.proof.proved) == (None, True, False)
    others = [Launch(run_id="job 8", master_port=29500), Launch(run_id="job 7", master_port=29501)]
    marks = {find_token({}, each).mark for each in (LAUNCH, *others)}
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert len(marks | {find_token({}, LAUNCH).mark}) == 4


def test_who_trusts_the_network_needs_no_secret_and_the_report_will_say_so() -> None:
    found = find_token({}, BY_HAND, trust=True)
    assert (found.key, found.unproven) == (found.mark, False)
    assert (found.proof.proved, found.proof.trusted) == (False, True)
    assert find_token({"NCCLPROBE_TOKEN": SECRET}, BY_HAND, trust=True).proof.proved


def test_torchrun_hands_out_its_own() -> None:
    found = find_token({}, Launch("torchrun", 0, 16, 0, 8, 2, 0, "node0", 29500, agent_store=True))
    assert (found.unproven, found.by_store, found.proof.proved) == (False, True, True)


def test_node_0_of_nodes_started_by_hand_makes_one_and_the_others_need_it() -> None:
    first, second = find_token({}, BY_HAND), find_token({}, BY_HAND)
    assert first.made != second.made
    assert len(first.made) == 32
    assert find_token({"NCCLPROBE_TOKEN": first.made}, BY_HAND).key == first.key
    with pytest.raises(UsageError, match="the command that node 0 prints"):
        find_token({}, Launch("options", 1, 2, 0, 1, 2, 1, "node0", 29500))


def test_slurm_has_munge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token, "is_here", lambda: True)
    assert isinstance(find_token({"SLURM_JOB_ID": "7"}, LAUNCH).key, Munge)
    assert find_token({}, LAUNCH).key is None


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
    token._write_secret(shared_home / ".config/ncclprobe/token")
    monkeypatch.setattr(token, "is_shared", lambda home: False)
    assert find_token({"HOME": str(shared_home)}, LAUNCH).key == first.key
    alone = shared_home / "alone"
    alone.mkdir()
    assert find_token({"HOME": str(alone)}, LAUNCH).unproven  # the home of one machine gets no file
    assert list(alone.iterdir()) == []
    (alone / ".config").touch()  # and one that cannot be written is as none
    monkeypatch.setattr(token, "is_shared", lambda home: True)
    assert find_token({"HOME": str(alone)}, LAUNCH).unproven


@each_row("mode", [0o644, 0o640, 0o602, 0o600])
def test_a_file_that_others_can_read_or_write_or_that_is_anothers_is_refused(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token, "is_shared", lambda home: True)
    find_token({"HOME": str(tmp_path)}, LAUNCH)
    (tmp_path / ".config/ncclprobe/token").chmod(mode)
    if mode == 0o600:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(UsageError, match="other users"):
        find_token({"HOME": str(tmp_path)}, LAUNCH)


@each_row(("characters", "fits"), [(0, False), (31, False), (32, True)])
def test_a_short_file_is_no_secret_and_a_link_in_its_place_is_not_followed(
    characters: int, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".config/ncclprobe/token"
    path.parent.mkdir(parents=True)
    path.touch(0o600)
    path.write_text("0" * characters)
    with contextlib.nullcontext() if fits else pytest.raises(UsageError, match="no secret"):
        assert find_token({"HOME": str(tmp_path)}, LAUNCH).proof.proved
    path.unlink()
    (tmp_path / "bait").write_text("0" * 64)
    path.symlink_to(tmp_path / "bait")
    assert find_token({"HOME": str(tmp_path)}, LAUNCH).unproven


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


def test_a_machine_without_munge_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not IS_HERE()
