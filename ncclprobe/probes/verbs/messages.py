"""Requests of the parent and answers of the child: length-prefixed JSON."""

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
"""Exit code of a child that met a defect of ncclprobe: EX_SOFTWARE of sysexits.h."""
PLACE_BYTES = 64
"""Bytes of shared memory for the name of the child's current call."""


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request; a failure belongs to its `step`. ``stop`` ends the current step and has no answer.

    ``open`` needs `port` and `test`, ``connect`` the `peer`; ``renew`` makes new queue pairs. ``prepare`` fills both
    regions for `direction`, ``stream`` writes and reads as requested, ``verify`` checks the data that arrived.
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
        """Direction that a failure belongs to; None for steps without one."""
        return self.direction if self.step in ("prepare", "write", "verify") else None


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The requested result, or `failure`. `events`: all that the device has reported so far."""

    address: RailAddress | None = None
    half_round_trip_us: tuple[float, ...] = ()
    stream: RailStream | None = None
    arrival: RailArrival | None = None
    events: tuple[str, ...] = ()
    stopped: bool = False
    failure: RailFailure | None = None
