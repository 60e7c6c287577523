"""Whether those who met are the job's own: what they proved, and who else called."""

from collections import Counter
from collections.abc import Iterator

from ncclprobe.checks.launch.mesh import HEALTHY
from ncclprobe.errors import Unlearned
from ncclprobe.facts.reach import Flood, Gathering, Paths, Proof
from ncclprobe.layout import first_of
from ncclprobe.model.findings import Finding, seen, warn
from ncclprobe.model.hostlist import fold
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.values import replace

_MOST_TOLD = 5
_PROVED = Proof("NCCLPROBE_TOKEN", proved=True)
_TRUSTED = Proof("none", proved=False, trusted=True)
_ALONE = Absent("only rank 0 knows")


@applies
def met(proofs: Every[Proof | Absent]) -> bool:
    """where the nodes of a job met."""
    return any(isinstance(each, Proof) for _, each in proofs.items())


@check(
    bad=lambda: [(Every({"n0": _TRUSTED, "n1": _TRUSTED}),)],
    good=lambda: [(Every({"n0": _PROVED, "n1": _ALONE}),)],
    required=True,
    applies=met,
)
def unproven(proofs: Every[Proof | Absent]) -> Iterator[Finding]:
    """The nodes did not prove that they belong to the job.

    Right: The nodes proved to each other that they belong to the job.
    Why: any process that reaches MASTER_PORT could hand in a healthy report in a dead node's place, or a sick one in a
    healthy node's, so that no exit code could be relied on.
    Fix: NCCLPROBE_TOKEN=<the same secret on every node>, such as `openssl rand -hex 16` gives (mpirun -x
    NCCLPROBE_TOKEN); where no stranger reaches these hosts, --trust-network.
    """
    known = {node: each for node, each in proofs.items() if isinstance(each, Proof)}
    if not any(each.proved or each.trusted for each in known.values()):
        remedy = "set NCCLPROBE_TOKEN to one secret on every node (openssl rand -hex 16), or give --trust-network"
        raise Unlearned(f"the nodes have no secret, so that none proved that it belongs to the job; {remedy}")
    if any(each.trusted for each in known.values()):
        message = "no node had to prove that it belongs to the job: any process on this network could have come as one"
        yield warn("--trust-network", message, blame="job", action="fix-job", evidence="the command line")


_CALM: Every[Gathering | Absent] = Every({"n0": Gathering(2, 1.0), "n1": _ALONE})
_CROWD = (Flood("10.0.0.99", 7900),)


@check(
    bad=lambda: [(_CALM, Every({"n0": replace(HEALTHY.by_node["n0"], floods=_CROWD)}))],
    good=lambda: [(_CALM, Every({"n0": _ALONE}))],
    applies=met,
)
def port_flooded(gatherings: Every[Gathering | Absent], paths: Every[Paths | Absent]) -> Iterator[Finding]:
    """Other programs flood the ports of this run.

    Right: No other program floods the ports of this run.
    Why: the job will meet on the same port, and torch's store answers every caller: nodes that get no turn time out
    without a reason. Here, whatever could not be tried meanwhile is unknown.
    Fix: end what runs at the addresses named (a port scanner, a job of an earlier run), choose another MASTER_PORT, or
    have a firewall let in the job's nodes alone.
    """
    hubs = {node: each.floods for node, each in gatherings.items() if isinstance(each, Gathering)}
    meshes = {node: each.floods for node, each in paths.items() if isinstance(each, Paths)}
    for subject, ports in (("MASTER_PORT", hubs), ("ports between nodes", meshes)):
        calls: Counter[str] = Counter()
        for flood in (flood for floods in ports.values() for flood in floods):
            calls[flood.address] += flood.connections
        if not calls:
            continue
        listed = first_of((f"{address} ({count})" for address, count in calls.most_common()), _MOST_TOLD)
        where = fold([node for node, floods in ports.items() if floods])
        message = f"callers that proved nothing left no room for others on {where}, and were hung up on: {listed}"
        evidence = seen(f"listeners of {where}", f"{sum(calls.values())} connections")
        yield warn(subject, message, action="retest", evidence=evidence)
