"""What the parent asks its child, and what the child answers: JSON, each with its length before it."""

from typing import Literal

from ncclprobe.model.rails import (
    RailAddress,
    RailArrival,
    RailDirection,
    RailFailure,
    RailPort,
    RailStepName,
    RailStream,
    RailTest,
)
from ncclprobe.model.values import Struct

BROKEN = 70
"""The exit code of a child that met a defect of ncclprobe's: EX_SOFTWARE of sysexits.h."""
PLACE_BYTES = 64
"""Bytes of shared memory for the name of the child's present call."""


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. `step` is the step that a failure belongs to. ``stop`` ends the step that is under way; it has no
    answer.

    ``open`` needs `port` and `test`, ``connect`` the `peer`; ``renew`` makes new queue pairs. ``prepare`` fills both
    regions for `direction`, ``stream`` writes and reads as requested, ``verify`` examines the data that arrived.
    """

    do: Literal["open", "renew", "connect", "ping", "prepare", "stream", "verify", "stop"]
    step: RailStepName = "open"
    seconds: float = 0.0
    leads: bool = False
    port: RailPort | None = None
    test: RailTest | None = None
    peer: RailAddress | None = None
    direction: RailDirection = "out"
    writes: bool = False
    reads: bool = False

    @property
    def way(self) -> RailDirection | None:
        """Return the direction that a failure is of; None: of none."""
        return self.direction if self.step in ("prepare", "write", "verify") else None


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer: what the request asks for, or `failure`. `events`: all that the device reported so far."""

    address: RailAddress | None = None
    half_round_trip_us: tuple[float, ...] = ()
    stream: RailStream | None = None
    arrival: RailArrival | None = None
    events: tuple[str, ...] = ()
    stopped: bool = False
    failure: RailFailure | None = None
