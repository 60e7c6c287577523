"""Run node 0: receive all captures, have all nodes test the plan, judge, and send each node its exit code."""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ncclprobe.cluster.gather.part import PARTING_S, LocalNode, NodePlace, alone, describe_meeting, missing, say
from ncclprobe.cluster.mesh.listeners import Listeners, mesh_interfaces, parse_listeners, reserve_listeners
from ncclprobe.cluster.mesh.plan import NodePlan, answering, plan_mesh
from ncclprobe.cluster.mesh.walk import doubtful, merged, walk
from ncclprobe.cluster.rails.lead import Fleet, RailRun
from ncclprobe.cluster.rails.node import RailNode
from ncclprobe.cluster.rendezvous.coordinator import CannotListen, Coordinator, Peer
from ncclprobe.cluster.rendezvous.messages import Leave
from ncclprobe.cluster.rendezvous.run_in_thread import run_in_thread
from ncclprobe.cluster.rendezvous.store import StoreError, announce
from ncclprobe.engine.collect import Heard, Traces, capture_facts, collect
from ncclprobe.engine.judge import Share
from ncclprobe.engine.workers import Workers, run_snapshot
from ncclprobe.facts.reach import MEASURED, MeshListener, Paths, Trouble
from ncclprobe.host import SAMPLE, files
from ncclprobe.host.capture import Answers, Replay, dump, received, save
from ncclprobe.model import bounds
from ncclprobe.model.errors import Failed, HostError, NotCaptured, TimedOut, UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import asdict, replace

_OPENING_S = 2.0  # for a node to open its listeners: who answers its pings does so at once
_THOROUGH_S = 20.0  # for streams of which all must arrive, and for the size of packets that pass
_STRAGGLERS_S = 5.0  # in addition to twice what node 0 needed for its own paths
_INTERFACES = '{"ask": ["psutil", "net_if_addrs"]'
_SILENT = "silent: it did not report its tests of the other nodes in time"


async def run_coordinator(part: NodePlace, local: LocalNode, spool: Path) -> ExitCode:
    """Run node 0's part; keep the others' captures in the folder `spool`; return the exit code."""
    secret = secrets.token_bytes(32)
    key = secret if part.launch.agent_store else part.token.key or part.token.mark
    async with contextlib.AsyncExitStack() as stack:
        workers = part.workers()
        joined = _handing_over(stack.enter_context(workers)) if workers else lambda peer: None
        coordinator = await stack.enter_async_context(
            Coordinator(key, part.nnodes, spool, part.times.end, joined=joined)
        )
        try:
            await _open(part, coordinator, secret)
        except (CannotListen, StoreError) as error:
            return alone(part, local, f"{error}: the other nodes could not be reached")
        listeners = reserve_listeners(mesh_interfaces(local.snapshot, part.backend), 0, local.name)
        try:
            gathering = await coordinator.gather(part.times.meeting(), partial(_say_who_came, part))
            gathering = replace(gathering, allowed_s=part.times.allowed_s)
            names = unique_names(local.name, coordinator.peers)
            part.progress("testing the paths between the nodes")
            await _test_paths(part, local, coordinator, listeners, names)
            await _test_rails(part, local, coordinator, listeners, names)
        finally:
            listeners.close()
        part.progress("judging")
        came = tuple(peer.hello.node_rank for peer in coordinator.peers)
        local.add("gathering", replace(gathering, came=came, lost=troubles(coordinator.peers)))
        report = await _judged(part, local, coordinator, names, came, workers)
        shares = part.leaves(report)
        words = {key: leave_message(name, local.name, shares[name]) for key, name in names.items()}
        await coordinator.leave(words, time.monotonic() + PARTING_S)
    if part.keep:
        _write_captures(part.keep, [local.replay(), *replayed(coordinator.peers, names)])
    return shares[local.name].exit_code


def _say_who_came(part: NodePlace, others: int) -> None:
    part.progress(f"waiting for the nodes: {1 + others} of {part.nnodes} arrived")


def _handing_over(workers: Workers) -> Callable[[Peer], None]:
    return lambda peer: workers.add(peer.capture, peer.hello.name)


async def _judged(
    part: NodePlace,
    local: LocalNode,
    coordinator: Coordinator,
    names: Mapping[str, str],
    came: Sequence[int],
    workers: Workers | None,
) -> Report:
    """Judge on a thread, so that the run's deadline holds. Raises TimeoutError.

    Raises UsageError for a report that cannot be written, after sending the other nodes their exit code.
    """
    work = partial(_judge, part, local, coordinator.peers, names, came, workers)
    try:
        return await run_in_thread(work, part.times.end)
    except UsageError as error:
        unwritten = Leave(ExitCode.INCONCLUSIVE, f"{local.name} could not write the report: {error}")
        words = {peer.hello.id: unwritten for peer in coordinator.peers}
        await coordinator.leave(words, time.monotonic() + PARTING_S)
        raise


