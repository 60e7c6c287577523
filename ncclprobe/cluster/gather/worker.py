"""Every node but the first: finds node 0, hands over what it knows, tries what the plan says, leaves as it is told."""

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from ncclprobe.cluster.gather.part import Own, Part, alone, code_of, say
from ncclprobe.cluster.mesh import Doors, NodePlan, open_doors, walk
from ncclprobe.cluster.mesh.interfaces import roads
from ncclprobe.cluster.rendezvous.messages import Hello, Leave, Refused
from ncclprobe.cluster.rendezvous.reach import find
from ncclprobe.cluster.rendezvous.store import StoreError, look_up
from ncclprobe.cluster.rendezvous.worker import Spoke
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.host import SAMPLE
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.wire import WireError


async def as_spoke(part: Part, own: Own) -> ExitCode:
    until = part.times.meeting()
    try:
        target, port, secret = await _where(part, until)
    except StoreError as error:
        return alone(part, own, f"{error}: rank 0 was not found")
    interfaces = _by_address(own.snapshot)
    wire, reach = await find(target, port, secret, until, interfaces=interfaces)
    own.add("reach", reach)
    if wire is None:
        return alone(part, own, "rank 0 was not reached: this node was judged alone")
    doors = await open_doors(roads(own.snapshot, part.backend, reach), part.node_rank, own.name, secret)
    spoke, phase = Spoke(wire), "while it took this node's facts"
    try:
        hello = Hello(secrets.token_hex(8), part.node_rank, own.name, tuple(door._asdict() for door in doors.addresses))
        await spoke.join(hello, own.text(), part.times.by(0.7))
        own.add("clock", await spoke.clock(part.times.by(0.7)))
        phase = "while the others were looked at"
        while not isinstance(told := await spoke.told(part.times.end), Leave):
            await _walk(part, own, spoke, doors, told)
    except (WireError, Refused) as error:
        return alone(part, own, f"rank 0 was lost {phase} ({error}): this node was judged alone")
    finally:
        doors.close()
        spoke.close()
    if told.line:
        say(told.line)
    return code_of(told)


async def _where(part: Part, until: float) -> tuple[str, int, bytes]:
    """Address and port of the hub, and the secret."""
    target, port = part.launch.master_addr or "", part.launch.master_port or 0
    if not part.launch.agent_store:
        return target, port, part.token.secret
    note = await look_up(target, port, part.attempt, until)
    try:
        return target, int(note["port"]), bytes.fromhex(note["token"])
    except (KeyError, ValueError, TypeError):
        raise StoreError("garbled", "torchrun's store holds something else than what rank 0 leaves there") from None


async def _walk(part: Part, own: Own, spoke: Spoke, doors: Doors, plan: Mapping[str, Any]) -> None:
    """Follow a plan, and tell what was seen."""
    try:
        mine, seconds = msgspec.convert(plan["plan"], NodePlan, str_keys=True), float(plan["seconds"])
        mine.check()
    except (KeyError, TypeError, ValueError) as error:
        raise WireError("garbled", f"sent a plan that is none: {error}") from None
    seen = await walk(mine, doors, doors.token, min(time.monotonic() + seconds, part.times.by(0.9)))
    own.add("paths", seen)
    samples = {name: json.loads(str(own.answers[SAMPLE, name])) for name in ("reach", "clock")}
    await spoke.report(samples | {"paths": asdict(seen)}, part.times.by(0.95))


def _by_address(snapshot: Snapshot) -> dict[str, str]:
    """The names of this node's interfaces, by address."""
    found = snapshot.facts.get(Interfaces)
    every = found.addresses if isinstance(found, Interfaces) else ()
    return {each.address: each.name for each in every}
