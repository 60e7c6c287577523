"""The sweep of a run, and whatever failed in it once more: nobody is blamed for what happens once."""

import socket
from collections.abc import Callable, Sequence
from typing import Any

from ncclprobe.host import Host
from ncclprobe.model.measurement import Disturbance, SkippedRow
from ncclprobe.model.values import asdict, replace
from ncclprobe.probes.plan import Exchange, Plan
from ncclprobe.session.measure import interference
from ncclprobe.session.measure.interference import Reading
from ncclprobe.session.measure.recorder import Recorder

MOST = 16
"""Operations and sizes that are measured again, the largest first: where everything is slow, these stand for all."""
Beat = Callable[[str], None]


def sweep(plan: Plan, exchange: Exchange, beat: Beat, host: Host, recorder: Recorder | None, repeat: int) -> None:
    """Measure `plan` on all ranks alike, up to `repeat` times again what failed, and ask what else was going on.

    Rows go to rank 0's `recorder`. Raises what :func:`ncclprobe.probes.sweep.run` does.
    """
    from ncclprobe.probes import sweep

    before = interference.read(host)
    for row in sweep.run(plan, exchange, beat, host=host):
        if recorder is None:
            continue
        if isinstance(row, SkippedRow):
            recorder.skip(row)
        else:
            recorder.add(row)
    for turn in range(repeat + 1):
        beat("decide what to measure again")
        asked = exchange.share(recorder.failing(MOST) if recorder and turn < repeat else [])
        if not asked:
            break
        for op, nbytes in asked:
            for row in sweep.run(replace(plan, ops=(op,), sizes=(nbytes,)), exchange, beat, host=host):
                if recorder and not isinstance(row, SkippedRow):
                    recorder.add_retest(row)
    _ask_what_else(plan, exchange, beat, host, recorder, before)


def _ask_what_else(
    plan: Plan, exchange: Exchange, beat: Beat, host: Host, recorder: Recorder | None, before: Reading | None
) -> None:
    """Where rows still fail: what disturbed them, by every rank's word."""
    if not exchange.share(bool(recorder and recorder.failing(1))):
        return
    beat("ask what else was going on")
    after, here = interference.read(host), socket.gethostname()
    gpus = interference.gpus_now(host) if plan.backend == "nccl" else None
    throttled = [asdict(each) for each in interference.of_gpus(here, gpus)] if gpus else []
    said = exchange.collect([here, *(asdict(each) if each else None for each in (before, after)), throttled])
    if said and recorder:
        recorder.disturbed(_together(said))


def _together(said: Sequence[Any]) -> tuple[Disturbance, ...]:
    """What all ranks say, of processors by host and of GPUs, each thing once."""
    readings = [
        (name, Reading(**first) if first else None, Reading(**last) if last else None) for name, first, last, _ in said
    ]
    gpus = [Disturbance(**each) for *_, throttled in said for each in throttled]
    return tuple(dict.fromkeys([*interference.together(readings), *gpus]))
