"""Gather the facts of all nodes of a job at rank 0, test the paths between the nodes, and judge once.

Every process of the job runs :func:`assemble` in one of three roles. Node 0 is the *coordinator*. The first rank of any
other node is a *worker*, which sends its node's capture to the coordinator. Every other rank hands the facts that only
it can see to the first rank of its node. A capture is on disk before the network is used. A node that loses the others
judges only itself. No process leaves before the report is complete, because torchrun ends all ranks when one ends.
"""

import asyncio
import contextlib
import re
import signal
import time
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from ncclprobe.cluster.gather.coordinator import run_coordinator
from ncclprobe.cluster.gather.part import PARTING_S, LocalNode, NodePlace, Times, alone, code_of, say
from ncclprobe.cluster.gather.worker import run_worker
from ncclprobe.cluster.rendezvous.messages import Leave
from ncclprobe.cluster.rendezvous.run_in_thread import run_in_thread
from ncclprobe.cluster.rendezvous.siblings import Siblings, hand_over
from ncclprobe.engine.collect import Heard, heard_by_rank, observed
from ncclprobe.facts.launcher import Launch, no_master
from ncclprobe.facts.reach import RollCall
from ncclprobe.host import files
from ncclprobe.host.capture import Replay, dump, parse, save
from ncclprobe.host.scratch import scratch
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.signals import ENDING, Interrupted
from ncclprobe.wire import WireError

__all__ = ["NodePlace", "Times", "assemble"]

_SIBLINGS_S = 10.0
_AGAIN_S = 1.0  # in which the work may remove what was made for it
_LOOKING_ON_S = 1.0  # each question has its own deadline; this is the grace for the last one


def assemble(part: NodePlace) -> ExitCode:
    """Run this process's role to its end; return its exit code. Raises Interrupted at a signal of ENDING."""
    role = _run_node if part.launch.speaks_for_node else _run_other_rank
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        return asyncio.run(interruptible(role(part), [each for each in ENDING if before[each] != signal.SIG_IGN]))
    except TimeoutError as error:
        why = str(error) or "--timeout left no time to examine and judge this machine"
        say(f"{why}; nothing was judged")
        return ExitCode.INCONCLUSIVE
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def interruptible(work: Coroutine[Any, Any, ExitCode], numbers: Sequence[int]) -> ExitCode:
    """Return the result of `work`. Raises Interrupted at a signal of `numbers`, once resources are released.

    An exception from a signal handler could occur anywhere, and would print a traceback if nothing catches it. The work
    is cancelled until it ends: asyncio.wait_for loses a cancellation that coincides with its result (up to 3.11).
    """
    loop, task, received = asyncio.get_running_loop(), asyncio.ensure_future(work), []

    def cancel() -> None:
        if not task.done():
            task.cancel()
            loop.call_later(_AGAIN_S, cancel)

    def end(number: int) -> None:
        received.append(number)
        cancel()

    for number in numbers:
        loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        raise Interrupted(received[0]) from None


async def _run_other_rank(part: NodePlace) -> ExitCode:
    launch = part.launch
    text = dump(heard_by_rank(part.collectors, part.times.by(0.3)), f"rank {launch.rank}")
    try:
        leave = await hand_over(part.token.local, part.node_rank, launch.local_rank or 0, text, part.times.end)
    except WireError as error:
        say(f"rank {launch.rank}: {error}: nothing was examined from this rank")
        return ExitCode.INCONCLUSIVE
    return code_of(leave)


async def _run_node(part: NodePlace) -> ExitCode:
    """Run the rank that reports for its node; at the end, tell the node's other ranks to leave."""
    others = range(1, part.launch.local_world_size or 1)
    if not others:
        return await _join_nodes(part, await _observe(part))
    async with contextlib.AsyncExitStack() as stack:
        try:
            siblings = Siblings(part.token.local, part.node_rank, others, part.times.end)
            await stack.enter_async_context(siblings)
        except OSError:
            raise UsageError(
                "another process of this run is local rank 0 of this node as well; "
                "give each rank its own LOCAL_RANK, or each job its own MASTER_PORT"
            ) from None
        local = await _observe(part)
        texts = await siblings.gather(min(time.monotonic() + _SIBLINGS_S, part.times.by(0.5)))
        local.ranks |= parse_rank_answers(part.launch, texts)
        local.add("roll", RollCall(len(others)))
        try:
            return await _join_nodes(part, local)
        finally:
            await siblings.leave(Leave(ExitCode.OK), time.monotonic() + PARTING_S)


async def _observe(part: NodePlace) -> LocalNode:
    """Observe this node on a thread, while its other ranks connect."""
    look = partial(observed, part.collectors, part.times.by(0.4), part.given)
    snapshot, answers = await run_in_thread(look, part.times.end + _LOOKING_ON_S)
    return LocalNode(node_name(part.launch, snapshot, part.node_rank), answers, {}, snapshot)


async def _join_nodes(part: NodePlace, local: LocalNode) -> ExitCode:
    if not part.launch.several_nodes:
        if part.keep:
            save(part.keep / files.named_after(local.name), local.text())
        return ExitCode(part.judge([local.snapshot_with_samples(part.collectors)], (), ()).exit_code)
    local.add("proof", part.token.proof)
    if part.token.unproven:
        return alone(part, local, "the nodes have no common secret to authenticate with: only this node was judged")
    if problem := no_master(part.launch):
        return alone(part, local, f"{problem.subject} {problem.message}; {problem.remedy}")
    with contextlib.ExitStack() as stack:
        try:
            spool = stack.enter_context(scratch())
            save(spool / files.named_after(local.name), local.text())
        except (OSError, UsageError) as error:
            if part.node_rank == 0:
                return alone(part, local, f"no folder for the other nodes' captures ({error}); set TMPDIR")
            say(f"this node's capture could not be written to a disk: {error}")
            return await run_worker(part, local)
        return await (run_worker(part, local) if part.node_rank else run_coordinator(part, local, spool))


def node_name(launch: Launch, snapshot: Snapshot, rank: int) -> str:
    """Return the scheduler's name of this node, or else its own."""
    return (launch.names[rank] if rank < len(launch.names) else snapshot.node)[: bounds.NAME_CHARACTERS]


def parse_rank_answers(launch: Launch, texts: Mapping[int, str]) -> dict[int, Heard]:
    """Parse the captures of this node's other ranks; key them by the global rank that each states."""
    answers_by_rank: dict[int, Heard] = {}
    for local, text in texts.items():
        try:
            replay = parse(text, "")
        except UsageError:  # it connected, but its capture cannot be read
            replay = Replay({}, "")
        rank_name = re.fullmatch(r"rank ([0-9]{1,9})", replay.node)
        answers_by_rank[int(rank_name[1]) if rank_name else (launch.rank or 0) + local] = dict(replay.answers)
    return answers_by_rank
