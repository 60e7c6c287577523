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
from .run import doctor, until_connected

CALLER = Path(__file__).with_name("caller.py")
NOWHERE = "192.0.2.1"  # TEST-NET-1, RFC 5737

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


def loopback_of_rank_0(setup: Setup) -> None:
    """As Debian's installer leaves it."""
    usual = [line for line in setup.lab.names() if line.split()[1] != "n0"]
    setup.use(faults.names(setup.hub, "127.0.1.1 n0", *usual))


def unrouted(setup: Setup) -> None:
    setup.set(master_addr=NOWHERE)
    for host in setup.lab.hosts:
        setup.use(faults.no_default_route(host))


def second_address(setup: Setup) -> None:
    """The victim's n0 is n0's other card: it gets there, by another way."""
    own_names(f"{setup.hub.address(1)} n0")(setup)


def when_connected(act: Callable[[Running], None], to_others: bool = False) -> Callable[[Setup], object]:
    """Something happens to the victim's doctor as soon as it has reached rank 0, or tries paths to others."""

    def hook(setup: Setup, jobs: Mapping[str, Running]) -> None:
        until_connected(setup.victim, to_others)
        act(jobs[setup.victim.name])

    return lambda setup: setup.after.append(lambda jobs: hook(setup, jobs))


def without(host: Callable[[Setup], Host]) -> Callable[[Setup], object]:
    """Nobody starts the doctor on that host."""

    def make(setup: Setup) -> None:
        setup.absent.add(host(setup).name)

    return make


def host_down(setup: Setup) -> None:
    """No doctor runs on n0, and no packet reaches it."""
    without(lambda s: s.hub)(setup)
    setup.use(faults.link_down(setup.hub))


def fewer_at_rank_0(setup: Setup) -> None:
    setup.flag(setup.hub, nnodes=str(len(setup.lab.hosts) - 1))


def more_at_victim(setup: Setup) -> None:
    setup.flag(setup.victim, nnodes=str(len(setup.lab.hosts) + 1))


def same_rank(host: Callable[[Setup], Host]) -> Callable[[Setup], object]:
    """The victim claims the rank of another."""
    return lambda setup: setup.flag(setup.victim, node_rank=str(host(setup).number - 1))


def alone_under_torchrun(setup: Setup) -> dict[str, Running]:
    """torchrun as it is typed first: neither --nnodes nor --nproc-per-node."""
    report = ["--json", str(setup.lab.folder / "n0.json")]
    argv = [sys.executable, "-m", "torch.distributed.run", *doctor(setup, ONE_RANK)[1:], *report]
    return {"n0": setup.hub.start(argv, {"OMP_NUM_THREADS": "1"})}


ONE_RANK = Row(
    "torchrun without --nproc-per-node starts one rank on a node of several GPUs",
    lambda setup: None,
    (Named("launch.ranks", "LOCAL_WORLD_SIZE", ("@all",), "1 on a node of 2 GPUs", blame="job", severity="warn"),),
    Codes(0, 0, 0),
    hosts=(1,),
    also=("host.cpu",),  # the processors of the GPUs that are none are not on this machine
    gpus=True,
    deadline_s=20.0,
    start=alone_under_torchrun,
)


TAKEN: tuple[tuple[Literal["nothing", "banner", "garbage", "flood"], str, float], ...] = (
    ("nothing", "silent", 15.0),
    ("banner", "foreign", 10.0),
    ("garbage", "foreign", 10.0),
    ("flood", "foreign", 10.0),
)


