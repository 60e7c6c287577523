"""Whether the machines of a rack are in one NVLink domain, by GPU and by IMEX."""

from collections.abc import Iterator
from typing import Any

from ncclprobe.checks.env import loaded
from ncclprobe.checks.env.fixtures import ETH0, LO, PLAIN, having, interface
from ncclprobe.checks.nvl.fabric import CLUSTER, TRAY
from ncclprobe.checks.sync import describe, named
from ncclprobe.facts.driver import NODES, Imex
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import GpuFabric, Gpus
from ncclprobe.facts.software import Software
from ncclprobe.layout import first_of
from ncclprobe.model.findings import Finding, fail, note, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every, Job, vote
from ncclprobe.model.values import replace
from ncclprobe.nccl.values import read_setting

_OTHER_CLIQUE = replace(TRAY, all=tuple(replace(gpu, fabric=replace(CLUSTER, clique=7)) for gpu in TRAY.all))
_HOSTS = Every({"n0": Interfaces((LO, ETH0)), "n1": Interfaces((LO, interface("eth0", 2, "10.0.0.6")))})
_ANY: Every[Software | Absent] = Every({})
_PLAINS = Every({"n0": PLAIN, "n1": PLAIN})
_UNSEEN: Every[Imex | Absent] = Every({"n0": Absent("not here"), "n1": Absent("not here")})


@applies
def several_trays(gpus: Every[Gpus | Absent], job: Job) -> bool:
    """to jobs on GPUs, where the NVLinks of several nodes lead to other machines (MNNVL)."""
    return (
        job.backend == "nccl" and sum(isinstance(each, Gpus) and bool(_domains(each)) for _, each in gpus.items()) > 1
    )


def _domains(gpus: Gpus) -> frozenset[tuple[str, int]]:
    """Return cluster and clique of the GPUs that are in a cluster of machines."""
    joined = [gpu.fabric for gpu in gpus.all if isinstance(gpu.fabric, GpuFabric) and gpu.fabric.state == "completed"]
    return frozenset((each.cluster, each.clique) for each in joined if each.cluster.strip("0-"))


@check(
    slows=True,
    bad=lambda: [(Every({"n0": TRAY, "n1": _OTHER_CLIQUE}), _UNSEEN, _HOSTS, _PLAINS, _ANY)],
    good=lambda: [
        (
            Every({"n0": TRAY, "n1": _OTHER_CLIQUE}),
            _UNSEEN,
            _HOSTS,
            Every(dict.fromkeys(("n0", "n1"), having(NCCL_MNNVL_ENABLE="0"))),
            _ANY,
        )
    ],
    applies=several_trays,
)
def rack(
    gpus: Every[Gpus],
    services: Every[Imex | Absent],
    interfaces: Every[Interfaces | Absent],
    settings: Every[Settings],
    software: Every[Software | Absent],
) -> Iterator[Finding]:
    """Machines of one rack are not in one NVLink domain.

    Right: Machines of one rack are in one NVLink domain, by their GPUs and by IMEX.
    Why: NCCL uses NVLink between machines whose GPUs have one cluster UUID and one clique (src/mnnvl.cc), and goes over
    the NICs between all others; where IMEX on them does not know the same nodes, or is not ready, sharing memory fails,
    and with it NCCL's start.
    Fix: write one nodes_config.cfg with the addresses of all trays, and restart nvidia-imex on each (Kubernetes: one
    ComputeDomain). Other cliques are partitions that the fabric manager, NMX-C on racks, was told of.
    """
    off = {n for n, each in settings.items() if read_setting(each, "NCCL_MNNVL_ENABLE", 2, _version(software, n)) == 0}
    domains = {node: _domains(each) for node, each in gpus.items() if node not in off and _domains(each)}
    clusters: dict[str, list[str]] = {}
    for node, found in domains.items():
        clusters.setdefault(min(cluster for cluster, _ in found), []).append(node)
    for cluster, nodes in clusters.items():
        yield from _cliques(cluster, {node: domains[node] for node in nodes})
        yield from _services({node: services.by_node.get(node) for node in nodes}, interfaces)
    yield from _alone(clusters)


def _version(software: Every[Software | Absent], node: str) -> tuple[int, int, int] | None:
    return loaded(software.by_node.get(node, Absent("not asked")))


def _cliques(cluster: str, domains: dict[str, frozenset[tuple[str, int]]]) -> Iterator[Finding]:
    ballot = vote({node: tuple(sorted({clique for _, clique in found})) for node, found in domains.items()})
    if not ballot.agreed:
        message = describe(ballot, lambda cliques: f"clique {' and '.join(map(str, cliques))}")
        blamed: dict[str, Any] = {"blame": "fabric", "action": "repair", "nodes": ballot.outliers}
        seen = "nvmlDeviceGetGpuFabricInfo (nvidia-smi -q: Fabric)"
        yield warn(named(ballot.outliers), f"of cluster {cluster[:8]}: {message}", evidence=seen, **blamed)


def _alone(clusters: dict[str, list[str]]) -> Iterator[Finding]:
    """Yield machines that are alone in a cluster, where others share one: every byte of theirs goes over the NICs."""
    seen = "nvmlDeviceGetGpuFabricInfo (nvidia-smi -q: Fabric)"
    single = [nodes[0] for nodes in clusters.values() if len(nodes) == 1]
    if single and len(single) < len(clusters):
        message = "alone in its NVLink cluster, where the others share one: its traffic goes over the NICs"
        yield warn(named(single), message, blame="job", action="fix-job", nodes=tuple(single), evidence=seen)
    elif len(clusters) > 1:
        yield note("racks", f"the nodes are in {len(clusters)} NVLink clusters: NICs connect them", evidence=seen)


def _services(services: dict[str, Imex | Absent | None], interfaces: Every[Interfaces | Absent]) -> Iterator[Finding]:
    known = {node: each for node, each in services.items() if isinstance(each, Imex)}
    blamed: dict[str, Any] = {"blame": "image", "action": "fix-image"}
    lists = {node: tuple(sorted(each.nodes)) for node, each in known.items() if isinstance(each.nodes, tuple)}
    ballot = vote(lists)
    if not ballot.agreed:
        message = f"IMEX is told of other nodes: {describe(ballot, _listed)}"
        yield fail(named(ballot.outliers), message, nodes=ballot.outliers, evidence=NODES, **blamed)
    elif lists and (missing := _unlisted(lists, interfaces)):
        message = f"IMEX of {len(lists)} nodes is not told of any of its addresses"
        yield fail(named(missing), message, nodes=missing, evidence=NODES, **blamed)
    late = {node: each.state for node, each in known.items() if isinstance(each.state, str) and each.state != "READY"}
    if late:
        message = f"nvidia-imex is {' or '.join(sorted(set(late.values())))}, not READY"
        yield fail(named(late), message, nodes=tuple(late), evidence="nvidia-imex-ctl -q", **blamed)


def _listed(addresses: tuple[str, ...]) -> str:
    return f"{len(addresses)} nodes ({first_of(addresses, 3)})"


def _unlisted(lists: dict[str, tuple[str, ...]], interfaces: Every[Interfaces | Absent]) -> tuple[str, ...]:
    """Return the nodes none of whose addresses are listed; one whose addresses are not known is none of them."""
    listed = set(next(iter(lists.values())))
    own = {n: {a.address for a in each.addresses} for n, each in interfaces.items() if isinstance(each, Interfaces)}
    numeric = all(each.replace(".", "").isdigit() or ":" in each for each in listed)
    return tuple(node for node in lists if numeric and node in own and not own[node] & listed)
