"""A known number of calls between two looks at something that counts: NICs, above all.

Nobody starts before everybody's first look is over, and nobody's last look begins before all calls are: what comes
between the looks is these calls, and what others do on the machine meanwhile.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ncclprobe import units
from ncclprobe.model.registry import discover
from ncclprobe.ops import DTYPES, OPS
from ncclprobe.probes import Probe
from ncclprobe.probes.buffers import allocate, footprint
from ncclprobe.probes.clock import clock_of
from ncclprobe.probes.plan import Beat, Bench, Exchange, Plan


@dataclass(frozen=True, slots=True)
class Calls:
    """So many calls of `nbytes` (as printed) of one operation."""

    op: str
    nbytes: int
    number: int


def counted(
    plan: Plan, wanted: Mapping[str, Calls], exchange: Exchange, beat: Beat, look: Callable[[], Any]
) -> Iterator[tuple[Calls, Any, Any]]:
    """Make the calls of each operation over the default group, on all ranks alike, with a `look` before and after.

    Raises ProbeError where a call fails.
    """
    if not wanted:
        return
    device, itemsize = torch.device(plan.device), DTYPES[plan.dtype]
    shapes = {name: OPS[name].shape(calls.nbytes, plan.ranks, itemsize) for name, calls in wanted.items()}
    need = footprint(max(max(shape.send_bytes, shape.recv_bytes) for shape in shapes.values()), 1)
    buffers = allocate(need, getattr(torch, plan.dtype), device)
    bench = Bench(plan, exchange, beat, clock_of(device), buffers)
    probes = {probe.name: probe for probe in discover("ncclprobe.probes", Probe)}
    for name, calls in wanted.items():
        what = f"{name} {units.size(calls.nbytes)} counted"
        slot = bench.slots(shapes[name], OPS[name].places[0])[0]
        call = probes[name].run(slot)
        beat(f"{what}, first look")
        before = look()
        _all_here(exchange)
        with bench.phase(f"{what}, {calls.number} calls"):
            for _ in range(calls.number):
                call()
            bench.clock.synchronise()
        beat(f"{what}, last look")
        _all_here(exchange)
        yield calls, before, look()


def _all_here(exchange: Exchange) -> None:
    exchange.collect(None)
    exchange.share(None)
