"""How a job was started: real setups that only look odd, and what must not pass where it is not known."""

from typing import Any

import pytest

from ncclprobe.checks.launch import BY_HAND, TWO_NODES, is_master, names, ports, variables
from ncclprobe.checks.launch.names import CNI0, ETH0, FAR, HERE, NO_SOFTWARE, ROUTED, UNASKED
from ncclprobe.engine.judge import judge as judge_all
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.launcher import Launch, detect
from ncclprobe.facts.names import HostsEntry, Master, Names
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.ports import Chain, Firewall, Listener, Ports
from ncclprobe.facts.routes import Rule
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Status, Verdict
from ncclprobe.model.registry import Check
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Every, Job, Snapshot
from ncclprobe.model.values import replace
from tests.checks.cases.launch_names import ALONE, IB0, UNROUTED
from tests.each_row import each_row

BOTH = Interfaces((CNI0, ETH0))
LOCAL = Master("localhost", ("127.0.0.1",), 0.001)


def say(check: Check, *facts: Any) -> list[tuple[str, str]]:
    return [(finding.severity.value, finding.subject) for finding in check.run(*facts)]


def judge(check: Check, *facts: Any, job: Job | None = None) -> Verdict:
    (verdict,) = judge_all([Snapshot("n", {type(fact): fact for fact in facts})], [check], job or Job())
    return verdict


def agree(**variables_set: str) -> list[tuple[str, str]]:
    """What launch.vars says of an environment, read as the launcher collector reads it."""
    return say(variables.slurm_agree, detect(variables_set), Environment(variables_set))


STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
    "SLURM_NODEID": "0",
}
RANK_3 = {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}
MASTER = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def test_ranks_that_are_slurms_tasks_agree_with_it() -> None:
    assert agree(**STEP, **RANK_3, **MASTER, SLURM_PROCID="3", SLURM_LOCALID="3") == []


def test_a_rank_from_the_body_of_the_batch_script_is_every_tasks_rank() -> None:
    assert agree(**STEP, **RANK_3, **MASTER, SLURM_PROCID="5", SLURM_LOCALID="5") == [("warn", "RANK")]


def test_a_spawner_under_one_task_per_node_is_no_contradiction() -> None:
    one_each = STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    assert agree(**one_each, **RANK_3, **MASTER, SLURM_PROCID="1", SLURM_LOCALID="0") == []


def test_torchrun_in_the_shell_of_salloc_or_without_slurm_is_no_contradiction() -> None:
    torchrun = RANK_3 | {"TORCHELASTIC_RUN_ID": "x", "GROUP_WORLD_SIZE": "1", "WORLD_SIZE": "8", "GROUP_RANK": "0"}
    shell = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290", "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "1"}
    assert agree(**shell, **torchrun, SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="1", SLURM_STEP_NUM_NODES="1") == []
    assert agree(SLURM_JOB_ID="7", SLURM_JOB_NUM_NODES="2", **torchrun) == []
    assert agree(**torchrun) == []


def test_the_doctors_one_process_on_each_of_several_nodes_is_no_more_than_a_note() -> None:
    none_set, torchrun = Environment({}), Launch("torchrun", 0, 1, 0, 1, 1)
    assert say(variables.one_rank, torchrun, variables.EIGHT, none_set) == [("warn", "LOCAL_WORLD_SIZE")]
    several = replace(torchrun, world_size=2, nnodes=2)
    assert say(variables.one_rank, several, variables.EIGHT, none_set) == [("note", "LOCAL_WORLD_SIZE")]
    assert say(variables.one_rank, several, variables.EIGHT, Environment({"CUDA_VISIBLE_DEVICES": "3"})) == []
    lost = replace(variables.EIGHT, all=tuple(replace(gpu, lost="GPU is lost") for gpu in variables.EIGHT.all[1:]))
    assert say(variables.one_rank, several, lost, none_set) == []


def test_only_torchruns_one_rank_is_looked_at() -> None:
    for launch in (Launch("slurm", 0, 2, 0, 1, 2), Launch("pytorchjob", 0, 2, 0, 1, 2)):
        assert judge(variables.one_rank, launch, variables.EIGHT, Environment({})).status is Status.SKIP


def test_a_single_torchrun_in_every_pod_is_a_job_of_its_own_in_each() -> None:
    pod = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-node-0-0.job"}
    torchrun = RANK_3 | {"TORCHELASTIC_RUN_ID": "x", "GROUP_WORLD_SIZE": "1", "WORLD_SIZE": "8", "GROUP_RANK": "0"}
    assert agree(**pod, **torchrun) == [("warn", "nnodes")]
    assert agree(**pod, **torchrun | {"GROUP_WORLD_SIZE": "2", "WORLD_SIZE": "16"}) == []


