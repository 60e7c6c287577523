"""What the checks of names, hosts and the launcher's variables must object to, and what they must accept."""

from ncclprobe.checks.env.fixtures import gpus, setting
from ncclprobe.checks.launch import TWO_NODES
from ncclprobe.checks.launch.names import (
    APART,
    BOTH,
    CNI0,
    DEBIANS,
    EIGHT_GPUS,
    ETH0,
    FAR,
    HERE,
    NO_OWN_GPUS,
    NO_SOFTWARE,
    NODE0,
    NOTHING_SET,
    ONE,
    ROUTED,
    RULES,
    SPLIT,
    UNASKED,
    host_of,
    interface,
    process_of,
    two,
)
from ncclprobe.checks.launch.variables import EIGHT, STEP, TASK_3
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.launcher import Launch, detect
from ncclprobe.facts.names import HostsEntry, Master, Names, OwnName
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.ports import Listener, Ports
from ncclprobe.facts.rank import OwnGpus, RankProcess
from ncclprobe.facts.routes import Route, Routes, Rule
from ncclprobe.model.snapshot import Absent, Every, Job, Ranks
from ncclprobe.model.values import replace
from tests.checks.cases import Cases, rows_of

_ALLOWED: Every[Settings | Absent] = Every({"n0": setting("NCCL_MULTI_RANK_GPU_ENABLE", "1")})
_OWN: Ranks[OwnGpus | Absent] = Ranks({"n0": {0: OwnGpus(("GPU-0000",)), 1: OwnGpus(("GPU-0001",))}})
ALONE = Launch()
BY_DNS = Names((HostsEntry("127.0.0.1", ("localhost",), 1),))
_REAL_TOO = replace(DEBIANS, hosts=(*DEBIANS.hosts, HostsEntry("10.0.0.5", ("node0",), 3)))
IB0 = interface("ib0", 4, "10.1.0.5")
_FIRST = interface("ens1", 2, "10.0.0.9")
UNROUTED = Routes((Route("10.0.0.0/24", "eth0"),), RULES)
AGENT = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
AGENT_0 = Environment({**STEP, **AGENT, "SLURM_PROCID": "0", "SLURM_NODEID": "0"})
SHELL_OF_SALLOC = Environment(
    {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_JOB_NUM_NODES": "2"}
)


_OF_TASKS = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_NODEID": "0",
}  # fmt: skip
_RANK_3 = {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}
_MASTER = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
_TORCHRUN = {**_RANK_3, "TORCHELASTIC_RUN_ID": "x", "GROUP_WORLD_SIZE": "1", "WORLD_SIZE": "8", "GROUP_RANK": "0"}
_SALLOC = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290", "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "1"}
_POD = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-node-0-0.job"}
_MPI = {"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_RANK": "4"}
_BLIND_MASTER = Absent("ip: not there")
_BY_NAME = setting("NCCL_SOCKET_IFNAME", "eth0")
_BOTH_CARDS = Interfaces((CNI0, ETH0))
_LONGER = replace(ROUTED, main=(*ROUTED.main, replace(ROUTED.main[0], destination="10.9.0.0/16", interface="cni0")))
_TWO_FAMILIES = Master("localhost", ("::1", "127.0.0.1"))
_ONE_NODE = Launch("environment", 0, 8, 0, 8, 1, 0, "localhost", 29500)
_CLONE = replace(process_of(0), host_id="h")
_ONE_EACH, _OF_TWO = Launch("torchrun", 0, 1, 0, 1, 1), Launch("torchrun", 0, 2, 0, 1, 2)
_LOST = replace(EIGHT, all=tuple(replace(gpu, lost="GPU is lost") for gpu in EIGHT.all[1:]))
_UPPER = Names((HostsEntry("127.0.1.1", ("NODE0",), 2),), sources=("dns", "files"))


def _set(*variables: dict[str, str], **more: str) -> tuple[Launch, Environment]:
    """Return what a launcher has set, as its collector reads it."""
    every = {name: value for each in (*variables, more) for name, value in each.items()}
    return detect(every), Environment(every)


def _seeing(*gpus: str) -> Ranks[RankProcess]:
    return two(*(process_of(rank, visible=(each,)) for rank, each in enumerate(gpus)))


