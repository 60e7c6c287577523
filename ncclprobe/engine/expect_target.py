"""The machine to predict for: a named one, a captured one, or this one."""

import time
from pathlib import Path

from ncclprobe.engine import collect
from ncclprobe.expect import composed
from ncclprobe.expect.pinned import pinned
from ncclprobe.expect.predict import LATEST
from ncclprobe.expect.recognise import ExpectationContext, expectation_context
from ncclprobe.expect.system import NcclVersion
from ncclprobe.expect.table import MOST_SIZES, Outlook, TableRequest, lines, shape_of
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.ops import OPS, sizes
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Absent

LOOK_S = 30.0
_SIZES = (8, 8 << 30, 4)


def machine_of(name: str | None, capture: Path | None, look_s: float = LOOK_S) -> ExpectationContext:
    """Return the machine type `name`, the captured machine, or this one, examined for `look_s` seconds.

    Raises UsageError.
    """
    if name and capture:
        raise UsageError(f"{capture} and --machine {name[:40]!r}: pass only one")
    if name and composed.is_composed(name):
        return ExpectationContext(composed.composed(name), None, f"composed of its parts: {name}")
    if name:
        machine = composed.machine_called(name)
        return ExpectationContext(machine.system(), machine, f"{machine.title or machine.name}, as described")
    collectors = discover("ncclprobe.facts", Collector, {"machine"})
    if capture:
        return expectation_context(collect.replayed([capture], collectors)[0].facts)
    return expectation_context(collect.observed(collectors, time.monotonic() + look_s)[0].facts)


def request(
    here: ExpectationContext,
    nodes: int | None,
    gpus: tuple[int, ...],
    ops: tuple[str, ...],
    nbytes: tuple[int, ...],
    version: NcclVersion | None = None,
) -> TableRequest:
    """Request `ops` of `nbytes` on `nodes` of a known machine, with `gpus` of each (empty: all). Raises UsageError."""
    assert not isinstance(here.system, Absent)
    if len(nbytes) > MOST_SIZES:
        raise UsageError(f"{len(nbytes)} sizes: pass at most {MOST_SIZES}")
    release = version or here.nccl or LATEST
    return TableRequest(
        system=here.system,
        shape=shape_of(gpus or (here.system.gpus,), nodes, here.system.gpus),
        ops=ops,
        sizes=nbytes,
        machine=here.machine,
        version=release,
        settings=pinned(here.settings, release),
    )


def outlook(
    name: str | None,
    capture: Path | None,
    nodes: int | None,
    gpus: tuple[int, ...],
    ops: tuple[str, ...],
    nbytes: tuple[int, ...],
    look_s: float,
) -> Outlook:
    """Return what the machine should reach in `ops`. Raises UsageError.

    `gpus` of each node; empty: all. `nbytes`: the sizes; empty: the usual ones.
    """
    for op in ops:
        if op not in OPS:
            raise UsageError(f"unknown op {op[:40]!r} (expected {', '.join(OPS)})")
    if any(not 0 < each <= bounds.BYTES for each in nbytes):
        raise UsageError(f"sizes: each must be above zero and at most {bounds.BYTES} bytes")
    here = machine_of(name, capture, look_s)
    if isinstance(here.system, Absent):
        return Outlook(None, here.system.why)
    asked = request(here, nodes, gpus, ops, nbytes or sizes(*_SIZES))
    return Outlook(here.machine.name if here.machine else None, here.why, lines(asked))
