"""Steps of training between hosts over shaped links: what was predicted beside what was measured."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ncclprobe.model.traffic import GroupRow, StepRow
from ncclprobe.model.values import Struct

from . import faults
from .hosts import Lab
from .ranks import measured

MODEL = ("--params", "500K", "--layers", "4", "--tokens", "64", "--micro-batches", "2", "--bucket", "512K")
COMPUTE_S = 0.1
"""Of a step: about what its calls take over 500 Mbit/s, so that there is something to hide and somewhere to hide it."""
ASKED = " ".join(("all", *MODEL, "--compute", f"{COMPUTE_S:g}"))


class Steps(Struct, frozen=True):
    """The rows of one lab: so many hosts, one rank each, each sending at most `mbits`."""

    hosts: int
    mbits: int
    rows: tuple[StepRow, ...]


def play(hosts: int, mbits: int) -> Steps:
    """All strategies once. Raises LabError where a run writes no report."""
    with _shaped(hosts, mbits) as lab:
        asked = ("all", *MODEL, "--compute", f"{COMPUTE_S:g}")
        told = measured(
            lab, lab.folder / "report.json", *asked, *_ONLY, deadline_s=_DEADLINE_S, command="workload"
        ).told
    return Steps(hosts, mbits, told.steps)


def grouped(mbits: int) -> tuple[GroupRow, ...]:
    """``tp=2,dp=2`` on two hosts of two cards: apart, and together."""
    with _shaped(2, mbits, nics=2) as lab:
        asked = ("--groups", "tp=2,dp=2", "-e", "1M")
        return measured(
            lab, lab.folder / "report.json", *asked, *_ONLY, cards=2, deadline_s=_DEADLINE_S, command="workload"
        ).told.groups


_DEADLINE_S = 260.0
_ONLY = ("--timeout", "240")


@contextmanager
def _shaped(hosts: int, mbits: int, nics: int = 1) -> Iterator[Lab]:
    """A lab whose cards all send at most so much."""
    with Lab(hosts=hosts, nics=nics) as lab, ExitStack() as shapes:
        for host in lab.hosts:
            for nic in range(nics):
                shapes.enter_context(faults.shaped(host, float(mbits), nic))
        yield lab
