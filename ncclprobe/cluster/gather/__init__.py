"""All nodes of a job in one report: rank 0's node gathers what the others know, plans what they try, and judges.

Every process of the job comes here and takes one of three parts. The *hub* is node 0; a *spoke* is any other node, and
hands its capture to the hub; a *follower* is a rank beside the one that speaks for its node, and hands that one what
only it can see. What is known is on disk before the network is touched. Who loses the others judges alone, by what it
saw. Nobody leaves before the report is complete, because torchrun ends all ranks as soon as one of them ends.
"""

import asyncio
import contextlib
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from ncclprobe.cluster.gather.coordinator import as_hub
from ncclprobe.cluster.gather.part import PARTING_S, Own, Part, Times, alone, code_of, say
from ncclprobe.cluster.gather.worker import as_spoke
from ncclprobe.cluster.rendezvous.messages import MAX_NAME, Leave
from ncclprobe.cluster.rendezvous.run_in_thread import aside
from ncclprobe.cluster.rendezvous.siblings import Siblings, follow
from ncclprobe.engine.observe import Heard, heard_by_rank, observed
from ncclprobe.errors import UsageError
from ncclprobe.facts.launcher import Launch, no_master
from ncclprobe.facts.reach import RollCall
from ncclprobe.host import files
from ncclprobe.host.capture import Replay, dump, parse
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.wire import WireError

__all__ = ["Part", "Times", "assemble"]

_SIBLINGS_S = 10.0
_LOOKING_ON_S = 1.0  # each question has its own deadline: this one is for the last of them to come back


def assemble(part: Part) -> ExitCode:
    """Play this process's part to its end; its exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was made for this run goes with it
    try:
        return asyncio.run(_speak(part) if part.launch.speaks_for_node else _follow(part))
    except TimeoutError:
        say("this node could not be looked at within --timeout; nothing was judged")
        return ExitCode.INCONCLUSIVE


async def _follow(part: Part) -> ExitCode:
    launch = part.launch
    text = dump(heard_by_rank(part.collectors, part.times.by(0.3)), f"rank {launch.rank}")
    try:
        leave = await follow(part.token.secret, part.node_rank, launch.local_rank or 0, text, part.times.end)
    except WireError as error:
        say(f"rank {launch.rank}: {error}: nothing was looked at from this rank")
        return ExitCode.INCONCLUSIVE
    return code_of(leave)


async def _speak(part: Part) -> ExitCode:
    """The rank that speaks for its node. The others of the node are told to leave when all is done."""
    others = range(1, part.launch.local_world_size or 1)
    if not others:
        return await _meet(part, await _look(part))
    async with contextlib.AsyncExitStack() as stack:
        try:
            siblings = Siblings(part.token.secret, part.node_rank, others, part.times.end)
            await stack.enter_async_context(siblings)
        except OSError:
            raise UsageError(
                "another process of this run is local rank 0 of this node as well; "
                "give each rank its own LOCAL_RANK, or each job its own MASTER_PORT"
            ) from None
        own = await _look(part)
        texts = await siblings.gather(min(time.monotonic() + _SIBLINGS_S, part.times.by(0.5)))
        own.ranks |= _by_rank(part.launch, texts)
        own.add("roll", RollCall(len(others)))
        try:
            return await _meet(part, own)
        finally:
            await siblings.leave(Leave(ExitCode.OK), time.monotonic() + PARTING_S)


async def _look(part: Part) -> Own:
    """This node, on a thread: meanwhile the others of this node are heard."""
    look = partial(observed, part.collectors, part.times.by(0.4), part.given)
    snapshot, answers = await aside(look, part.times.end + _LOOKING_ON_S)
    return Own(_name(part.launch, snapshot, part.node_rank), answers, {}, snapshot)


async def _meet(part: Part, own: Own) -> ExitCode:
    if not part.launch.several_nodes:
        if part.keep:
            files.write(part.keep / files.named_after(own.name), own.text(), private=True)
        return ExitCode(part.judge([own.again(part.collectors)], (), ()).exit_code)
    if problem := no_master(part.launch):
        return alone(part, own, f"{problem.subject} {problem.message}; {problem.remedy}")
    with contextlib.ExitStack() as stack:
        try:
            spool = stack.enter_context(_spool())
            files.write(spool / files.named_after(own.name), own.text(), private=True)
        except (OSError, UsageError) as error:
            if part.node_rank == 0:
                return alone(part, own, f"no folder for what the other nodes know ({error}); set TMPDIR")
            say(f"what this node answered is on no disk: {error}")
            return await as_spoke(part, own)
        return await (as_spoke(part, own) if part.node_rank else as_hub(part, own, spool))


def _name(launch: Launch, snapshot: Snapshot, rank: int) -> str:
    """What the scheduler calls this node, or what it calls itself."""
    return (launch.names[rank] if rank < len(launch.names) else snapshot.node)[:MAX_NAME]


def _by_rank(launch: Launch, texts: Mapping[int, str]) -> dict[int, Heard]:
    """What the other ranks of this node told, by their rank in the job, by which they call themselves."""
    heard: dict[int, Heard] = {}
    for local, text in texts.items():
        try:
            replay = parse(text, "")
        except UsageError:  # it spoke, and what it knows is not known
            replay = Replay({}, "")
        named = re.fullmatch(r"rank ([0-9]{1,9})", replay.node)
        heard[int(named[1]) if named else (launch.rank or 0) + local] = dict(replay.answers)
    return heard


@contextlib.contextmanager
def _spool() -> Iterator[Path]:
    """A private folder on this node, for what must outlive a process that is killed."""
    folder = Path(tempfile.mkdtemp(prefix="ncclprobe-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