_dup_gpu = rows_of(processes=_seeing("0", "0"), gpus=EIGHT_GPUS, settings=NOTHING_SET, own=NO_OWN_GPUS)
_fqdn = rows_of(system=NODE0, names=BY_DNS, own=UNASKED, interfaces=HERE, environment=Environment({}), job=Job("gloo"))
_route = rows_of(
    master=FAR, interfaces=Interfaces((ETH0,)), routes=ROUTED, settings=Settings(), software=NO_SOFTWARE, job=Job()
)
CASES: Cases = {
    "launch.ranks/hostname-unique": [
        ("WARN job: n[0-4] on n0 n1 n2 n3 n4", Every({f"n{n}": host_of(name, "a") for n, name in enumerate("edcbb")})),
        (APART,), (Every({"n0": host_of("pod-0", "a"), "n1": host_of("pod-1", "a")}),),
        (Every({"n0": host_of("gpu", None), "n1": host_of("gpu", None)}),),
    ],
    "launch.ranks/container-split": [
        ("WARN job: ranks 0-1 on n0 n1", Ranks({"n0": {0: _CLONE}, "n1": {1: replace(_CLONE, shm_device=44)}}), APART),
        (Ranks({"n0": {0: process_of(0), 1: Absent("late")}}), APART),
        ("WARN job: ranks 0-1 on n0 n1", Ranks({"n0": {0: process_of(0)}, "n1": {1: process_of(0, shm=44)}}),
            Every({"n0": host_of("gpu", "a"), "n1": host_of("gpu", "a")}))
    ],
    "launch.ranks/dup-gpu": [
        _dup_gpu(
            processes=two(process_of(0, visible=("0", "1")), replace(process_of(0), local_rank=3, visible=("0", "1")))),
        _dup_gpu("FAIL job: GPU-0003 on n0", processes=_seeing("3", "3")), _dup_gpu(processes=_seeing("0", "1")),
        _dup_gpu("FAIL job: GPU-0000 on n0", processes=_seeing("0", "GPU-0000")), _dup_gpu(gpus=Every({"n0": gpus(1)})),
        _dup_gpu(processes=two(process_of(0, visible=("0", "1")), process_of(1, visible=("0", "1")))),
        _dup_gpu(processes=two(process_of(0), process_of(0)), settings=_ALLOWED), _dup_gpu(own=_OWN),
        _dup_gpu(processes=two(replace(process_of(0), local_rank=None), replace(process_of(0), local_rank=None))),
    ],
    "launch.master/master-resolve": [
        ("FAIL job: node0", Master("node0", failure="resolve node0: Name or service not known"))
    ],
    "launch.master/master-loopback": [
        ("FAIL job: localhost.lan", Master("localhost.lan", ("127.0.0.1", "::1")), TWO_NODES),
        ("FAIL node: node0", Master("node0", ("127.0.1.1", "10.0.0.5")), TWO_NODES),
        ("FAIL job: localhost", Master("localhost", ("127.0.0.1",)), TWO_NODES),
        ("FAIL job: 127.0.0.1", Master("127.0.0.1", ("127.0.0.1",)), TWO_NODES),
        (Master("localhost", ("127.0.0.1",)), ALONE),
    ],
    "launch.names/fqdn": [
        _fqdn(DEBIANS, Environment({"GLOO_SOCKET_IFNAME": "eth0"})), _fqdn("NOTE unknown: node0", _UPPER), _fqdn(),
        _fqdn("WARN image: node0", DEBIANS, own=OwnName("node0", ("127.0.1.1",))), _fqdn(DEBIANS, Job()),
        _fqdn("WARN image: node0", own=OwnName("node0", failure="Name or service not known")), _fqdn(_REAL_TOO, Job()),
        _fqdn("WARN image: node0", own=OwnName("node0", ("10.9.9.9",))), _fqdn(own=OwnName("node0", ("10.0.0.5",))),
        _fqdn("WARN image: node0", Job(), own=OwnName("node0", ("0.0.0.0",))), _fqdn(_REAL_TOO),
        _fqdn(Job(), own=OwnName("node0", ("127.0.1.1",))), _fqdn(replace(DEBIANS, sources=("dns", "files"))),
    ],
    "launch.master/route": [
        *(_route("WARN job: cni0", Interfaces((replace(CNI0, kind=each), ETH0))) for each in ("vxlan", "wireguard")),
        _route(_BOTH_CARDS, setting("NCCL_COMM_ID", "10.0.0.5:9999")), _route("FAIL node: node0", UNROUTED),
        _route("WARN image: ens1", Interfaces((_FIRST, ETH0))), _route("WARN job: cni0", _BOTH_CARDS),
        _route("NOTE unknown: ib0", Interfaces((ETH0, IB0))),  # NCCL's own network, as it should
        _route("UNKNOWN: the main table", replace(UNROUTED, rules=(Rule(100, "200", source="10.0.0.5"),))),
        _route("UNKNOWN: the main table", replace(UNROUTED, rules=_BLIND_MASTER)),
        _route(), _route(_BOTH_CARDS, _BY_NAME), _route(_BOTH_CARDS, _LONGER),
        _route(Master("node0", ("10.0.0.5",)), Interfaces((CNI0, ETH0)), UNROUTED),
        _route(replace(FAR, addresses=("fd00::1", "10.9.0.1"))), _route(replace(ROUTED, rules=Absent("ip: not there"))),
    ],
    "launch.master/ipv6-split": [
        *((BOTH, replace(ONE, master_port=port), Interfaces((ETH0,)), SPLIT) for port in (None, 29501)),
        ("WARN job: localhost", replace(BOTH, addresses=("::1%lo", "127.0.0.1")), ONE, Interfaces((ETH0,)), SPLIT),
        (BOTH, ONE, Interfaces((ETH0,)), Ports((Listener("::", 29500),), 0)),
        (BOTH, ONE, Interfaces((ETH0,)), Ports((), 0)), (_TWO_FAMILIES, _ONE_NODE, Interfaces((ETH0,)), Ports((), 0)),
        (_TWO_FAMILIES, _ONE_NODE, Interfaces((ETH0,)), Ports((Listener("::", 29500),), 0)),
        (_TWO_FAMILIES, _ONE_NODE, Interfaces((ETH0,)), Ports((Listener("127.0.0.1", 29500),), 0)),
    ],
    "launch.vars/slurm-agree": [
        (Launch("torchrun", 0, 32, 0, 8, 4, 0), Environment({**STEP, **AGENT, "SLURM_JOB_NUM_NODES": "1x"})),
        ("WARN job: nnodes", Launch("environment", 3, 32, 3, 8, 4), TASK_3),
        ("WARN job: nnodes", Launch("torchrun", 0, 32, 0, 8, 4, 0), AGENT_0),
        ("WARN job: nnodes", Launch("torchrun", 0, 8, 0, 8, 1, 0), AGENT_0),
        # A rank from the body of the batch script is every task's rank.
        ("WARN job: RANK", *_set(_OF_TASKS, _RANK_3, _MASTER, SLURM_PROCID="5", SLURM_LOCALID="5")),
        ("WARN job: nnodes", *_set(_POD, _TORCHRUN)),  # in every pod a job of its own
        ("WARN job: RANK", *_set(_MPI, _RANK_3, _MASTER, OMPI_COMM_WORLD_LOCAL_SIZE="8")),
        _set(_OF_TASKS, _RANK_3, _MASTER, SLURM_PROCID="3", SLURM_LOCALID="3"),
        _set(_OF_TASKS, AGENT, _RANK_3, _MASTER, SLURM_PROCID="1", SLURM_LOCALID="0"),  # a spawner
        _set(_SALLOC, _TORCHRUN, SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="1", SLURM_STEP_NUM_NODES="1"),
        _set(_TORCHRUN, SLURM_JOB_ID="7", SLURM_JOB_NUM_NODES="2"), _set(_TORCHRUN),
        _set(_POD, _TORCHRUN, GROUP_WORLD_SIZE="2", WORLD_SIZE="16"),
        (Launch("torchrun", 0, 16, 0, 8, 2, 1), AGENT_0),  # torchrun numbers the nodes as they come
        (Launch("torchrun", 0, 8, 0, 8, 1, 0), SHELL_OF_SALLOC),
        (Launch("environment", 0, 8, 0, 8, 1), SHELL_OF_SALLOC), (Launch("slurm", 3, 16, 3, 8, 2), TASK_3),
        (TWO_NODES, Environment({})),
    ],
    "launch.master/master-here": [
        ("WARN job: node0", Master("node0", ("10.9.0.2", "127.0.1.1", "10.9.0.1")), Interfaces((ETH0,))),
        (Master("node0", ("127.0.1.1", "10.0.0.5", "10.9.0.1")), Interfaces((ETH0,))),
    ],
    "launch.ranks/one-rank": [
        ("WARN job: LOCAL_WORLD_SIZE", _ONE_EACH, EIGHT, Environment({})), (_OF_TWO, _LOST, Environment({})),
        ("NOTE unknown: LOCAL_WORLD_SIZE", _OF_TWO, EIGHT, Environment({})), (TWO_NODES, EIGHT, Environment({})),
        (_OF_TWO, EIGHT, Environment({"CUDA_VISIBLE_DEVICES": "3"})),
        (Launch("torchrun", 0, 1, 0, 1, 1), replace(EIGHT, all=EIGHT.all[:1]), Environment({})),
        (Launch("torchrun", 0, 1, 0, 1, 1), EIGHT, Environment({"CUDA_VISIBLE_DEVICES": "3"})),
    ],
}  # fmt: skip
