"""Make a known number of calls between two readings of counters: those of NICs, above all.

No rank starts before every rank's first reading is over, and no last reading begins before all calls are: what comes
between the readings is these calls, and what others do on the machine meanwhile.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ncclprobe import units
from ncclprobe.model.registry import discover
from ncclprobe.model.values import Struct
from ncclprobe.ops import DTYPES, OPS
from ncclprobe.probes.buffers import allocate, footprint
from ncclprobe.probes.clock import clock_of
from ncclprobe.probes.plan import Exchange, Plan, SetPhase, SweepContext
from ncclprobe.probes.probe import Probe


class Calls(Struct, frozen=True):
    """So many calls of `nbytes` (as printed) of one operation."""

    op: str
    nbytes: int
    number: int


def count_traffic(
    plan: Plan, wanted: Mapping[str, Calls], exchange: Exchange, set_phase: SetPhase, read_counters: Callable[[], Any]
) -> Iterator[tuple[Calls, Any, Any]]:
    """Make the calls of each operation over the default group, on all ranks, between two `read_counters`.

    Raises ProbeError where a call fails.
    """
    if not wanted:
        return
    device, itemsize = torch.device(plan.device), DTYPES[plan.dtype]
    shapes = {name: OPS[name].shape(calls.nbytes, plan.ranks, itemsize) for name, calls in wanted.items()}
    need = footprint(max(max(shape.send_bytes, shape.recv_bytes) for shape in shapes.values()), 1)
    buffers = allocate(need, getattr(torch, plan.dtype), device)
    context = SweepContext(plan, exchange, set_phase, clock_of(device), buffers)
    probes = {probe.name: probe for probe in discover("ncclprobe.probes", Probe)}
    for name, calls in wanted.items():
        phase_name = f"{name} {units.size(calls.nbytes)} counted"
        view = context.views(shapes[name], OPS[name].places[0])[0]
        call = probes[name].run(view)
        set_phase(f"{phase_name}, first look")
        before = read_counters()
        _barrier(exchange)
        with context.phase(f"{phase_name}, {calls.number} calls"):
            for _ in range(calls.number):
                call()
            context.clock.synchronise()
        set_phase(f"{phase_name}, last look")
        _barrier(exchange)
        yield calls, before, read_counters()


def _barrier(exchange: Exchange) -> None:
    exchange.collect(None)
    exchange.share(None)
