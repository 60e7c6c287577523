"""How a job was started: real setups that only look odd, and what must not pass where it is not known."""

from typing import Any

from ncclprobe.checks.launch import BY_HAND, TWO_NODES, is_master, names, ports, variables
from ncclprobe.checks.launch.names import CNI0, ETH0, FAR, NO_SOFTWARE, ROUTED
from ncclprobe.engine.judge import judge as judge_all
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.names import Master
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.ports import Ports
from ncclprobe.model.findings import Status, Verdict
from ncclprobe.model.registry import Check
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from tests.checks.cases.launch_names import ALONE, UNROUTED
from tests.each_row import each_row

BOTH = Interfaces((CNI0, ETH0))
LOCAL = Master("localhost", ("127.0.0.1",), 0.001)


def judge(check: Check, *facts: Any, job: Job | None = None) -> Verdict:
    (verdict,) = judge_all([Snapshot("n", {type(fact): fact for fact in facts})], [check], job or Job())
    return verdict


def test_only_torchruns_one_rank_is_looked_at() -> None:
    for launch in (Launch("slurm", 0, 2, 0, 1, 2), Launch("pytorchjob", 0, 2, 0, 1, 2)):
        assert judge(variables.one_rank, launch, variables.EIGHT, Environment({})).status is Status.SKIP


@each_row(
    ("launch", "master", "here"),
    [
        (BY_HAND, Master("node0", ("10.0.0.5",)), True),
        (BY_HAND, FAR, False),  # rank 0, but MASTER_ADDR is elsewhere
        (replace(BY_HAND, rank=8, node_rank=1), Master("node0", ("127.0.1.1", "10.0.0.5")), True),
        (replace(BY_HAND, rank=8, node_rank=1), LOCAL, False),
        (BY_HAND, LOCAL, True),
        (ALONE, LOCAL, True),
    ],
)
def test_the_master_is_here_where_its_address_is_ours(launch: Launch, master: Master, here: bool) -> None:
    assert is_master(launch, master, Interfaces((ETH0,))) is here


def test_a_torchrun_that_listens_itself_is_not_asked_for_a_free_port() -> None:
    facts = (Master("node0", ("10.0.0.5",)), ports.HERE, ports.TAKEN)
    assert judge(ports.port_free, TWO_NODES, *facts).status is Status.SKIP
    assert judge(ports.port_free, BY_HAND, *facts).status is Status.FAIL
    assert judge(ports.port_free, BY_HAND, *facts, job=Job(local=True)).status is Status.SKIP
    assert judge(ports.port_free, BY_HAND, *facts, job=Job(met=True)).status is Status.SKIP


def test_a_port_range_that_is_not_known_is_unknown() -> None:
    blind = replace(ports.USUAL, ephemeral_ports=Absent("denied"))
    assert judge(ports.port_ephemeral, BY_HAND, FAR, blind).status is Status.UNKNOWN
    assert judge(ports.ports_enough, TWO_NODES, blind, Ports((), 0)).status is Status.UNKNOWN


def test_a_node_of_its_own_needs_no_ports_and_no_way_to_a_master() -> None:
    alone = replace(BY_HAND, world_size=8, nnodes=1)
    assert judge(ports.ports_enough, alone, ports.USUAL, Ports((), 0)).status is Status.SKIP
    assert judge(names.route, alone, FAR, BOTH, UNROUTED, Settings(), NO_SOFTWARE).status is Status.SKIP


def test_a_master_that_does_not_resolve_is_the_business_of_another_check() -> None:
    lost = Master("node0", failure="resolve node0: Name or service not known")
    facts = {type(fact): fact for fact in (BY_HAND, lost, BOTH, ROUTED, Settings(), NO_SOFTWARE)}
    verdicts = judge_all([Snapshot("n", facts)], [names.master_resolve, names.route], Job())
    assert [verdict.status for verdict in verdicts] == [Status.FAIL, Status.SKIP]
