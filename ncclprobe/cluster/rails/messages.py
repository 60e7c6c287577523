"""What node 0 asks of a node, and what the node answers: see :mod:`ncclprobe.cluster.rendezvous.messages`."""

from typing import Annotated, Literal

import msgspec

from ncclprobe import bounds
from ncclprobe.model.rails import RailPort, RailTest
from ncclprobe.model.values import Struct, field

_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


class RailJob(Struct, frozen=True, kw_only=True):
    """One test as one of its ends does it: on its rail `rail`, with rail `other` of node `to`.

    The end that `leads` calls the other at `address` and `port`, from its own address `source`. `queue_pairs`: what
    both ends agree on. `gpu`: with the memory of the rail's GPU.
    """

    number: _Number
    to: _Number
    rail: _Number
    other: _Number
    leads: bool
    queue_pairs: _Number
    test: RailTest
    together: _Number = 1
    step: _Number = 0
    gpu: bool = False
    address: str = ""
    port: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)] = 0
    source: str = ""


class RailsOrder(Struct, frozen=True):
    """``list``: say which rails this node has, and what they move by themselves; ``test``: do `jobs`, all at once.

    The answer is due in `seconds`.
    """

    do: Literal["list", "test"]
    seconds: float
    jobs: Annotated[tuple[RailJob, ...], msgspec.Meta(max_length=bounds.RAIL_PORTS)] = ()


class RailEnds(Struct, frozen=True):
    """The rails of a node, in NCCL's order; `gpus`: which of them can use the memory of a GPU.

    `rates_gbps` of each, 0: not known. `moved_gbps`: what each port (``mlx5_0:1``) carried while nothing was tried.
    """

    ports: Annotated[tuple[RailPort, ...], msgspec.Meta(max_length=bounds.RAIL_PORTS)] = ()
    rates_gbps: tuple[float, ...] = ()
    gpus: tuple[bool, ...] = ()
    why: str = ""
    cross: str = ""
    moved_gbps: dict[str, float] = field(default_factory=dict)
