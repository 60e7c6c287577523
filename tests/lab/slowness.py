"""Four hosts, something slow planted on them or nothing, and whether `ncclprobe bandwidth` names it.

All cards are held to the same rate, far below what the machine could do, so that its processors decide nothing.
"""

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import psutil

from ncclprobe.host.run_log import FILE
from ncclprobe.model.report import Report
from ncclprobe.model.values import Struct
from ncclprobe.report import json as as_json

from .faults import shaped
from .hosts import Host, Lab
from .processes import LabError, Running
from .ranks import Ended, begin, finish, wait
from .run import until_connected

HOSTS = 4
USUAL_MBITS, SLOW_MBITS = 400.0, 160.0
VICTIM, ENDS = "n2", ("n1", "n3")
STARVED_SHARE = 0.1
"""Of one processor, by slices of a tenth of a second: what a container's limit does."""
CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
PAIRS = ("-e", "1M")
SWEEP = ("--op", "all_reduce", "-b", "1K", "-e", "1M", "-f", "32", "-n", "5")
DEADLINE_S = 180.0
LONG = ("--timeout", "150", "--phase-timeout", "60")


class Blame(NamedTuple):
    """Who is said to be slow: a culprit of the pairs, or a straggler."""

    kind: str
    nodes: tuple[str, ...]
    rail: int | None = None
    direction: str = "both"

    def __str__(self) -> str:
        rail = f" rail {self.rail}" if self.rail is not None else ""
        if self.kind == "pair":
            return "pair: " + (" with " if self.direction == "both" else " to ").join(self.nodes) + rail
        heading = {"both": "", "out": "out of ", "into": "into "}[self.direction]
        return f"{self.kind}: {heading}{' '.join(self.nodes)}{rail}"


class Plant(Struct, frozen=True):
    """Something slow. `make` shapes the cards of a lab; `starve` takes the processor from a rank that has come.

    `wanted` is what must be said by a run with `options`; nothing where nobody may be blamed.
    """

    name: str
    make: Callable[[Lab, ExitStack], None]
    wanted: Blame | None
    options: tuple[str, ...] = PAIRS
    cards: int = 1
    starve: "Callable[[Lab, Sequence[Running], ExitStack], None] | None" = None

    @property
    def command(self) -> str:
        """Which command looks for it."""
        return "pairs" if self.options == PAIRS else "bandwidth"

    @property
    def how(self) -> str:
        """By what it is looked for."""
        return "pairs" if self.options == PAIRS else "all_reduce"


Verdict = Literal["named", "placed", "nobody", "others", "quiet"]


class Play(Struct, frozen=True):
    """One run: who was blamed, and how it ended."""

    blames: tuple[Blame, ...]
    codes: tuple[int, ...]
    seconds: float


def verdict(wanted: Blame | None, blames: Sequence[Blame]) -> Verdict:
    """What `blames` are worth: `named`, just so; `placed`, at the right place under another name; `others`, somebody
    who is innocent, whoever else is blamed; `nobody`; and `quiet`, nobody where nobody is to be blamed."""
    guilty = set(wanted.nodes) if wanted else set()
    if any(guilty.isdisjoint(blame.nodes) for blame in blames):
        return "others"
    if wanted is None:
        return "quiet"
    return "named" if wanted in blames else "placed" if blames else "nobody"


def blames(report: Report, cards: int = 1) -> tuple[Blame, ...]:
    """All whom a report blames for slowness; a late rank by its host."""
    found = report.localisation
    culprits = [Blame(each.kind, each.nodes, each.rail, each.direction) for each in (found.culprits if found else ())]
    late = [
        Blame("straggler", (f"n{int(finding.subject.removeprefix('rank ')) // cards}",))
        for checked in report.checks
        for finding in checked.findings
        if checked.id == "run.straggler"
    ]
    return (*culprits, *late)


def play(plant: Plant, path: Path, *more: str) -> tuple[Play, Ended]:
    """One run on a lab of its own; the report stays at `path`. Raises LabError where it leaves none."""
    path.unlink(missing_ok=True)
    with Lab(hosts=HOSTS, nics=plant.cards) as lab, ExitStack() as stack:
        plant.make(lab, stack)
        jobs = begin(lab, path, *plant.options, *LONG, *more, cards=plant.cards, command=plant.command)
        if plant.starve:
            until_connected(lab[VICTIM], timeout_s=60.0)
            plant.starve(lab, jobs, stack)
        over = finish(jobs, path, DEADLINE_S)
    if plant.command == "pairs" and over.told.localisation is None:
        raise LabError(f"no pairs were measured: exit codes {over.codes}, {over.ranks[0].err.strip()[-200:]}")
    return Play(blames(over.told, plant.cards), over.codes, over.seconds), over


def all_alike(lab: Lab, stack: ExitStack, *, but: Sequence[tuple[str, int]] = ()) -> None:
    """Hold every card to the usual rate, except some, by host and number."""
    for host in lab.hosts:
        for nic in range(lab.nics):
            if (host.name, nic) not in but:
                stack.enter_context(shaped(host, USUAL_MBITS, nic))


def slow_card(nic: int, ways: Sequence[str] = ("out", "into")) -> Callable[[Lab, ExitStack], None]:
    """This card of the victim is slow in these directions."""

    def make(lab: Lab, stack: ExitStack) -> None:
        all_alike(lab, stack, but=[(VICTIM, nic)])
        stack.enter_context(shaped(lab[VICTIM], SLOW_MBITS if "out" in ways else USUAL_MBITS, nic))
        if "into" in ways:
            stack.enter_context(port_shaped(lab[VICTIM], SLOW_MBITS, nic))

    return make


