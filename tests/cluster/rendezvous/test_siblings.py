"""Within one node: its ranks hand over what they know and leave together; work on a thread; signals."""

import asyncio
import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest
from rendezvous_lab import TOKEN, soon

from ncclprobe.cluster.gather import interruptible
from ncclprobe.cluster.rendezvous.messages import Leave
from ncclprobe.cluster.rendezvous.run_in_thread import run_in_thread
from ncclprobe.cluster.rendezvous.siblings import Siblings, hand_over, socket_name
from ncclprobe.model.findings import ExitCode
from ncclprobe.signals import Interrupted
from ncclprobe.wire import WireError
from tests.awaited import awaited

ROOT = Path(__file__).resolve().parents[3]


@awaited
async def test_every_rank_is_heard_and_told_to_leave_and_who_does_not_come_is_known() -> None:
    known = {rank: f"facts of {rank}" for rank in (1, 2, 9)}  # 9 is none of this node
    ranks = [asyncio.ensure_future(hand_over(TOKEN, 5, rank, text, soon(3))) for rank, text in known.items()]
    await asyncio.sleep(0.1)  # they may be there before local rank 0
    async with Siblings(TOKEN, 5, (1, 2, 3), soon()) as siblings:
        texts = await siblings.gather(soon(0.7))
        await siblings.leave(Leave(4, "bye"), soon())
        heard = await asyncio.gather(*ranks, return_exceptions=True)
        texts, leaves = texts, [each for each in heard if isinstance(each, Leave)]
    assert texts == {rank: f"facts of {rank}" for rank in (1, 2)}
    assert leaves == [Leave(4, "bye")] * 2


def test_another_token_has_another_door_and_cannot_enter_this_one() -> None:
    assert len({socket_name(TOKEN, 0), socket_name(TOKEN, 1), socket_name(b"another", 0)}) == 3

    async def run() -> dict[int, str]:
        async with Siblings(TOKEN, 0, (1,), soon()) as siblings:
            reader, writer = await asyncio.open_unix_connection(socket_name(TOKEN, 0))
            with contextlib.suppress(OSError):
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert await reader.read() == b""
            writer.transport.abort()
            return await siblings.gather(soon(0.2))

    assert asyncio.run(run()) == {}


@awaited
async def test_a_process_of_another_user_is_neither_heard_nor_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may well know the token: under munge and torchrun the socket's name is no secret."""

    async with Siblings(TOKEN, 0, (1,), soon()) as siblings:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)  # of whoever asks the kernel for the other side's user
        with pytest.raises(WireError, match="rendezvous socket"):
            await hand_over(TOKEN, 0, 1, "facts", soon(2.0))
        seen = await siblings.gather(soon(0.2))
    assert seen == {}


def test_a_second_local_rank_0_is_refused_and_one_that_never_comes_is_given_up() -> None:
    async def run() -> None:
        async with Siblings(TOKEN, 0, (1,), soon()), Siblings(TOKEN, 0, (1,), soon()):
            raise AssertionError

    with pytest.raises(OSError, match="in use"):
        asyncio.run(run())
    with pytest.raises(WireError, match="is missing"):
        asyncio.run(hand_over(TOKEN, 0, 1, "", soon(0.3)))


def test_work_on_a_thread_hands_on_what_it_returns_or_raises_and_is_left_behind_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert asyncio.run(run_in_thread(lambda: 7, soon())) == 7
    for error in (OSError(2, "not there"), KeyError("a bug of ours"), AssertionError()):

        def work(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):
            asyncio.run(run_in_thread(work, soon()))
    never = threading.Event()
    with pytest.raises(TimeoutError):
        asyncio.run(run_in_thread(lambda: never.wait(60), soon(0.1)))
    never.set()

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(TimeoutError, match="cannot start a thread"):
        asyncio.run(run_in_thread(lambda: 7, soon()))


def test_a_cancellation_that_is_lost_on_its_way_is_made_again() -> None:
    async def work() -> ExitCode:
        os.kill(os.getpid(), signal.SIGUSR1)
        with contextlib.suppress(asyncio.CancelledError):  # as asyncio.wait_for does where its result is there by then
            await asyncio.sleep(60)
        await asyncio.sleep(60)
        return ExitCode.OK

    with pytest.raises(Interrupted):
        asyncio.run(interruptible(work(), [signal.SIGUSR1]))
