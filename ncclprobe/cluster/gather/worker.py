"""Run any node but the first: find node 0, send the capture, test the plan's paths, exit with the given code."""

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from ncclprobe.cluster.gather.part import LocalNode, NodePlace, alone, code_of, say
from ncclprobe.cluster.mesh.listeners import Listeners, mesh_interfaces, reserve_listeners
from ncclprobe.cluster.mesh.plan import NodePlan
from ncclprobe.cluster.mesh.walk import walk
from ncclprobe.cluster.rails.node import RailNode, RailsOrder
from ncclprobe.cluster.rendezvous.messages import Hello, Leave, Refused
from ncclprobe.cluster.rendezvous.reach import Worker, find
from ncclprobe.cluster.rendezvous.store import StoreError, look_up
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.host import SAMPLE
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.snapshot import learned
from ncclprobe.model.values import asdict
from ncclprobe.wire import Key, WireError


async def run_worker(part: NodePlace, local: LocalNode) -> ExitCode:
    """Run this node's part and return its exit code; judge only this node if node 0 is not there."""
    until = part.times.meeting()
    part.progress(f"calling node 0 at {part.launch.master_addr}")
    try:
        target, port, key = await _find_coordinator(part, until)
    except StoreError as error:
        return alone(part, local, f"{error}: rank 0 was not found")
    known = learned(local.snapshot.facts, Interfaces)
    interfaces = {each.address: each.name for each in (known.addresses if known else ())}
    wire, reach = await find(target, port, key, until, interfaces=interfaces)
    local.add("reach", reach)
    if wire is None:
        return alone(part, local, "rank 0 was not reached: only this node was judged")
    listeners = reserve_listeners(mesh_interfaces(local.snapshot, part.backend, reach), part.node_rank, local.name)
    worker, phase = Worker(wire), "while it received this node's facts"
    wanted = part.rails
    rails = RailNode(local.snapshot, wanted.host, listeners, wanted.run) if wanted else None
    try:
        addresses = tuple(listener._asdict() for listener in listeners.addresses)
        hello = Hello(secrets.token_hex(8), part.node_rank, local.name, addresses)
        await worker.join(hello, local.text(), part.times.by(0.7))
        local.add("clock", await worker.clock(part.times.by(0.7)))
        phase = "while the other nodes were examined"
        part.progress("waiting for node 0's verdict on all nodes")
        leave = await _until_leave(part, local, worker, listeners, rails)
    except (WireError, Refused) as error:
        if isinstance(error, WireError) and error.kind == "silent":
            await worker.give_up()
        return alone(part, local, f"rank 0 was lost {phase} ({error}): only this node was judged")
    finally:
        listeners.close()
        worker.close()
    if leave.line:
        say(leave.line)
    return code_of(leave)


async def _until_leave(
    part: NodePlace, local: LocalNode, worker: Worker, listeners: Listeners, rails: RailNode | None
) -> Leave:
    """Follow node 0's orders; return the exit that it sends. Raises WireError, Refused."""
    while not isinstance(instruction := await worker.next_instruction(part.times.end), Leave):
        if isinstance(instruction, RailsOrder):
            answer = await rails.follow(instruction) if rails else {}
            await worker.report({"rails": answer}, part.times.by(0.95))
        else:
            await _follow(part, local, worker, listeners, instruction)
    return instruction


async def _find_coordinator(part: NodePlace, until: float) -> tuple[str, int, Key]:
    """Return the coordinator's address, its port and the key to prove. Raises StoreError."""
    target, port = part.launch.master_addr or "", part.launch.master_port or 0
    if not part.launch.agent_store:
        return target, port, part.token.key or part.token.mark
    note = await look_up(target, port, part.attempt, until)
    try:
        return target, int(note["port"]), bytes.fromhex(note["token"])
    except (KeyError, ValueError, TypeError):
        raise StoreError("garbled", "torchrun's store does not have rank 0's entry") from None


async def _follow(
    part: NodePlace, local: LocalNode, worker: Worker, listeners: Listeners, instruction: bytes | Mapping[str, Any]
) -> None:
    """Listen, or test the paths of a plan and report them. Raises WireError for a malformed plan."""
    if isinstance(instruction, bytes):
        listeners.listen(instruction)
        await worker.listening(part.times.by(0.9))
    else:
        await _walk(part, local, worker, listeners, instruction)


async def _walk(
    part: NodePlace, local: LocalNode, worker: Worker, listeners: Listeners, plan: Mapping[str, Any]
) -> None:
    try:
        mine, seconds = msgspec.convert(plan["plan"], NodePlan, str_keys=True), float(plan["seconds"])
        mine.check()
    except (KeyError, TypeError, ValueError) as error:
        raise WireError("garbled", f"sent an invalid plan: {error}") from None
    seen = await walk(mine, listeners, min(time.monotonic() + seconds, part.times.by(0.9)))
    local.add("paths", seen)
    samples = {name: json.loads(str(local.answers[SAMPLE, name])) for name in ("reach", "clock")}
    await worker.report(samples | {"paths": asdict(seen)}, part.times.by(0.95))
