"""Settings that are right or wrong only in comparison with those of the other nodes."""

from collections.abc import Iterator

from ncclprobe.checks import IMAGE, JOB
from ncclprobe.checks.env import evidence, loaded
from ncclprobe.checks.env.fixtures import (
    LINK_LOCAL,
    PLAIN,
    PLAIN_HOST,
    PRIVATE,
    USUAL,
    V1,
    V2,
    fabric,
    hcas,
    nccl,
    roce,
    setting,
)
from ncclprobe.checks.sync import kinds, of_one_kind, several_with_gpus, unlike
from ncclprobe.checks.sync.host import DGXS, H100S, network
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.software import Software, reaches
from ncclprobe.model.findings import Finding, fail
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every, Job, vote
from ncclprobe.nccl.hcas import family, pick, roce_version, select_by, wish
from ncclprobe.nccl.values import read_setting

_IGNORES = "NCCL_IGNORE_NET_MISMATCH"
_IGNORES_SINCE = (2, 30, 3)

_THREE = setting("NCCL_IB_GID_INDEX", "3")
_ANY: Every[Software | Absent] = Every({})
_ROCE = fabric(roce("mlx5_0", *USUAL), roce("mlx5_1", *USUAL))
_TURNED = fabric(roce("mlx5_0", (LINK_LOCAL, V1), (LINK_LOCAL, V2), (PRIVATE, V2), (PRIVATE, V1)))


@applies
def roce_fleet(job: Job, fabrics: Every[Fabric]) -> bool:
    """to jobs on GPUs, where several nodes have RoCE ports."""
    ports = [any(p.link_layer == "Ethernet" for p in each.ports) for _, each in fabrics.items()]
    return job.backend == "nccl" and sum(ports) > 1


@check(
    bad=lambda: [
        (Every({"n0": _ROCE, "n1": _ROCE, "n2": _TURNED}), Every(dict.fromkeys(("n0", "n1", "n2"), _THREE)), _ANY)
    ],
    good=lambda: [(Every({"n0": _ROCE, "n1": _ROCE}), Every(dict.fromkeys(("n0", "n1"), _THREE)), _ANY)],
    applies=roce_fleet,
)
def gid_uniform(
    fabrics: Every[Fabric], settings: Every[Settings], software: Every[Software | Absent]
) -> Iterator[Finding]:
    """The GIDs that NCCL uses differ between nodes in type or address family.

    Right: The GIDs that NCCL uses have one type and address family on all nodes.
    Why: RoCE v1 and v2, IPv4 and IPv6 are different packets, and two ends that disagree never meet. One GID index for
    all nodes counts on tables of the same order, which depends on when interfaces got their addresses.
    Fix: unset NCCL_IB_GID_INDEX with NCCL >= 2.21, or give each node its own index, in its own nccl.conf.
    """
    values: dict[str, frozenset[str]] = {}
    for node, found in fabrics.items():
        known = settings.by_node.get(node, PLAIN)
        if types := _types(found, known, software.by_node.get(node, Absent("not asked"))):
            values[node] = types
    entry = next((s for _, s in settings.items() if s.get("NCCL_IB_GID_INDEX")), PLAIN)
    given = evidence(entry, "NCCL_IB_GID_INDEX")
    more = {"tell": fail, **(JOB if given else IMAGE)}
    more["evidence"] = given or "NCCL's search in /sys/class/infiniband/*/ports/*/gids"
    yield from unlike(vote(values), lambda types: f"GIDs of {' and '.join(sorted(types))}", **more)


def _types(fabric: Fabric, settings: Settings, software: Software | Absent) -> frozenset[str]:
    """Return version and family of the GIDs that NCCL takes here; of empty ones another check speaks."""
    version = loaded(software)
    wanted = wish(settings, version)
    ports = [port for port in select_by(fabric, settings, version).taken if port.link_layer == "Ethernet"]
    picks = [found.gid for port in ports if (found := pick(port, wanted, version)) and found.gid]
    words = {"inet": "IPv4", "inet6": "IPv6"}
    return frozenset(
        f"RoCE v{roce_version(gid)} over {words[family(gid.address)]}" for gid in picks if roce_version(gid) > 0
    )


_NEWEST: Every[Software | Absent] = Every(dict.fromkeys(("n0", "n1"), nccl(2, 30, 7)))
_PLAINS, _LOUD = Every(dict.fromkeys(("n0", "n1"), PLAIN)), Every(dict.fromkeys(("n0", "n1"), setting(_IGNORES, "0")))
_HOSTS, _UNLIKE = Every(dict.fromkeys(("n0", "n1"), PLAIN_HOST)), Every({"n0": hcas(8), "n1": hcas(7)})


@check(
    bad=lambda: [(_UNLIKE, _PLAINS, _HOSTS, _NEWEST, DGXS, H100S)],
    good=lambda: [(_UNLIKE, _LOUD, _HOSTS, _NEWEST, DGXS, H100S)],
    applies=several_with_gpus,
)
def ignore_net_mismatch(
    fabrics: Every[Fabric],
    settings: Every[Settings],
    interfaces: Every[Interfaces],
    software: Every[Software | Absent],
    machines: Every[Machine | Absent],
    gpus: Every[Gpus | Absent],
) -> Iterator[Finding]:
    """Nodes have different numbers of NICs, and NCCL is told not to report it.

    Right: NCCL reports it if nodes have different numbers of NICs, or their numbers are equal.
    Why: since 2.30.3 NCCL accepts this by default (src/init.cc:131, v2.30.7) and logs it at INFO only; such jobs have
    hung with all GPUs busy (nccl#2428).
    Fix: NCCL_IGNORE_NET_MISMATCH=0, so that the job ends at its start instead, until the node is repaired.
    """
    counts = {node: len(names) for node, names in network(fabrics, settings, interfaces, software).items()}
    silent = {
        node: each
        for node, each in settings.items()
        if _knows(software.by_node.get(node)) and read_setting(each, _IGNORES, 1, loaded(software.by_node[node]))
    }
    for part in of_one_kind(counts, kinds(machines, gpus)) if silent else ():
        shown = evidence(next(iter(silent.values())), _IGNORES) or f"{_IGNORES} is not set: 1 by default"
        more = {"before": "lets NCCL start without a message: ", "evidence": shown, **JOB}
        yield from unlike(vote(part), "{} NICs".format, "NCCL starts without a message:", subject=_IGNORES, **more)


def _knows(software: Software | Absent | None) -> bool:
    """Return whether the NCCL of a node has the variable. One whose version is not known is not accused."""
    version = software.nccl_version if isinstance(software, Software) else None
    return version is not None and reaches(version, _IGNORES_SINCE)
