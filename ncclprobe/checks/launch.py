"""How the job was started, and whether its ranks can find each other."""

from collections.abc import Iterator

from ncclprobe.facts.launcher import Launch, Problem
from ncclprobe.facts.resolver import Master
from ncclprobe.model import Finding, Job, fail, warn
from ncclprobe.registry import applies, check

_SLOW_S = 1.0

ALONE = Launch()
TWO_NODES = Launch("torchrun", 0, 16, 0, 8, 2, 0, "node0", 29500)


@applies
def part_of_a_job(launch: Launch, job: Job) -> bool:
    """where a launcher started this process, and not with --local."""
    return not job.local and (launch.kind != "none" or bool(launch.problems))


@applies
def given_a_master(master: Master) -> bool:
    """where MASTER_ADDR is set."""
    return bool(master.name)


@check(
    bad=[(Launch("manual", 0, problems=(Problem("WORLD_SIZE", "is not set, though RANK is"),)),)],
    good=[(TWO_NODES,)],
    required=True,
    applies=part_of_a_job,
)
def vars(launch: Launch) -> Iterator[Finding]:
    """The launcher's variables are incomplete or contradict each other.

    Why: every rank waits for all others; one that miscounts them makes all wait until the rendezvous times out.
    Fix: let torchrun, srun or mpirun set all of RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, or none.
    """
    for problem in launch.problems:
        tell = warn if problem.harmless else fail
        yield tell(
            problem.subject,
            problem.message,
            blame="job",
            action="fix-job",
            evidence="environment",
            remedy=problem.remedy,
        )


@check(
    bad=[
        (Master("node0", failure="resolve node0: Name or service not known"),),
        (Master("node0", ("10.0.0.1",), 3.2),),
    ],
    good=[(Master("node0", ("10.0.0.1",), 0.002),)],
    required=True,
    applies=given_a_master,
)
def master_resolve(master: Master) -> Iterator[Finding]:
    """MASTER_ADDR does not resolve here, or only slowly.

    Why: every rank looks it up before anything else; where it fails torch retries until its timeout and names nothing.
    Fix: use an IP address, or a name that DNS or /etc/hosts of every node knows.
    """
    seen = f"getaddrinfo({master.name})"
    if master.failure:
        yield fail(master.name, master.failure, blame="job", action="fix-job", evidence=seen)
    elif master.seconds > _SLOW_S:
        message = f"took {master.seconds:.1f} s to resolve; each rank waits that long, and more under load"
        yield warn(master.name, message, blame="node", action="fix-image", evidence=seen)


@check(
    bad=[(Master("node0", ("127.0.1.1",)), TWO_NODES)],
    good=[(Master("node0", ("10.0.0.1",)), TWO_NODES), (Master("localhost", ("127.0.0.1",)), ALONE)],
    required=True,
    requires="launch.master-resolve",
    applies=given_a_master,
)
def master_loopback(master: Master, launch: Launch) -> Iterator[Finding]:
    """MASTER_ADDR is a loopback address in a job of several nodes.

    Why: Debian and Ubuntu put "127.0.1.1 <hostname>" into /etc/hosts, so on that node rank 0 announces an address
    that every other node takes for itself; they then wait for a rank that never comes.
    Fix: take the host's own name off the 127.0.x.x line of /etc/hosts, or give rank 0's IP address.
    """
    if launch.several_nodes and master.loopback:
        message = f"resolves to {', '.join(master.loopback)}, which no other of the {launch.nnodes} nodes can reach"
        yield fail(master.name, message, blame="node", action="fix-image", evidence=f"getaddrinfo({master.name})")
