"""Node 0: hears all that come, has everybody try the plan, judges, and tells each how to leave."""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from ncclprobe.cluster.gather.part import PARTING_S, Own, Part, alone, how, missing, say
from ncclprobe.cluster.mesh import Doors, NodePlan, answering, doubtful, merged, open_doors, plan_mesh, walk
from ncclprobe.cluster.mesh.interfaces import as_doors, roads
from ncclprobe.cluster.rendezvous.coordinator import Guest, Hub
from ncclprobe.cluster.rendezvous.listener import CannotListen
from ncclprobe.cluster.rendezvous.messages import Leave
from ncclprobe.cluster.rendezvous.store import StoreError, announce
from ncclprobe.engine.judge import part_of
from ncclprobe.engine.observe import Heard, of_capture
from ncclprobe.engine.traces import Traces
from ncclprobe.errors import Failed, HostError, TimedOut, UsageError
from ncclprobe.facts.paths import Paths
from ncclprobe.facts.reach import Trouble
from ncclprobe.host import SAMPLE, files
from ncclprobe.host.capture import MAX_CAPTURE_BYTES, Answers, Replay, dump, parse
from ncclprobe.model.findings import ExitCode, Severity
from ncclprobe.model.report import Report

_STRAGGLERS_S = 5.0  # beside twice what node 0 itself needed for its own paths
_SILENT = "silent: it did not tell in time what it saw of the others"


async def as_hub(part: Part, own: Own, spool: Path) -> ExitCode:
    secret = secrets.token_bytes(32) if part.launch.agent_store else part.token.secret
    async with Hub(secret, part.nnodes, spool, part.times.end) as hub:
        try:
            await _open(part, hub, secret)
        except (CannotListen, StoreError) as error:
            return alone(part, own, f"{error}: the other nodes could not be met")
        doors = await open_doors(roads(own.snapshot, part.backend), 0, own.name, secret)
        gathering = await hub.gather(part.times.meeting())
        names = _different(own.name, hub.guests)
        await _mesh(part, own, hub, doors, names)
        theirs = tuple(_replays(hub.guests, names))
        came = tuple(guest.hello.node_rank for guest in hub.guests)
        own.add("gathering", replace(gathering, came=came, lost=_lost(hub.guests)))
        replays, traces = [own.replay(), *theirs], Traces()
        snapshots = [of_capture(replay, part.collectors, traces) for replay in replays]
        try:
            report = part.judge(snapshots, missing(snapshots, came), [how(part)])
        except UsageError as error:  # it cannot be written, which the others must not wait to learn
            unwritten = Leave(ExitCode.INCONCLUSIVE, f"{own.name} could not write the report: {error}")
            await hub.leave({guest.hello.id: unwritten for guest in hub.guests}, time.monotonic() + PARTING_S)
            raise
        words = {guest.hello.id: _parting(part, names[guest.hello.id], own.name, report) for guest in hub.guests}
        await hub.leave(words, time.monotonic() + PARTING_S)
    if part.keep:
        _keep(part.keep, replays)
    return part.exit_of(own.name, report)


async def _open(part: Part, hub: Hub, secret: bytes) -> None:
    """Listen on MASTER_PORT itself; where torchrun has that, elsewhere, and tell by torchrun's store."""
    port = part.launch.master_port or 0
    if not part.launch.agent_store:
        await hub.listen(port)
        return
    note = {"port": await hub.listen(0), "token": secret.hex()}
    await announce(part.launch.master_addr or "", port, part.attempt, note, part.times.meeting())


async def _mesh(part: Part, own: Own, hub: Hub, doors: Doors, names: Mapping[str, str]) -> None:
    """Everybody tries the paths of the plan at the same time; then what was doubtful is measured once more."""
    seated = {guest.hello.node_rank: guest for guest in hub.guests if not guest.extra}
    listening = {0: doors.addresses, **{rank: as_doors(guest.hello.doors) for rank, guest in seated.items()}}
    called = {0: own.name, **{rank: names[guest.hello.id] for rank, guest in seated.items()}}
    plans, deadline = plan_mesh(listening, names=called), part.times.mesh()
    extras = {guest.hello.id: NodePlan(guest.hello.node_rank) for guest in hub.guests if guest.extra}
    seen = await _walked(hub, doors, plans, extras, deadline)
    samples = {rank: guest.samples or {} for rank, guest in seated.items()}
    if again := doubtful(plans, seen):
        for rank, paths in (await _walked(hub, doors, again, {}, deadline)).items():
            seen[rank] = merged(seen[rank], paths)
    doors.close()
    own.add("paths", seen[0])
    for rank, guest in seated.items():
        guest.samples = samples[rank] | {"paths": asdict(seen[rank])} if rank in seen else None


