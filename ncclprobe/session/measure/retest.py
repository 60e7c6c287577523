"""The sweep of a run, and a retest of what failed in it: a single slow row may be chance."""

import socket
from collections.abc import Sequence
from typing import Any

from ncclprobe import units
from ncclprobe.errors import UsageError
from ncclprobe.host import Host
from ncclprobe.model.measurement import Disturbance, SkippedRow
from ncclprobe.model.values import asdict, replace
from ncclprobe.ops import OPS
from ncclprobe.probes.plan import Exchange, Plan, SetPhase
from ncclprobe.session.measure import interference
from ncclprobe.session.measure.interference import Reading
from ncclprobe.session.measure.recorder import Recorder

MOST = 64
"""Operations and sizes that are measured again, the largest first. A row beyond these is not said to fail."""


def sweep(
    plan: Plan, exchange: Exchange, set_phase: SetPhase, host: Host, recorder: Recorder | None, repeat: int
) -> None:
    """Measure `plan` on every rank, retest what failed up to `repeat` times, and look for disturbances.

    Rows go to rank 0's `recorder`. Raises what :func:`ncclprobe.probes.sweep.run` does.
    """
    from ncclprobe.probes import sweep

    before = interference.read(host)
    if recorder:
        recorder.progress.expect(sum(len(OPS[op].places) for op in plan.ops) * len(plan.sizes))
    reach = recorder.progress.reach if recorder else _unheard
    for row in sweep.run(plan, exchange, set_phase, host=host, reach=reach):
        if recorder is None:
            continue
        if isinstance(row, SkippedRow):
            recorder.skip(row)
        else:
            recorder.add(row)
    for turn in range(repeat + 1):
        set_phase("decide what to measure again")
        failing = exchange.share(recorder.failing(MOST) if recorder and turn < repeat else [])
        if not failing:
            break
        for op, nbytes in failing:
            again = replace(plan, ops=(op,), sizes=(nbytes,))
            try:
                for row in sweep.run(again, exchange, set_phase, host=host, reach=reach):
                    if recorder and not isinstance(row, SkippedRow):
                        recorder.add_retest(row)
            except UsageError as error:  # on all ranks: the memory that the row had is no longer free
                if recorder:
                    recorder.note(f"{op} {units.size(nbytes)} was not measured again: {error}")
    _look_for_disturbances(plan, exchange, set_phase, host, recorder, before)


def _unheard(_row: str, _precision: float) -> None:
    """Show nothing: only rank 0 has a line of progress."""


def _look_for_disturbances(
    plan: Plan, exchange: Exchange, set_phase: SetPhase, host: Host, recorder: Recorder | None, before: Reading | None
) -> None:
    """Record what disturbed the run, as every rank sees it, where rows still fail."""
    if not exchange.share(bool(recorder and recorder.failing(1))):
        return
    set_phase("look for disturbances")
    after, here = interference.read(host), socket.gethostname()
    gpus = interference.gpus_now(host) if plan.backend == "nccl" else None
    throttled = [asdict(each) for each in interference.of_gpus(here, gpus)] if gpus else []
    received = exchange.collect([here, *(asdict(each) if each else None for each in (before, after)), throttled])
    if received and recorder:
        recorder.disturbed(_merged(received))


def _merged(received: Sequence[Any]) -> tuple[Disturbance, ...]:
    """Merge what all ranks report: of processors by host and of GPUs, each once."""
    readings = [
        (name, Reading(**first) if first else None, Reading(**last) if last else None)
        for name, first, last, _ in received
    ]
    gpus = [Disturbance(**each) for *_, throttled in received for each in throttled]
    return tuple(dict.fromkeys([*interference.of_all_hosts(readings), *gpus]))
