"""The fault matrix at few hosts, and healthy labs. `scripts/lab matrix --all` plays it at every number of hosts."""

import pytest

from ncclprobe.model.values import replace

from . import launchers, why_not
from .matrix import Row
from .matrix_gloo import GLOO
from .matrix_healthy import HEALTHY
from .matrix_meeting import MEETING
from .matrix_nodes import NODES
from .processes import LabError
from .run import play

pytestmark = pytest.mark.slow

need_lab = pytest.mark.skipif(bool(why_not()), reason=why_not() or "a lab can be made here")

PATIENCE_S = 5.0
ALL = {row.name: row for row in (*MEETING, *NODES, *GLOO, *HEALTHY)}
SUBSET = {
    "MASTER_ADDR resolves nowhere": 2,
    "MASTER_ADDR is a loopback address on one node": 3,
    "MASTER_PORT is filtered for one node alone": 3,
    "MASTER_PORT is refused by a firewall on rank 0's node": 2,
    "MASTER_PORT is taken by another service, which says garbage": 2,
    "two nodes claim one rank": 3,
    "a node has another token": 2,
    "a node's doctor is killed while it talks to rank 0": 3,
    "the interface in NCCL_SOCKET_IFNAME is on another subnet on one node": 3,
    "one pair of nodes cannot connect in one direction": 3,
    "new connections to one node's ephemeral ports are refused": 3,
    "packets above 1400 bytes vanish on their way out of one node": 3,
    "packets above 1400 bytes vanish on their way from one node, and nobody says so": 3,
    "packets of one node's second card leave by its first": 3,
    "two nodes have one address on their second card": 3,
    "one node has NCCL_ALGO": 3,
    "every node's own name is 127.0.1.1, as Debian writes it": 2,
    "one node's own name is ::1, where the others have IPv4": 3,
    "GLOO_SOCKET_IFNAME names no interface on one node": 3,
    "every node's own name is 127.0.1.1, under NCCL": 2,
    "gloo's card is closed on one node, under NCCL": 3,
    "one node has a GPU less": 2,
    "one node's clock is three minutes ahead": 3,
}
LAUNCHED = {
    "healthy: by hand, 2 cards, IPv4 only, GPUs": 2,
    "healthy: under srun, 1 card, IPv4 only": 2,
    "healthy: under mpirun, 2 cards, IPv6 only": 2,
    "healthy: under torchrun, c10d rendezvous, 1 card, IPv4 only": 2,
}
NEEDS = {"srun": launchers.SLURM, "mpirun": launchers.MPIRUN}


def in_time(row: Row) -> Row:
    """The row as a test: no deadline but the run's own, because others use the machine too."""
    return replace(row, patience_s=PATIENCE_S, deadline_s=row.timeout_s)


def told(row: Row, hosts: int) -> str:
    """What was wrong with it, of two runs where the first is not right: other tests share this machine's processors.

    A bug of ours is one at the first sight.
    """
    first = play(in_time(row), hosts).told()
    if not first or "a bug of ncclprobe" in first:
        return first
    return play(in_time(row), hosts).told()


@need_lab
@pytest.mark.parametrize("name", SUBSET)
def test_the_fault_is_named(name: str) -> None:
    try:
        assert told(ALL[name], SUBSET[name]) == ""
    except LabError as error:
        pytest.skip(str(error))


@need_lab
@pytest.mark.parametrize("name", LAUNCHED)
def test_nothing_is_found_where_nothing_is_wrong(name: str) -> None:
    row = ALL[name]
    if reason := why_not(*NEEDS.get(row.launcher, ())):
        pytest.skip(reason)
    if row.launcher in ("torchrun", "c10d"):
        pytest.importorskip("torch")
    assert told(row, LAUNCHED[name]) == ""


def test_rows_have_names_of_their_own() -> None:
    assert len(ALL) == len((*MEETING, *NODES, *GLOO, *HEALTHY))
