"""The ranks of one node hand over what they know and leave together."""

import asyncio
import contextlib
import os

import pytest
from rendezvous_lab import TOKEN, soon

from ncclprobe.cluster.rendezvous.messages import Leave
from ncclprobe.cluster.rendezvous.siblings import Siblings, hand_over, socket_name
from ncclprobe.wire import WireError


def test_every_rank_is_heard_and_told_to_leave() -> None:
    async def run() -> tuple[dict[int, str], list[Leave]]:
        ranks = [asyncio.ensure_future(hand_over(TOKEN, 5, rank, f"facts of {rank}", soon())) for rank in (1, 2, 3)]
        await asyncio.sleep(0.1)  # they may be there before local rank 0
        async with Siblings(TOKEN, 5, (1, 2, 3), soon()) as siblings:
            texts = await siblings.gather(soon())
            await siblings.leave(Leave(4, "bye"), soon())
            return texts, list(await asyncio.gather(*ranks))

    texts, leaves = asyncio.run(run())
    assert texts == {rank: f"facts of {rank}" for rank in (1, 2, 3)}
    assert leaves == [Leave(4, "bye")] * 3


def test_who_does_not_come_is_known_at_the_deadline() -> None:
    async def run() -> dict[int, str]:
        async with Siblings(TOKEN, 0, (1, 2), soon()) as siblings:
            ranks = [asyncio.ensure_future(hand_over(TOKEN, 0, rank, "", soon(3))) for rank in (2, 9)]
            texts = await siblings.gather(soon(0.5))
            await siblings.leave(Leave(0), soon())
            await asyncio.gather(*ranks, return_exceptions=True)
            return texts

    assert asyncio.run(run()) == {2: ""}


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


def test_a_process_of_another_user_is_neither_heard_nor_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may well know the token: under munge and torchrun the socket's name is no secret."""

    async def run() -> dict[int, str]:
        async with Siblings(TOKEN, 0, (1,), soon()) as siblings:
            monkeypatch.setattr(os, "geteuid", lambda: 12345)  # of whoever asks the kernel for the other side's user
            with pytest.raises(WireError, match="rendezvous socket"):
                await hand_over(TOKEN, 0, 1, "facts", soon(2.0))
            return await siblings.gather(soon(0.2))

    assert asyncio.run(run()) == {}


def test_a_second_local_rank_0_is_refused() -> None:
    async def run() -> None:
        async with Siblings(TOKEN, 0, (1,), soon()), Siblings(TOKEN, 0, (1,), soon()):
            raise AssertionError

    with pytest.raises(OSError, match="in use"):
        asyncio.run(run())


def test_a_local_rank_0_that_never_comes_is_given_up() -> None:
    with pytest.raises(WireError, match="is missing"):
        asyncio.run(hand_over(TOKEN, 0, 1, "", soon(0.3)))
