"""What a node saw of its rails: its RDMA ports, each tried with one of another node as NCCL would connect the two."""

from typing import Annotated

import msgspec

from ncclprobe import bounds
from ncclprobe.facts.reach import sample
from ncclprobe.host import Host
from ncclprobe.model.rails import Bytes, RailOutcome, RailPort
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct, field


class RailRow(Struct, frozen=True):
    """One rail as one of its ends saw it: number `rail` of this node, with number `other` of node `to`.

    `together`: how many rails of the two nodes were at work at the same time, this one among them. `leads`: this end
    called the other; its directions ``out`` are what it sent, those of the other end what that one sent. `step` is 0 in
    the plan and counts the rounds of retests from 1. `number` is of the test, the same at both ends. In each direction
    `nbytes` were to go within `patience_s`.
    """

    number: int
    to: int
    rail: int
    other: int
    leads: bool
    outcome: RailOutcome
    together: int = 1
    step: int = 0
    nbytes: Bytes = 0
    patience_s: float = 0.0


class Rails(Struct, frozen=True):
    """What node `me` saw of its rails. `names` are the nodes by rank, `ports` its own in NCCL's order.

    `why`: why there is no port, or what else NCCL would use; `untested`: why nothing was tried although it was asked.
    `cross`: why the job would need rails of different numbers to reach each other; empty: it would not. `moved_gbps` is
    what each port moved before anything was tried, 1e9 bit/s, of ports that say so. `planned` tests were asked of this
    node; fewer rows came where the run had no more time. `plan` says on node 0 what was asked of the fabric,
    `silent` which nodes stopped answering meanwhile.
    """

    me: int
    names: dict[int, str]
    ports: tuple[RailPort, ...] = ()
    why: str = ""
    untested: str = ""
    cross: str = ""
    moved_gbps: dict[str, float] = field(default_factory=dict)
    planned: int = 0
    rows: Annotated[tuple[RailRow, ...], msgspec.Meta(max_length=bounds.RAIL_ROWS)] = ()
    plan: str = ""
    silent: tuple[str, ...] = ()


@collector
def rails(host: Host) -> Rails:
    """Read what this node saw of its rails."""
    return sample(host, "rails", Rails)
