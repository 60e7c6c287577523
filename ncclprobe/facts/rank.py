"""What each rank of a node has for itself: the devices left visible to it, its processors, its namespaces."""

import json
from collections.abc import Mapping

from ncclprobe.facts.environment import Environment
from ncclprobe.facts.field import learn
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.limits import SHM
from ncclprobe.facts.process import Process
from ncclprobe.host import Host
from ncclprobe.model.registry import rank_collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct


class RankProcess(Struct, frozen=True):
    """One rank. `visible` is CUDA_VISIBLE_DEVICES entry by entry; None: unset, all devices.

    `host_id` is NCCL_HOSTID. `shm_device` is the file system of /dev/shm (st_dev): ranks in one IPC and mount namespace
    share it. `namespaces` are inode numbers by kind.
    """

    local_rank: int | None
    local_world_size: int | None
    visible: tuple[str, ...] | None
    host_id: str | None
    cpus: tuple[int, ...]
    namespaces: Mapping[str, int | Absent]
    shm_device: int | Absent


@rank_collector
def rank_process(host: Host, environment: Environment, launch: Launch, process: Process) -> RankProcess:
    """Return the variables, affinity and namespaces of this one process."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return RankProcess(
        local_rank=launch.local_rank,
        local_world_size=launch.local_world_size,
        visible=None if visible is None else tuple(entry.strip() for entry in visible.split(",") if entry.strip()),
        host_id=environment.get("NCCL_HOSTID"),
        cpus=process.cpus,
        namespaces=process.namespaces,
        shm_device=learn(host, lambda text: int(json.loads(text)["device"]), "stat", SHM),
    )