def slow_pair(lab: Lab, stack: ExitStack) -> None:
    """What two hosts send each other is slow, what they send others is not."""
    one, other = (lab[name] for name in ENDS)
    all_alike(lab, stack, but=[(one.name, 0), (other.name, 0)])
    stack.enter_context(shaped_towards(one, other))
    stack.enter_context(shaped_towards(other, one))


@contextmanager
def port_shaped(host: Host, mbits: float, nic: int = 0) -> Iterator[None]:
    """What the switch sends to the host's card is held to a rate."""
    burst = str(max(16_000, int(mbits * 1e6 / 8 * 0.002)))
    device = ["dev", host.port(nic)]
    shape = ["root", "tbf", "rate", f"{mbits}mbit", "burst", burst, "latency", "50ms"]
    host.lab.ctl.must("tc", "qdisc", "add", *device, *shape)
    try:
        yield
    finally:
        host.lab.ctl.must("tc", "qdisc", "del", *device, "root")


@contextmanager
def shaped_towards(host: Host, peer: Host) -> Iterator[None]:
    """What the host sends to one other is slow, the rest is as usual."""
    tc = ["tc"]
    burst = ["burst", "64k", "cburst", "64k"]
    host.must(*tc, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "10")
    try:
        for minor, mbits in (("1:10", USUAL_MBITS), ("1:20", SLOW_MBITS)):
            rate = ["rate", f"{mbits}mbit", "ceil", f"{mbits}mbit"]
            host.must(*tc, "class", "add", "dev", "eth0", "parent", "1:", "classid", minor, "htb", *rate, *burst)
        which = ["u32", "match", "ip", "dst", f"{peer.address()}/32", "flowid", "1:20"]
        host.must(*tc, "filter", "add", "dev", "eth0", "parent", "1:", "protocol", "ip", *which)
        yield
    finally:
        host.must(*tc, "qdisc", "del", "dev", "eth0", "root")


def held(lab: Lab, jobs: Sequence[Running], stack: ExitStack) -> None:
    """The victim's rank gets a share of one processor only."""
    stack.enter_context(starved(jobs[lab[VICTIM].number - 1], STARVED_SHARE))


@contextmanager
def starved(job: Running, share: float) -> Iterator[None]:
    """From now on the job and all that it started get so much of one processor. LabError without such a cgroup."""
    quota = int(share * PERIOD_US)
    if (CGROUPS / "cpu/cpu.cfs_quota_us").exists():
        group, limit, text = CGROUPS / f"cpu/ncclprobe-lab-{job.pid}", "cpu.cfs_quota_us", str(quota)
    elif "cpu" in (CGROUPS / "cgroup.subtree_control").read_text().split():
        group, limit, text = CGROUPS / f"ncclprobe-lab-{job.pid}", "cpu.max", f"{quota} {PERIOD_US}"
    else:
        raise LabError("no cgroup that limits processors can be made here")
    try:
        group.mkdir()
        (group / limit).write_text(text)
        for process in (psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)):
            (group / "cgroup.procs").write_text(str(process.pid))
    except OSError as error:
        raise LabError(f"{group}: {error}") from error
    try:
        yield
    finally:
        job.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.popen.wait(5.0)
        with contextlib.suppress(OSError):
            group.rmdir()


def stopped(path: Path) -> Ended:
    """A sweep whose third rank is frozen after its first row; the report stays at `path`. LabError without a row."""
    path.unlink(missing_ok=True)
    with Lab(hosts=HOSTS) as lab, ExitStack() as stack:
        all_alike(lab, stack)
        kept = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        jobs = begin(lab, path, "-b", "1K", "-e", "4M", "-f", "16", "--phase-timeout", "5", "--keep", str(kept))
        end_s = time.monotonic() + DEADLINE_S
        while not ((kept / FILE).exists() and '{"sample": {"row":' in (kept / FILE).read_text()):
            if time.monotonic() > end_s or all(job.popen.poll() is not None for job in jobs):
                raise LabError(f"no row to stop after: {jobs[0].err[-300:]}")
            time.sleep(0.02)
        jobs[lab[VICTIM].number - 1].stop()
        free = [job for job in jobs if job is not jobs[lab[VICTIM].number - 1]]
        done = wait(free, DEADLINE_S)
    return Ended(tuple(done), as_json.read(str(path)), max(each.seconds for each in done))


def bad_nic() -> Plant:
    """The one whose matrix is shown."""
    return next(plant for plant in PLANTS if plant.cards == 2 and plant.wanted)


LATE = Blame("straggler", (VICTIM,))
PLANTS: tuple[Plant, ...] = (
    Plant("nothing", all_alike, None),
    Plant("nothing, two cards each", all_alike, None, cards=2),
    Plant("one slow host", slow_card(0), Blame("node", (VICTIM,))),
    Plant("one slow NIC of two", slow_card(1), Blame("rail", (VICTIM,), 1), cards=2),
    Plant("one slow direction, out", slow_card(0, ["out"]), Blame("node", (VICTIM,), None, "out")),
    Plant("one slow direction, into", slow_card(0, ["into"]), Blame("node", (VICTIM,), None, "into")),
    Plant("one slow pair", slow_pair, Blame("pair", ENDS)),
    Plant(f"a rank held to {STARVED_SHARE:.0%} of a core", all_alike, Blame("node", (VICTIM,)), starve=held),
    Plant("nothing", all_alike, None, SWEEP),
    Plant("one slow host (nobody is late)", slow_card(0), None, SWEEP),
    Plant(f"a rank held to {STARVED_SHARE:.0%} of a core", all_alike, LATE, SWEEP, starve=held),
)
