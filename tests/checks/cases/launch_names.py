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
    UNASKED,
    host_of,
    interface,
    process_of,
    two,
)
from ncclprobe.checks.launch.variables import EIGHT, STEP, TASK_3
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.names import HostsEntry, Master, Names, OwnName
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.ports import Listener, Ports
from ncclprobe.facts.rank import OwnGpus
from ncclprobe.facts.routes import Route, Routes
from ncclprobe.model.snapshot import Absent, Every, Job, Ranks
from ncclprobe.model.values import replace
from tests.checks.cases import Cases

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


CASES = {
    "launch.ranks/hostname-unique": Cases(
        good=[
            (APART,),
            (Every({"n0": host_of("pod-0", "a"), "n1": host_of("pod-1", "a")}),),
            (Every({"n0": host_of("gpu", None), "n1": host_of("gpu", None)}),),
        ]
    ),
    "launch.ranks/container-split": Cases(
        bad=[
            (
                "WARN job: ranks 0-1 on n0 n1",
                Ranks({"n0": {0: process_of(0)}, "n1": {1: process_of(0, shm=44)}}),
                Every({"n0": host_of("gpu", "a"), "n1": host_of("gpu", "a")}),
            )
        ],
        good=[],
    ),
    "launch.ranks/dup-gpu": Cases(
        bad=[
            (
                "FAIL job: GPU-0003 on n0",
                two(process_of(0, visible=("3",)), process_of(1, visible=("3",))),
                EIGHT_GPUS,
                NOTHING_SET,
                NO_OWN_GPUS,
            ),
            (
                "FAIL job: GPU-0000 on n0",
                two(process_of(0, visible=("0",)), process_of(1, visible=("GPU-0000",))),
                EIGHT_GPUS,
                NOTHING_SET,
                NO_OWN_GPUS,
            ),
        ],
        good=[
            (two(process_of(0, visible=("0",)), process_of(1, visible=("1",))), EIGHT_GPUS, NOTHING_SET, NO_OWN_GPUS),
            (
                two(process_of(0, visible=("0", "1")), process_of(1, visible=("0", "1"))),
                EIGHT_GPUS,
                NOTHING_SET,
                NO_OWN_GPUS,
            ),
            (two(process_of(0), process_of(0)), EIGHT_GPUS, _ALLOWED, NO_OWN_GPUS),
            (
                two(process_of(0, visible=("0",)), process_of(1, visible=("0",))),
                Every({"n0": gpus(1)}),
                NOTHING_SET,
                NO_OWN_GPUS,
            ),
            (two(process_of(0, visible=("0",)), process_of(1, visible=("0",))), EIGHT_GPUS, NOTHING_SET, _OWN),
            (
                two(replace(process_of(0), local_rank=None), replace(process_of(0), local_rank=None)),
                EIGHT_GPUS,
                NOTHING_SET,
                NO_OWN_GPUS,
            ),
        ],
    ),
    "launch.master/master-resolve": Cases(
        bad=[("FAIL job: node0", Master("node0", failure="resolve node0: Name or service not known"))]
    ),
    "launch.master/master-loopback": Cases(
        bad=[
            ("FAIL job: localhost", Master("localhost", ("127.0.0.1",)), TWO_NODES),
            ("FAIL job: 127.0.0.1", Master("127.0.0.1", ("127.0.0.1",)), TWO_NODES),
        ],
        good=[(Master("localhost", ("127.0.0.1",)), ALONE)],
    ),
    "launch.names/fqdn": Cases(
        bad=[
            ("WARN image: node0", NODE0, DEBIANS, OwnName("node0", ("127.0.1.1",)), HERE, Environment({}), Job("gloo")),
            (
                "WARN image: node0",
                NODE0,
                BY_DNS,
                OwnName("node0", failure="Name or service not known"),
                HERE,
                Environment({}),
                Job("gloo"),
            ),
            ("WARN image: node0", NODE0, BY_DNS, OwnName("node0", ("10.9.9.9",)), HERE, Environment({}), Job("gloo")),
            ("WARN image: node0", NODE0, BY_DNS, OwnName("node0", ("0.0.0.0",)), HERE, Environment({}), Job()),
        ],
        good=[
            (NODE0, BY_DNS, UNASKED, HERE, Environment({}), Job("gloo")),
            (NODE0, BY_DNS, OwnName("node0", ("10.0.0.5",)), HERE, Environment({}), Job("gloo")),
            (NODE0, BY_DNS, OwnName("node0", ("127.0.1.1",)), HERE, Environment({}), Job()),
            (NODE0, DEBIANS, UNASKED, HERE, Environment({}), Job()),
            (NODE0, _REAL_TOO, UNASKED, HERE, Environment({}), Job()),
            (NODE0, replace(DEBIANS, sources=("dns", "files")), UNASKED, HERE, Environment({}), Job("gloo")),
        ],
    ),
    "launch.master/route": Cases(
        bad=[
            ("FAIL node: node0", FAR, Interfaces((ETH0,)), UNROUTED, Settings(), NO_SOFTWARE, Job()),
            ("WARN image: ens1", FAR, Interfaces((_FIRST, ETH0)), ROUTED, Settings(), NO_SOFTWARE, Job()),
        ],
        good=[
            (FAR, Interfaces((ETH0,)), ROUTED, Settings(), NO_SOFTWARE, Job()),
            (FAR, Interfaces((ETH0, IB0)), ROUTED, Settings(), NO_SOFTWARE, Job()),  # NCCL's own network, as it should
            (Master("node0", ("10.0.0.5",)), Interfaces((CNI0, ETH0)), UNROUTED, Settings(), NO_SOFTWARE, Job()),
            (
                replace(FAR, addresses=("fd00::1", "10.9.0.1")),
                Interfaces((ETH0,)),
                ROUTED,
                Settings(),
                NO_SOFTWARE,
                Job(),
            ),
            (FAR, Interfaces((ETH0,)), replace(ROUTED, rules=Absent("ip: not there")), Settings(), NO_SOFTWARE, Job()),
        ],
    ),
    "launch.master/master-here": Cases(good=[]),
    "launch.master/ipv6-split": Cases(
        good=[
            (BOTH, ONE, Interfaces((ETH0,)), Ports((Listener("::", 29500),), 0)),
            (BOTH, ONE, Interfaces((ETH0,)), Ports((), 0)),
        ]
    ),
    "launch.vars/slurm-agree": Cases(
        bad=[
            ("WARN job: nnodes", Launch("environment", 3, 32, 3, 8, 4), TASK_3),
            ("WARN job: nnodes", Launch("torchrun", 0, 32, 0, 8, 4, 0), AGENT_0),
            ("WARN job: nnodes", Launch("torchrun", 0, 8, 0, 8, 1, 0), AGENT_0),
        ],
        good=[
            (Launch("torchrun", 0, 16, 0, 8, 2, 1), AGENT_0),  # torchrun numbers the nodes as they come
            (Launch("torchrun", 0, 8, 0, 8, 1, 0), SHELL_OF_SALLOC),
            (Launch("environment", 0, 8, 0, 8, 1), SHELL_OF_SALLOC),
            (Launch("slurm", 3, 16, 3, 8, 2), TASK_3),
            (TWO_NODES, Environment({})),
        ],
    ),
    "launch.ranks/one-rank": Cases(
        good=[
            (TWO_NODES, EIGHT, Environment({})),
            (Launch("torchrun", 0, 1, 0, 1, 1), replace(EIGHT, all=EIGHT.all[:1]), Environment({})),
            (Launch("torchrun", 0, 1, 0, 1, 1), EIGHT, Environment({"CUDA_VISIBLE_DEVICES": "3"})),
        ]
    ),
}
