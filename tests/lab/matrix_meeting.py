"""Faults before the nodes are together: names, routes, ports, seats, and peers that misbehave.

Where a node cannot reach rank 0 two reports tell: its own says why, and rank 0's says who is missing.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from . import faults
from .hosts import Host
from .matrix import ALL_STOP, PORT, Codes, Named, Row, Setup
from .processes import Running
from .run import until_connected

CALLER = Path(__file__).with_name("caller.py")

MISSING = Named("sync.nodes", "node", ("@seat",))
ALL_MISSING = Named("sync.nodes", "node", ("@seats",))
PATHS = ("path.mtu", "path.rate", "path.loss", "path.delay")


def cut_off(outcome: str, by: str = "@victim", subject: str = "n0:29500") -> Named:
    """What a node says that does not get through to rank 0."""
    return Named("launch.master", subject, (by,), outcome, by=by)


NO_ANSWER = Codes(4, 3, 3)


def unanswered() -> Named:
    """What a node says whose call is taken and not answered: as a busy rank 0 would take it, so nothing is known."""
    return Named("launch.master", says="does not answer", by="@victim", severity="unknown")


def own_names(*changes: str) -> Callable[[Setup], object]:
    """The victim's /etc/hosts has these lines for n0, before the usual ones."""

    def make(setup: Setup) -> None:
        usual = [line for line in setup.lab.names() if line.split()[1] != "n0"]
        setup.use(faults.names(setup.victim, *(setup.say(line) for line in changes), *usual))

    return make


def taken(says: Literal["nothing", "banner", "garbage", "flood"]) -> Callable[[Setup], object]:
    """Another service has MASTER_PORT on n0."""
    return lambda setup: setup.use(faults.taken(setup.hub, PORT, says))


def caller(says: str) -> Callable[[Setup], object]:
    """The victim runs no doctor, but something that calls rank 0 and talks otherwise."""

    def call(setup: Setup, jobs: Mapping[str, Running]) -> None:
        setup.victim.start([sys.executable, str(CALLER), setup.hub.address(), str(PORT), says])

    def make(setup: Setup) -> None:
        setup.absent.add(setup.victim.name)
        setup.after.append(lambda jobs: call(setup, jobs))

    return make


def when_connected(act: Callable[[Running], None]) -> Callable[[Setup], object]:
    """Something happens to the victim's doctor as soon as it has reached rank 0."""

    def hook(setup: Setup, jobs: Mapping[str, Running]) -> None:
        until_connected(setup.victim)
        act(jobs[setup.victim.name])

    return lambda setup: setup.after.append(lambda jobs: hook(setup, jobs))


def same_rank(host: Callable[[Setup], Host]) -> Callable[[Setup], object]:
    """The victim claims the rank of another."""
    return lambda setup: setup.flag(setup.victim, node_rank=str(host(setup).number - 1))


TAKEN: tuple[tuple[Literal["nothing", "banner", "garbage", "flood"], str, float], ...] = (
    ("nothing", "silent", 15.0),
    ("banner", "foreign", 10.0),
    ("garbage", "foreign", 10.0),
    ("flood", "foreign", 10.0),
)


def _meeting() -> tuple[Row, ...]:
    """MASTER_ADDR and MASTER_PORT."""
    return (
        Row(
            "MASTER_ADDR resolves nowhere",
            lambda s: s.set(master_addr="nosuch"),
            (Named("launch.master", "nosuch", by="@victim", blame="job"), ALL_MISSING),
            also=("launch.master", "launch.master"),
        ),
        Row(
            "MASTER_ADDR is a loopback address on one node",
            own_names("127.0.1.1 n0"),
            (Named("launch.master", "n0", says="127.0.1.1", by="@victim", blame="node"), MISSING),
            ALL_STOP,
        ),
        Row(
            "MASTER_PORT is filtered for one node alone",
            lambda s: s.use(faults.filtered(s.hub, port=PORT, peer=s.victim)),
            (cut_off("filtered"), MISSING),
            ALL_STOP,
        ),
        Row(
            "MASTER_PORT is refused by a firewall on rank 0's node",
            lambda s: s.use(faults.refused(s.hub, port=PORT)),
            (cut_off("refused", subject="n0:29500"), ALL_MISSING),
            also=("launch.master",),
        ),
        *(
            Row(
                f"MASTER_PORT is taken by another service, which says {what}",
                taken(what),
                (
                    Named("launch.port", "MASTER_PORT", ("n0",), "29500", blame="job"),
                    unanswered() if kind == "silent" else cut_off(kind),
                ),
                NO_ANSWER if kind == "silent" else ALL_STOP,
                also=("launch.master",),
                deadline_s=deadline_s,
            )
            for what, kind, deadline_s in TAKEN
        ),
    )


def _seats() -> tuple[Row, ...]:
    """Who takes which place."""
    return (
        Row(
            "two nodes claim one rank",
            same_rank(lambda s: s.other),
            (Named("launch.ranks", "rank", ("@victim", "@other"), "2 nodes", blame="job"),),
            hosts=(3, 8),
        ),
    )


def _peers() -> tuple[Row, ...]:
    """Processes that stop, die, or talk otherwise."""
    lost = Named("sync.nodes", "{victim}")
    return (
        Row(
            "a node's doctor is killed while it talks to rank 0",
            when_connected(Running.kill),
            (lost,),
            Codes(4, -9, 0),
            instead=(MISSING,),
            also=("launch.mesh",),
            timeout_s=20.0,
        ),
        Row(
            "a node has another token",
            lambda s: s.use(faults.environment(s.victim, NCCLPROBE_TOKEN="of another run of the lab")),
            (cut_off("stranger"), Named("sync.nodes", "node", ("@seat",), "stranger")),
            ALL_STOP,
        ),
        *(
            Row(
                f"in a node's place something calls rank 0 and says {what}",
                caller(what),
                (Named("sync.nodes", "node", ("@seat",), kind),),
                ALL_STOP,
            )
            for what, kind in (("nothing", "silent"), ("garbage", "foreign"), ("flood", "foreign"))
        ),
    )


MEETING = (*_meeting(), *_seats(), *_peers())
