"""Two hosts over a shaped link: what ncclprobe measures there beside iperf3, in turn."""

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any

from ncclprobe.model.measurement import Measurement
from ncclprobe.model.report import Report
from ncclprobe.model.values import Struct

from . import faults
from .hosts import Lab, why_not
from .processes import LabError
from .ranks import measured

NBYTES = {100: 4 << 20, 500: 16 << 20, 1000: 32 << 20}
"""Bytes of a message by Mbit/s: a third of a second on the wire, far beyond what the shaper lets through at once."""
IPERF_S, OMITTED_S = 2.0, 0.5
SECONDS = 3.0
"""Of each row of ncclprobe's: about what iperf3 gets."""
OURS = ("all_reduce", "sendrecv", "pairs one way", "pairs both ways")
THEIRS = ("iperf3 one way", "iperf3 both ways")


def missing() -> str:
    """Why this cannot be measured here; empty where it can."""
    return why_not("iperf3")


class Round(Struct, frozen=True):
    """Mbit/s of payload in each direction, by what was measured; `order`: whether iperf3 went first."""

    mbits: int
    iperf_first: bool
    rates: dict[str, float]


def received_mbits(text: str) -> list[float]:
    """What `iperf3 -J` says arrived, Mbit/s: one number, or with --bidir one per direction.

    Raises LabError for a test that failed and for what is no such text.
    """
    try:
        said: dict[str, Any] = json.loads(text)
        if "error" in said:
            raise LabError(f"iperf3: {said['error']}")
        sums = [said["end"][key] for key in ("sum_received", "sum_received_bidir_reverse") if key in said["end"]]
        rates = [each["bits_per_second"] / 1e6 for each in sums]
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(f"iperf3 said {text[:200]!r}") from error
    if not rates or not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise LabError(f"iperf3 saw nothing arrive: {text[:200]!r}")
    return rates


def bus_mbits(rows: tuple[Measurement, ...], op: str) -> float:
    """The bus bandwidth of the row of this op, Mbit/s. Raises LabError without one."""
    found = [row.busbw_GBps for row in rows if row.op == op]
    if not found:
        raise LabError(f"no row of {op}")
    return found[0] * 8e3


def pair_mbits(report: Report, both: bool) -> float:
    """What pairs got in a direction, Mbit/s: the median of both. Raises LabError without any."""
    found = [row.GBps for row in report.pairs if row.both is both and not row.step]
    if not found:
        raise LabError("no pair was measured")
    return median(found) * 8e3


def play(mbits: int, rounds: int) -> Iterator[Round]:
    """So many rounds over one link; who goes first changes."""
    with Lab(hosts=2) as lab, ExitStack() as shapes:
        for host in lab.hosts:
            shapes.enter_context(faults.shaped(host, float(mbits)))
        server = lab["n1"].start(["iperf3", "-s", "--forceflush"])
        server.until_says("listening")
        for number in range(rounds):
            first = number % 2 == 0
            parts = (iperf, ours) if first else (ours, iperf)
            rates: dict[str, float] = {}
            for part in parts:
                rates |= part(lab, mbits)
            yield Round(mbits, first, rates)


def iperf(lab: Lab, mbits: int) -> dict[str, float]:
    """iperf3 from n0 to n1, then both ways at once."""
    argv = ["iperf3", "-c", lab["n1"].address(), "-t", f"{IPERF_S:g}", "-O", f"{OMITTED_S:g}", "-J"]
    found = {}
    for name, more in zip(THEIRS, ([], ["--bidir"]), strict=True):
        done = lab["n0"].run([*argv, *more], timeout_s=30.0)
        rates = received_mbits(done.out)
        found[name] = sum(rates) / len(rates)
    return found


def ours(lab: Lab, mbits: int) -> dict[str, float]:
    """The collectives in one run, and the pair in another."""
    size = str(NBYTES.get(mbits, mbits * 40_000))
    path = lab.folder / "report.json"
    few = ["--budget", f"{SECONDS:g}", "-w", "1", "--phase-timeout", "60"]
    rows = measured(lab, path, "--op", "all_reduce,sendrecv", "-b", size, "-e", size, *few).told.measurements
    paired = measured(lab, path, "-e", size, command="pairs").told
    found = {op: bus_mbits(rows, op) for op in OURS[:2]}
    return found | {name: pair_mbits(paired, both) for name, both in zip(OURS[2:], (False, True), strict=True)}