def _judge(
    part: NodePlace,
    local: LocalNode,
    peers: Sequence[Peer],
    names: Mapping[str, str],
    came: Sequence[int],
    workers: Workers | None,
) -> Report:
    snapshots = [local.snapshot_with_samples(part.collectors), *snapshots_of(part, peers, names, workers)]
    return part.judge(snapshots, missing(snapshots, came), [describe_meeting(part)])


def snapshots_of(
    part: NodePlace, peers: Sequence[Peer], names: Mapping[str, str], workers: Workers | None
) -> Iterator[Snapshot]:
    """Yield the peers' facts, with the verdicts of workers that judged a capture as it arrived."""
    judged, unread, traces = workers.arrived() if workers else {}, workers.lost if workers else {}, Traces()
    for peer in peers:
        name, path = names[peer.hello.id], str(peer.capture)
        if path in unread:
            peer.lost = peer.lost or f"garbled: {unread[path]}"
        if path in judged:
            measured = Replay(_samples(peer), name, older=False)
            facts = collect(measured, [each for each in part.collectors if each.produces in MEASURED], traces=traces)
            known = {kind: fact for kind, fact in facts.items() if not _is_unasked(fact)}
            yield run_snapshot(judged[path], name, known)
        else:
            replay = Replay(_samples(peer), name, older=False) if path in unread else _replay(peer, name)
            yield capture_facts(replay, part.collectors, traces)


def _is_unasked(fact: Any) -> bool:
    """Return whether no sample holds this fact."""
    return isinstance(fact, Absent) and fact.refused == NotCaptured.__name__


async def _open(part: NodePlace, coordinator: Coordinator, secret: bytes) -> None:
    """Listen on MASTER_PORT; if torchrun holds that port, listen elsewhere and announce it in torchrun's store."""
    port = part.launch.master_port or 0
    if not part.launch.agent_store:
        await coordinator.listen(port)
        return
    note = {"port": await coordinator.listen(0), "token": secret.hex()}
    await announce(part.launch.master_addr or "", port, part.attempt, note, part.times.meeting())


async def _test_paths(
    part: NodePlace, local: LocalNode, coordinator: Coordinator, listeners: Listeners, names: Mapping[str, str]
) -> None:
    """Have all nodes test the paths of the plan at the same time; then measure the doubtful ones again."""
    by_rank = {peer.hello.node_rank: peer for peer in coordinator.peers if not peer.extra}
    listening = {
        0: listeners.addresses,
        **{rank: listeners_of(peer) for rank, peer in by_rank.items()},
    }
    node_names = {0: local.name, **{rank: names[peer.hello.id] for rank, peer in by_rank.items()}}
    plans, deadline = plan_mesh(listening, names=node_names), part.times.mesh()
    extras = {peer.hello.id: NodePlan(peer.hello.node_rank) for peer in coordinator.peers if peer.extra}
    listeners.listen(coordinator.mesh_key)
    await coordinator.open_mesh(min(deadline, time.monotonic() + _OPENING_S))
    seen = await _run_plans(coordinator, listeners, plans, extras, deadline)
    samples = {rank: peer.samples or {} for rank, peer in by_rank.items()}
    if retests := doubtful(plans, seen):
        for rank, paths in (await _run_plans(coordinator, listeners, retests, {}, deadline)).items():
            seen[rank] = merged(seen[rank], paths)
    local.add("paths", seen[0])
    for rank, peer in by_rank.items():
        peer.samples = samples[rank] | {"paths": asdict(seen[rank])} if rank in seen else None


async def _run_plans(
    coordinator: Coordinator,
    listeners: Listeners,
    plans: Mapping[int, NodePlan],
    extras: Mapping[str, NodePlan],
    deadline: float,
) -> dict[int, Paths]:
    """Return what the nodes of `plans` measured, by node rank, without nodes that did not report."""
    seconds = deadline - time.monotonic()
    ids = {peer.hello.id: peer.hello.node_rank for peer in coordinator.peers if not peer.extra}
    asked = {name: plans[rank] for name, rank in ids.items() if rank in plans} | dict(extras)
    orders = {name: {"plan": asdict(plan), "seconds": seconds} for name, plan in asked.items()}
    began = time.monotonic()
    asking = asyncio.create_task(coordinator.mesh(orders, deadline + PARTING_S))
    here = await walk(plans[0], listeners, deadline) if 0 in plans else None
    thorough = any(plan.thorough for plan in plans.values())
    patience_s = _STRAGGLERS_S + 2 * (time.monotonic() - began) + _THOROUGH_S * thorough
    await asyncio.wait({asking}, timeout=min(patience_s, deadline + PARTING_S - time.monotonic()))
    asking.cancel()
    remote = {peer.hello.id: peer.samples for peer in coordinator.peers if peer.hello.id in orders and peer.samples}
    seen = {} if here is None else {0: here}
    for name, samples in remote.items():
        with contextlib.suppress(msgspec.ValidationError):  # then the paths are unknown, and the checks say so
            if name in ids:
                paths = msgspec.convert(samples.get("paths"), Paths, str_keys=True)
                seen[ids[name]] = answering(plans[ids[name]], paths)
    return seen


