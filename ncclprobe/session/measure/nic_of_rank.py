"""Which NIC carries each rank's bytes: with NCCL the nearest to its GPU of those that NCCL chooses, with gloo its own
interface. With NCCL one rank per node inspects the node, and rank 0 assigns a NIC to each rank.
"""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ncclprobe.host import Host
from ncclprobe.model.pair_results import Nic
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.session.measure.look import Look
from ncclprobe.session.ranks.identity import Backend


def rank_info(backend: Backend, host: Host, gpu: str | None, look: Look | None) -> dict[str, Any]:
    """Make what a rank with that GPU (its identity) sends to rank 0, as JSON; the rank with the `look` adds its node.

    With gloo each rank names its own interface, because GLOO_SOCKET_IFNAME may differ between ranks.
    """
    if backend == "gloo":
        return {"gpu": gpu, "own": _interface(host)}
    return {"gpu": gpu, "node": of_snapshot(look.snapshot())} if look else {"gpu": gpu}


def nics(hosts: Sequence[str], infos: Sequence[Mapping[str, Any]]) -> tuple[Nic | None, ...]:
    """Return the NIC of each rank, by rank; None where it is not known."""
    nodes = {host: each["node"] for host, each in zip(hosts, infos, strict=True) if each.get("node")}
    before: defaultdict[tuple[str, tuple[str, ...]], int] = defaultdict(int)
    found: list[Nic | None] = []
    own: defaultdict[str, list[str]] = defaultdict(list)
    for host, name in sorted({(host, each["own"]) for host, each in zip(hosts, infos, strict=True) if each.get("own")}):
        own[host].append(name)
    for host, each in zip(hosts, infos, strict=True):
        if each.get("own"):
            found.append(Nic(each["own"], own[host].index(each["own"])))
            continue
        node = nodes.get(host, {"nics": (), "near": {}})
        near = tuple(node["near"].get(each["gpu"], ()))
        turn = before[host, near]  # GPUs that are equally near to the same NICs take them in turn
        before[host, near] += 1
        name = near[turn % len(near)] if near else ""
        found.append(Nic(name, node["nics"].index(name)) if name in node["nics"] else None)
    return tuple(found)


def _interface(host: Host) -> str:
    from ncclprobe.session.measure import slowest_link

    found = slowest_link.interface(host, dict(os.environ))
    return found.name if found else ""


def of_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """Return the NICs that NCCL chooses on a node, in its order, and those nearest to each GPU, by its identity.

    Without an HCA all GPUs share the interface of NCCL's sockets.
    """
    from ncclprobe.facts.nvml import Gpus
    from ncclprobe.nccl.selection import choose

    gpus: Gpus | Absent = snapshot.facts.get(Gpus, Absent("never collected"))
    if isinstance(gpus, Absent):
        return {"nics": [], "near": {}}
    made = choose(snapshot)
    taken = list(dict.fromkeys(port.port.partition(":")[0] for port in made.hcas.chosen or ()))
    if taken:
        nearest = {each.gpu: each.nics for each in made.gpudirect.chosen or ()}
    else:
        taken = [each.name for each in (made.sockets.chosen or ())[:1]]
        nearest = {f"GPU{gpu.index}": tuple(taken) for gpu in gpus.all}
    return {"nics": taken, "near": {key: list(nearest.get(name, ())) for key, name in gpus.names.items()}}
