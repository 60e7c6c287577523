"""What is known of a machine: facts by their type, and why one could not be learned."""

from collections.abc import Mapping
from typing import Any, Literal

from ncclprobe.model.path_rates import PathExpectation
from ncclprobe.model.values import Struct, field


class Absent(Struct, frozen=True):
    """A fact that could not be learned. ``refused`` is the name of the HostError behind it, if there was one."""

    why: str
    refused: str = ""


class Job(Struct, frozen=True):
    """What the user is about to run, as far as the command line says so. A fact like any other to a check.

    `expect_nics`: each node is to have so many fast NICs in NCCL's network. `local`: only this node is asked about,
    whatever the launcher says. `running`: the job asks from within, so that its own ports and memory are in use.
    `mixed_gpus`: nodes have different numbers of GPUs on purpose. `path_rates`: what a
    baseline has of the paths of --path.
    """

    backend: Literal["nccl", "gloo"] = "nccl"
    expect_gpus: int | None = None
    expect_nics: int | None = None
    local: bool = False
    mixed_gpus: bool = False
    running: bool = False
    path_rates: tuple[PathExpectation, ...] = ()


class Snapshot(Struct, frozen=True):
    """All facts of one node, by their type. A value is the fact itself or ``Absent``.

    `ranks`: of each rank of this node that spoke, its own facts, by rank. `answers`: what the node answered, by
    question, for a report to show what findings cite; empty where it is not kept.
    """

    node: str
    facts: Mapping[type, Any]
    ranks: Mapping[int, Mapping[type, Any]] = field(default_factory=dict)
    answers: Mapping[tuple[str | int, ...], Any] = field(default_factory=dict)