def test_open_mpis_ranks_are_compared_too() -> None:
    mpi = {"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "16"}
    local = {"OMPI_COMM_WORLD_LOCAL_RANK": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}
    assert agree(**mpi, **local, **RANK_3, **MASTER) == [("warn", "RANK")]


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


def test_reserved_ports_are_not_counted_and_waiting_ones_are_a_note() -> None:
    narrow = replace(ports.USUAL, ephemeral_ports=(50000, 51999), reserved_ports=((1, 50100), (51000, 60000)))
    assert say(ports.ports_enough, TWO_NODES, narrow, Ports((), 0)) == [("warn", "ephemeral ports")]
    assert say(ports.ports_enough, TWO_NODES, ports.USUAL, Ports((), 28000)) == [("note", "ephemeral ports")]


def test_a_node_of_its_own_needs_no_ports_and_no_way_to_a_master() -> None:
    alone = replace(BY_HAND, world_size=8, nnodes=1)
    assert judge(ports.ports_enough, alone, ports.USUAL, Ports((), 0)).status is Status.SKIP
    assert judge(names.route, alone, FAR, BOTH, UNROUTED, Settings(), NO_SOFTWARE).status is Status.SKIP


def route(master: Master, interfaces: Interfaces, routes: Any = ROUTED, settings: Settings | None = None) -> Verdict:
    return judge(names.route, BY_HAND, master, interfaces, routes, settings or Settings(), NO_SOFTWARE)


def test_a_network_of_nccls_own_is_only_noted() -> None:
    seen = route(FAR, Interfaces((ETH0, IB0)))
    assert [(f.severity.value, f.subject) for f in seen.findings] == [("note", "ib0")]


def test_an_interface_that_was_chosen_by_name_is_judged_in_its_place() -> None:
    chosen = Settings({"NCCL_SOCKET_IFNAME": Setting("NCCL_SOCKET_IFNAME", "eth0", "environment")})
    assert route(FAR, BOTH, settings=chosen).findings == ()
    assert route(FAR, BOTH).status is Status.WARN


def test_the_longest_prefix_decides_the_way() -> None:
    more = replace(ROUTED, main=(*ROUTED.main, replace(ROUTED.main[0], destination="10.9.0.0/16", interface="cni0")))
    assert route(FAR, BOTH, more).findings == ()


def test_no_way_in_the_main_table_is_unknown_where_other_tables_may_have_one() -> None:
    assert route(FAR, Interfaces((ETH0,)), UNROUTED).status is Status.FAIL
    policy = replace(UNROUTED, rules=(Rule(100, "200", source="10.0.0.5"),))
    assert route(FAR, Interfaces((ETH0,)), policy).status is Status.UNKNOWN
    assert route(FAR, Interfaces((ETH0,)), replace(UNROUTED, rules=Absent("ip: not there"))).status is Status.UNKNOWN


def test_a_master_that_does_not_resolve_is_the_business_of_another_check() -> None:
    lost = Master("node0", failure="resolve node0: Name or service not known")
    facts = {type(fact): fact for fact in (BY_HAND, lost, BOTH, ROUTED, Settings(), NO_SOFTWARE)}
    verdicts = judge_all([Snapshot("n", facts)], [names.master_resolve, names.route], Job())
    assert [verdict.status for verdict in verdicts] == [Status.FAIL, Status.SKIP]


def test_a_name_that_dns_may_know_better_is_a_note() -> None:
    said = Names((HostsEntry("127.0.1.1", ("NODE0",), 2),), sources=("dns", "files"))
    assert say(names.fqdn, names.NODE0, said, UNASKED, HERE, Environment({}), Job("gloo")) == [("note", "node0")]


def test_a_name_beside_a_real_address_is_no_loopback() -> None:
    hosts = (HostsEntry("127.0.1.1", ("node0",), 2), HostsEntry("10.0.0.5", ("node0",), 3))
    assert say(names.fqdn, names.NODE0, Names(hosts), UNASKED, HERE, Environment({}), Job("gloo")) == []


def test_two_families_on_one_socket_are_one_listener() -> None:
    single = Launch("environment", 0, 8, 0, 8, 1, 0, "localhost", 29500)
    both = Master("localhost", ("::1", "127.0.0.1"))
    for listeners in ((), (Listener("::", 29500),), (Listener("127.0.0.1", 29500),)):
        assert say(names.ipv6_split, both, single, Interfaces((ETH0,)), Ports(listeners, 0)) == []


@each_row(
    "unread",
    [
        Absent("only root may see the rules"),
        Firewall(Absent("no nft here"), ()),
        Firewall((), ("ipv4/filter",)),
        Firewall((), Absent("not readable")),
        ports.RULED,  # a chain that its rules lead to may refuse all
        Firewall((Chain("inet/firewalld/filter_INPUT", "accept", Absent("rules not read")),), ()),
    ],
)
def test_a_firewall_that_was_not_seen_whole_is_none_that_lets_in(unread: Firewall | Absent) -> None:
    with pytest.raises(Unlearned, match="n1"):
        list(ports.firewall.run(Every({"n0": ports.OPEN, "n1": unread}), Every({}), Every({})))


def test_a_firewall_that_drops_is_told_beside_one_that_was_not_seen() -> None:
    nodes: Every[Firewall | Absent] = Every({"n0": ports.DROPS, "n1": Absent("only root may see the rules")})
    assert say(ports.firewall, nodes, Every({}), Every({})) == [("warn", "ip/filter/INPUT"), ("note", "firewall")]