async def _test_rails(
    part: NodePlace, local: LocalNode, coordinator: Coordinator, listeners: Listeners, names: Mapping[str, str]
) -> None:
    """Have all nodes test their rails with each other, if the command line asks for it."""
    if part.rails is None:
        return
    peers = {peer.hello.node_rank: peer for peer in coordinator.peers if not peer.extra and not peer.lost}
    ids = {rank: peer.hello.id for rank, peer in peers.items()}
    fleet = Fleet(
        {0: local.name, **{rank: names[key] for rank, key in ids.items()}},
        ids,
        {0: listeners.addresses, **{rank: listeners_of(peer) for rank, peer in peers.items()}},
    )
    node = RailNode(local.snapshot, part.rails.host, listeners, part.rails.run)
    run = RailRun(part.rails, node, coordinator, fleet, part.times.rails())
    for rank, seen in (await run.run()).items():
        if rank:
            peers[rank].samples = (peers[rank].samples or {}) | {"rails": asdict(seen)}
        else:
            local.add("rails", seen)


def listeners_of(peer: Peer) -> tuple[MeshListener, ...]:
    """Return a node's announced listeners whose addresses are in its own capture.

    Other addresses are never called, because they may belong to a stranger; they are reported.
    """
    announced = parse_listeners(peer.hello.listeners)
    own = addresses_in(peer.capture) if announced else frozenset()
    for each in announced:
        if each.address.partition("%")[0] not in own:
            say(f"node {peer.hello.node_rank} listens at {each.address}, which its capture lacks: not contacted")
    return tuple(each for each in announced if each.address.partition("%")[0] in own)


def addresses_in(capture: Path) -> frozenset[str]:
    """Return the interface addresses in a capture; parse nothing else, because nodes wait for their plan."""
    with contextlib.suppress(UsageError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        text = files.read(capture, limit=bounds.CAPTURE_BYTES)
        line = next((each for each in text.split("\n") if each.startswith(_INTERFACES)), "{}")
        interfaces = json.loads(json.loads(line)["said"]).values()
        return frozenset(str(row["address"]).partition("%")[0] for rows in interfaces for row in rows)
    return frozenset()


def unique_names(local: str, peers: Sequence[Peer]) -> dict[str, str]:
    """Return a unique name for each peer, by its id."""
    names: dict[str, str] = {}
    taken = {local}
    for peer in peers:
        name = peer.hello.name
        while name in taken:
            name = f"{name}#{peer.hello.node_rank}"
        taken.add(name)
        names[peer.hello.id] = name
    return names


def troubles(peers: Sequence[Peer]) -> tuple[Trouble, ...]:
    """Return the peers that joined, but ended or fell silent before they reported."""
    reasons = {peer.hello.id: peer.lost or ("" if peer.samples else _SILENT) for peer in peers}
    split_reasons = [(peer, reasons[peer.hello.id].partition(": ")) for peer in peers if reasons[peer.hello.id]]
    return tuple(Trouble(peer.address, kind, words, peer.hello.node_rank) for peer, (kind, _, words) in split_reasons)


def replayed(peers: Sequence[Peer], names: Mapping[str, str]) -> Iterator[Replay]:
    """Yield the peers' captures with their samples, or with the reason why a sample is missing."""
    for peer in peers:
        yield _replay(peer, names[peer.hello.id])


def _replay(peer: Peer, name: str) -> Replay:
    try:
        replay = received(peer.capture, name)
    except UsageError as error:
        peer.lost = peer.lost or f"garbled: {error}"
        replay = Replay({}, name, older=False)
    return Replay({**replay.answers, **_samples(peer)}, name, False, _rank_answers(replay))


def _samples(peer: Peer) -> Heard:
    samples = {} if peer.extra else peer.samples or {}
    return {(SAMPLE, "paths"): _why_not(peer), **{(SAMPLE, kind): json.dumps(each) for kind, each in samples.items()}}


def _rank_answers(replay: Replay) -> dict[int, Answers]:
    return {rank: local.answers for rank, local in replay.ranks.items()}


def _why_not(peer: Peer) -> HostError:
    if peer.extra:
        return Failed("another node has its rank, so it was not asked")
    return Failed(f"rank 0 lost it: {peer.lost}") if peer.lost else TimedOut(_SILENT)


def _write_captures(folder: Path, replays: Sequence[Replay]) -> None:
    """Write each node's capture with its samples into `folder`, after the report has been delivered."""
    taken: set[str] = set()
    for number, replay in enumerate(replays):
        name = files.named_after(replay.node)
        name = f"{number}-{name}" if name in taken else name
        taken.add(name)
        try:
            save(folder / name, dump(replay.answers, replay.node, ranks=_rank_answers(replay)))
        except UsageError as error:
            say(f"--keep: {error}")


def leave_message(name: str, coordinator: str, share: Share) -> Leave:
    """Return a node's exit code, and the one line that it prints."""
    code, worst = share.exit_code, share.worst
    what = f"FAIL {worst[0]} {worst[1].subject}: {worst[1].message}" if worst else "not everything could be checked"
    return Leave(code, f"{name}: {what}; the report is on {coordinator} (exit {code})" if code else "")
