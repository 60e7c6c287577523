"""Fleets of the zoo's machines: each many times, under names and addresses of their own, some with a fault planted."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import zoo

from ncclprobe.engine.collect import collect
from ncclprobe.engine.judge import compare
from ncclprobe.facts.interfaces import Interface, Interfaces
from ncclprobe.facts.machine import System
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.reach import ClockOffset, Gathering
from ncclprobe.host.capture import load
from ncclprobe.model.findings import Verdict
from ncclprobe.model.registry import Check, Collector, discover
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace

CHECKS = {c.key: c for c in discover("ncclprobe.checks", Check) if c.compares}
ROOMS = ("ncclprobe.checks.sync.", "ncclprobe.checks.env.", "ncclprobe.checks.launch.names")
OURS = {name: c for name, c in CHECKS.items() if c.run.__module__.startswith(ROOMS)}
Facts = Mapping[type, Any]
Plant = Callable[[Facts], Facts]


@cache
def learned(name: str) -> Facts:
    return collect(load(zoo.CAPTURES / f"{name}.jsonl"), discover("ncclprobe.facts", Collector))


def elsewhere(interface: Interface, node: int) -> Interface:
    """The same interface with an address of its own."""
    moved = [a for a in interface.addresses if not interface.loopback and a.family == "inet"]
    own = tuple(replace(a, address=f"10.{interface.index % 250}.{node // 250}.{node % 250 + 1}") for a in moved)
    return replace(interface, addresses=own if not interface.loopback else interface.addresses)


def node(name: str, number: int) -> Facts:
    """One more machine of this kind: what no two machines have in common is its own."""
    facts = dict(learned(name))
    system, interfaces = facts[System], facts[Interfaces]
    facts[System] = replace(system, hostname=f"n{number}", boot_id=f"boot-{number}")
    facts[Interfaces] = Interfaces(tuple(elsewhere(each, number) for each in interfaces.all))
    if isinstance(facts[Gpus], Gpus):
        own = tuple(replace(gpu, uuid=f"{gpu.uuid}-{number}") for gpu in facts[Gpus].all)
        facts[Gpus] = replace(facts[Gpus], all=own)
    facts[Gathering] = Gathering(8, 0.1) if number == 0 else Absent("not rank 0")
    facts[ClockOffset] = Absent("rank 0") if number == 0 else ClockOffset(0.002, 0.0001)
    return facts


def fleet(name: str, size: int, plant: Plant | None = None, sick: int = 0) -> list[Snapshot]:
    """`size` machines, the last `sick` of them with the fault."""
    facts = [node(name, number) for number in range(size)]
    for number in range(size - sick, size):
        facts[number] = plant(facts[number]) if plant else facts[number]
    return [Snapshot(f"n{number}", each) for number, each in enumerate(facts)]


def judged(snapshots: list[Snapshot], job: Job | None = None) -> dict[str, Verdict]:
    return {v.key: v for v in compare(snapshots, list(OURS.values()), job or Job())}


def backend(name: str) -> Job:
    return Job("nccl" if isinstance(learned(name)[Gpus], Gpus) else "gloo")


def changed(kind: type, **fields: Any) -> Plant:
    return lambda facts: {**facts, kind: replace(facts[kind], **fields)}


def put(value: Any) -> Plant:
    return lambda facts: {**facts, type(value): value}


def with_setting(name: str, value: str, origin: str = "environment") -> Plant:
    def plant(facts: Facts) -> Facts:
        known = facts[Settings].effective
        return {**facts, Settings: replace(facts[Settings], effective={**known, name: Setting(name, value, origin)})}

    return plant