def _meeting() -> tuple[Row, ...]:
    """MASTER_ADDR and MASTER_PORT."""
    filtered = "no answer"
    return (
        Row(
            "MASTER_ADDR is nobody's address, behind the default route",
            lambda s: s.set(master_addr=NOWHERE),
            (ALL_MISSING, cut_off("filtered", subject=NOWHERE)),
            also=("launch.master", "launch.master"),
        ),
        Row(
            "no route leads to MASTER_ADDR",
            unrouted,
            (Named("launch.master", NOWHERE, ("@victim",), "no route", by="@victim", blame="node"), ALL_MISSING),
            also=("launch.master", "launch.master", "launch.master"),
        ),
        Row(
            "MASTER_ADDR resolves nowhere",
            lambda s: s.set(master_addr="nosuch"),
            (Named("launch.master", "nosuch", by="@victim", blame="job"), ALL_MISSING),
            also=("launch.master", "launch.master"),
        ),
        Row(
            "MASTER_ADDR does not resolve on one node",
            own_names(),
            (Named("launch.master", "n0", by="@victim"), MISSING),
            ALL_STOP,
        ),
        Row(
            "MASTER_ADDR is a loopback address on one node",
            own_names("127.0.1.1 n0"),
            (Named("launch.master", "n0", says="127.0.1.1", by="@victim", blame="node"), MISSING),
            ALL_STOP,
        ),
        Row(
            "MASTER_ADDR is a loopback address on rank 0's own node",
            loopback_of_rank_0,
            (Named("launch.master", "n0", ("n0",), "127.0.1.1", blame="node"),),
            Codes(4, 0, 0),
            also=("launch.names",),
        ),
        Row(
            "MASTER_ADDR leads one node to an address that nobody has",
            own_names("10.77.0.199 n0"),
            (cut_off("10.77.0.199"), MISSING),
            ALL_STOP,
        ),
        Row(
            "MASTER_ADDR leads one node to another address, which works",
            second_address,
            (Named("launch.master", "n0", ("@victim",), "10.77.1.1", severity="warn", of_two=()),),
            Codes(0, 0, 0),
            nics=2,
        ),
        Row(
            "MASTER_PORT is filtered on rank 0's node",
            lambda s: s.use(faults.filtered(s.hub, port=PORT)),
            (cut_off(f"filtered from {{address}} (eth0): {filtered}"), ALL_MISSING),
            also=("launch.master",),
        ),
        Row(
            "MASTER_PORT is filtered for one node alone",
            lambda s: s.use(faults.filtered(s.hub, port=PORT, peer=s.victim)),
            (cut_off("filtered"), MISSING),
            ALL_STOP,
        ),
        Row(
            "MASTER_PORT is filtered for one node alone, under Slurm",
            lambda s: s.use(faults.filtered(s.hub, port=PORT, peer=s.victim)),
            (cut_off("filtered"), Named("sync.nodes", "{victim}")),
            Codes(4, 4, None),
            launcher="srun",
            deadline_s=20.0,
        ),
        Row(
            "MASTER_PORT is refused by a firewall on rank 0's node",
            lambda s: s.use(faults.refused(s.hub, port=PORT)),
            (cut_off("refused", subject="n0:29500"), ALL_MISSING),
            also=("launch.master",),
        ),
        Row(
            "MASTER_PORT is refused, under mpirun",
            lambda s: s.use(faults.refused(s.hub, port=PORT)),
            (cut_off("refused"), ALL_MISSING),
            also=("launch.master",),
            launcher="mpirun",
            deadline_s=25.0,
        ),
        Row(
            "rank 0's doctor was never started",
            without(lambda s: s.hub),
            (cut_off("refused"),),
            also=("launch.master",),
        ),
        Row(
            "rank 0's host is down",
            host_down,
            (cut_off("unreachable"),),
            also=("launch.master",),
        ),
        Row(
            "MASTER_PORT is filtered, IPv6 only",
            lambda s: s.use(faults.filtered(s.hub, port=PORT)),
            (cut_off("filtered from fd77:"), ALL_MISSING),
            also=("launch.master",),
            family=6,
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
        Row("a node is missing", without(lambda s: s.victim), (MISSING,), ALL_STOP),
        Row(
            "two nodes claim one rank",
            same_rank(lambda s: s.other),
            (Named("launch.ranks", "rank", ("@victim", "@other"), "2 nodes", blame="job"),),
            hosts=(3, 8),
        ),
        Row(
            "two nodes claim rank 0",
            same_rank(lambda s: s.hub),
            (MISSING,),
            Codes(4, None, 4),
            also=("sync.nodes", "launch.master"),
        ),
        Row(
            "a node expects one node more than the others",
            more_at_victim,
            (Named("launch.vars", "nnodes", of_two=(), blame="job"),),
        ),
        Row(
            "rank 0 expects one node less than there are",
            fewer_at_rank_0,
            (Named("launch.vars", "nnodes", ("n0",), blame="job"),),
            Codes(4, 4, None),
            hosts=(8,),
        ),
        Row(
            "a node has another MASTER_PORT",
            lambda s: s.flag(s.victim, master_port=str(PORT + 1)),
            (cut_off("refused", subject="n0:29501"), MISSING),
            ALL_STOP,
        ),
        ONE_RANK,
    )


def _peers() -> tuple[Row, ...]:
    """Processes that stop, die, or talk otherwise."""
    lost = Named("sync.nodes", "{victim}")
    return (
        Row(
            "a node's doctor is stopped while it talks to rank 0",
            when_connected(Running.stop),
            (lost,),
            Codes(4, None, 0),
            instead=(MISSING,),
            also=("sync.nodes", "launch.mesh", "path.mtu"),
            deadline_s=22.0,
            timeout_s=20.0,
            frozen=True,
        ),
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
            "a node's doctor is stopped while paths are tried",
            when_connected(Running.stop, to_others=True),
            (lost,),
            Codes(4, None, 0),
            also=(*PATHS, "launch.mesh"),
            deadline_s=22.0,
            timeout_s=20.0,
            frozen=True,
        ),
        Row(
            "a node's doctor is killed while paths are tried",
            when_connected(Running.kill, to_others=True),
            (lost,),
            Codes(4, -9, 0),
            also=(*PATHS, "launch.mesh"),
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
