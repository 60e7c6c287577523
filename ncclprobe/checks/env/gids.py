"""The GID index that NCCL uses on each RoCE port."""

from collections.abc import Iterator

from ncclprobe.checks.env import evidence, jobs_fail, jobs_note, jobs_warn, loaded, written
from ncclprobe.checks.env.fixtures import (
    NO_NCCL,
    PLAIN,
    TWO_NODES,
    USUAL,
    fabric,
    roce,
    setting,
)
from ncclprobe.facts.infiniband import Fabric, Port
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import Software
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, note
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.nccl.hcas import Pick, advised, pick, roce_version, select, wish
from ncclprobe.nccl.values import read_setting

_VARIABLES = ("NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM")


@applies
def roce_job(job: Job, settings: Settings, fabric: Fabric) -> bool:
    """to jobs on GPUs where NCCL takes RoCE ports."""
    off = read_setting(settings, "NCCL_IB_DISABLE", 0) != 0
    taken = select(fabric, settings.get("NCCL_IB_HCA") or "").taken
    return job.backend == "nccl" and not off and any(port.link_layer != "InfiniBand" for port in taken)


@check(
    slows=True,
    bad=lambda: [(setting("NCCL_IB_GID_INDEX", "0"), fabric(roce("mlx5_3", *USUAL)), TWO_NODES, NO_NCCL)],
    good=lambda: [(PLAIN, fabric(roce("mlx5_3", *USUAL)), TWO_NODES, NO_NCCL)],
    required=True,
    applies=roce_job,
)
def gid_index(
    settings: Settings, fabric: Fabric, launch: Launch | Absent, software: Software | Absent
) -> Iterator[Finding]:
    """The GID that NCCL uses on a RoCE port does not lead to the other nodes.

    Right: The GID that NCCL uses on every RoCE port leads to the other nodes.
    Why: NCCL takes NCCL_IB_GID_INDEX unchecked, and before 2.21 index 0 without it, which is link-local RoCE v1; the
    queue pairs of two nodes then do not meet, and ibv_modify_qp or the first message ends in a timeout (nccl#769,
    nccl#426). Since 2.21 it searches for RoCE v2 over IPv4.
    Fix: unset NCCL_IB_GID_INDEX with NCCL >= 2.21, else give the index of the RoCE v2 GID of an IPv4 address.
    """
    version = loaded(software)
    wanted = wish(settings, version)
    taken = select(fabric, settings.get("NCCL_IB_HCA") or "", version).taken
    ports = [(port, pick(port, wanted, version)) for port in taken if port.link_layer != "InfiniBand"]
    unread = [port.name for port, found in ports if found is None]
    if len(unread) == len(ports):
        raise Unlearned(f"the GID tables of {', '.join(unread)} could not be read")
    if unread:
        yield note(
            ", ".join(unread), "the GID table could not be read", evidence="/sys/class/infiniband/*/ports/*/gids"
        )
    for port, found in ports:
        if found:
            yield from _judged(port, found, settings, launch, written(version))


def _judged(port: Port, found: Pick, settings: Settings, launch: Launch | Absent, library: str) -> Iterator[Finding]:
    wrong = _wrong(found)
    if not wrong:
        return
    table = () if isinstance(port.gids, Absent) else port.gids
    better = advised(table)
    why = {"setting": "NCCL_IB_GID_INDEX", "search": "NCCL's search", "version": f"{library}, which does not search"}
    instead = f"; index {better} is RoCE v2 over IPv4" if better is not None else "; the port has no better one"
    shown = f"/sys/class/infiniband/{port.device}/ports/{port.number}/gids/{found.index}"
    settled = evidence(settings, *_VARIABLES)
    several = isinstance(launch, Launch) and launch.several_nodes
    alone = isinstance(launch, Launch) and launch.nnodes == 1
    # What a port without any good GID means is ib.roce-v2's to say, unless the job is known to need it.
    harmless = alone or (not several and better is None and found.by == "search")
    leads_nowhere = found.gid is None or (several and found.gid.link_local)  # v1 over IPv4 works within one segment
    tell = jobs_fail if leads_nowhere else jobs_warn
    message = f"GID {found.index}, chosen by {why.get(found.by, found.by)}, {wrong}{instead}"
    remedy = (
        ""
        if better is not None
        else "give the port's interface an IPv4 address, or give the container its network namespace (--network=host)"
    )
    yield (jobs_note if harmless else tell)(port.name, message, (*settled, shown), remedy)


def _wrong(found: Pick) -> str:
    """Return what is wrong with a GID, empty where nothing is known to be."""
    if found.gid is None:
        return "is empty"
    words = ["link-local"] if found.gid.link_local else []
    words += ["RoCE v1"] if roce_version(found.gid) == 1 else []
    return f"is {' '.join(words)}" if words else ""
