"""How the job was started, and whether its ranks can find each other."""

from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.names import Master
from ncclprobe.model.registry import CheckGroup, applies
from ncclprobe.model.snapshot import Job

MASTER_GROUP = CheckGroup("master", "MASTER_ADDR does not lead to rank 0 on every node")
PORT_GROUP = CheckGroup("port", "MASTER_PORT is taken, or another program may take it")
LIMITS_GROUP = CheckGroup("limits", "A limit of the network stack is too low for a job of this size")
RANKS_GROUP = CheckGroup("ranks", "Ranks do not have one GPU each, or nodes are not separate machines")
MESH_GROUP = CheckGroup("mesh", "Nodes cannot connect to each other")
VARS_GROUP = CheckGroup("vars", "The launcher's variables contradict each other, or are incomplete")
NAMES_GROUP = CheckGroup("names", "This node's own name or loopback device does not work")

TWO_NODES = Launch("torchrun", 0, 16, 0, 8, 2, 0, "node0", 29500)
BY_HAND = Launch("environment", 0, 16, 0, 8, 2, 0, "node0", 29500)


@applies
def part_of_a_job(launch: Launch, job: Job) -> bool:
    """if a launcher started this process, and not with --local."""
    return not job.local and (launch.kind != "single" or bool(launch.problems))


@applies
def launched_on_several_nodes(launch: Launch, job: Job) -> bool:
    """in jobs that a launcher starts on several nodes, and not with --local."""
    return not job.local and launch.spans_by_launcher


@applies
def given_a_master(master: Master) -> bool:
    """if MASTER_ADDR is set."""
    return bool(master.name)


@applies
def sent_to_a_master(launch: Launch, master: Master, job: Job) -> bool:
    """in jobs of several nodes, if MASTER_ADDR is set and --local is not given."""
    return not job.local and launch.several_nodes and bool(master.name)


def is_master(launch: Launch, master: Master, interfaces: Interfaces) -> bool:
    """Return whether MASTER_ADDR is this node; if it is a loopback address, whether rank 0 of the job is here."""
    reachable = set(master.addresses) - set(master.loopback)
    if reachable:
        return bool(reachable & own_addresses(interfaces))
    return not launch.several_nodes or launch.rank == 0 or launch.node_rank == 0


def own_addresses(interfaces: Interfaces) -> set[str]:
    """Return the addresses of this node, without their scope."""
    return {address.address.partition("%")[0] for address in interfaces.addresses}