async def _walked(
    hub: Hub, doors: Doors, plans: Mapping[int, NodePlan], extras: Mapping[str, NodePlan], deadline: float
) -> dict[int, Paths]:
    """What the nodes of `plans` see, by rank; who does not tell is not in it."""
    seconds = deadline - time.monotonic()
    ids = {guest.hello.id: guest.hello.node_rank for guest in hub.guests if not guest.extra}
    asked = {name: plans[rank] for name, rank in ids.items() if rank in plans} | dict(extras)
    orders = {name: {"plan": asdict(plan), "seconds": seconds} for name, plan in asked.items()}
    began = time.monotonic()
    asking = asyncio.create_task(hub.mesh(orders, deadline + PARTING_S))
    here = await walk(plans[0], doors, doors.token, deadline) if 0 in plans else None
    patience_s = _STRAGGLERS_S + 2 * (time.monotonic() - began)
    await asyncio.wait({asking}, timeout=min(patience_s, deadline + PARTING_S - time.monotonic()))
    asking.cancel()
    theirs = {guest.hello.id: guest.samples for guest in hub.guests if guest.hello.id in orders and guest.samples}
    seen = {} if here is None else {0: here}
    for name, samples in theirs.items():
        with contextlib.suppress(msgspec.ValidationError):  # it is not known then, and the checks say so
            if name in ids:
                paths = msgspec.convert(samples.get("paths"), Paths, str_keys=True)
                seen[ids[name]] = answering(plans[ids[name]], paths)
    return seen


def _different(own: str, guests: Sequence[Guest]) -> dict[str, str]:
    """A name for each guest, by its id, that no other node has."""
    names: dict[str, str] = {}
    for guest in guests:
        name = guest.hello.name
        while name == own or name in names.values():
            name = f"{name}#{guest.hello.node_rank}"
        names[guest.hello.id] = name
    return names


def _lost(guests: Sequence[Guest]) -> tuple[Trouble, ...]:
    """Those that came, and ended or fell silent before they told what they saw."""
    gone = {guest.hello.id: guest.lost or ("" if guest.samples else _SILENT) for guest in guests}
    parted = [(guest, gone[guest.hello.id].partition(": ")) for guest in guests if gone[guest.hello.id]]
    return tuple(Trouble(guest.address, kind, words, guest.hello.node_rank) for guest, (kind, _, words) in parted)


def _replays(guests: Sequence[Guest], names: Mapping[str, str]) -> Iterator[Replay]:
    """The guests' captures, with what they have measured, or why that is not known."""
    for guest in guests:
        name = names[guest.hello.id]
        try:
            replay = parse(files.read(guest.capture, limit=MAX_CAPTURE_BYTES), f"the capture of {name}", name)
        except UsageError as error:
            guest.lost = guest.lost or f"garbled: {error}"
            replay = Replay({}, name, older=False)
        told = {} if guest.extra else guest.samples or {}
        measured: Heard = {(SAMPLE, kind): json.dumps(value) for kind, value in told.items()}
        yield Replay({**replay.answers, (SAMPLE, "paths"): _why_not(guest), **measured}, name, False, _said(replay))


def _said(replay: Replay) -> dict[int, Answers]:
    return {rank: own.answers for rank, own in replay.ranks.items()}


def _why_not(guest: Guest) -> HostError:
    if guest.extra:
        return Failed("another node has its rank, so it was not asked")
    return Failed(f"rank 0 lost it: {guest.lost}") if guest.lost else TimedOut(_SILENT)


def _keep(folder: Path, replays: Sequence[Replay]) -> None:
    """Leave each node's capture, with what was measured, where the user wants it. The report is out by then."""
    taken: set[str] = set()
    for number, replay in enumerate(replays):
        name = files.named_after(replay.node)
        name = f"{number}-{name}" if name in taken else name
        taken.add(name)
        try:
            files.write(folder / name, dump(replay.answers, replay.node, ranks=_said(replay)), private=True)
        except UsageError as error:
            say(f"--keep: {error}")


def _parting(part: Part, name: str, hub: str, report: Report) -> Leave:
    """With what a node leaves, and the one line that it then says."""
    code = part.exit_of(name, report)
    worst = [
        f"{verdict.id} {finding.subject}: {finding.message}"
        for verdict in part_of(name, report.checks)
        for finding in verdict.findings
        if finding.severity is Severity.FAIL
    ]
    what = f"FAIL {worst[0]}" if worst else "not everything could be looked at"
    return Leave(code, f"{name}: {what}; the report is on {hub} (exit {code})" if code else "")
