"""Decide which rank this process is, its backend, and what all ranks agree on before anything is measured.

Pure, and decided before torch is imported: ranks send JSON to rank 0 over the store, and it decides for all.
"""

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ncclprobe.facts.launcher import Launch, derived_port, no_master
from ncclprobe.host import Host
from ncclprobe.model.errors import HostError, UsageError
from ncclprobe.model.values import Struct, field

Backend = Literal["nccl", "gloo"]
_BY_UUID = (2, 30)


class RankIdentity(Struct, frozen=True):
    """This process among the ranks of a job, and the address of the job's store. Every field is known."""

    kind: str
    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    nnodes: int
    address: str
    port: int
    agent_store: bool = False
    attempt: str = "0"

    @property
    def serves(self) -> bool:
        """Return whether this rank hosts the store."""
        return self.rank == 0 and not self.agent_store


def identify(launch: Launch, variables: Mapping[str, str]) -> RankIdentity | None:
    """Read this process's rank from the launcher's variables; None: no launcher, hence one rank.

    Raises UsageError naming the variable that is missing or contradictory.
    """
    if launch.problems:
        problem = launch.problems[0]
        anew = "start with torchrun, srun, mpirun or --nproc N"
        remedy = anew if problem.harmless else problem.remedy or anew  # a doctor alone needs no step of srun's
        raise UsageError(f"{problem.subject} {problem.message}; {remedy}")
    if launch.rank is None or launch.world_size is None:
        return None
    unmet = no_master(launch)
    if unmet and launch.world_size > 1:
        raise UsageError(f"{unmet.subject} {unmet.message}; {unmet.remedy}")
    nnodes = launch.nnodes or 1
    local_ranks = launch.local_world_size or (launch.world_size if nnodes == 1 else 1)
    local_rank = launch.local_rank if launch.local_rank is not None else launch.rank % local_ranks
    return RankIdentity(
        kind=launch.kind,
        rank=launch.rank,
        ranks=launch.world_size,
        local_rank=local_rank,
        local_ranks=local_ranks,
        nnodes=nnodes,
        address=launch.master_addr or "127.0.0.1",
        port=launch.master_port or derived_port(launch.run_id),
        agent_store=launch.agent_store,
        attempt=variables.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


class Devices(Struct, frozen=True):
    """The GPUs of this node: `nodes` counts /dev/nvidia<N>, `usable` those that torch can use in this process.

    `usable` is None before torch was asked. `denied` counts those that this process may not open, `listed` is
    CUDA_VISIBLE_DEVICES; None: all.
    """

    nodes: int
    usable: int | None = None
    torch: str = ""
    denied: int = 0
    listed: str | None = None

    @property
    def shown(self) -> int:
        """Count the GPUs that CUDA shows to this process, as far as that is known without torch.

        CUDA reads the list up to the first unknown entry (CUDA programming guide, environment variables). /dev does not
        show which UUIDs exist.
        """
        allowed = self.nodes - self.denied
        if self.usable is not None or self.listed is None:
            return allowed if self.usable is None else self.usable

        def may_know(entry: str) -> bool:
            return int(entry) < allowed if entry.isdecimal() else entry.upper().startswith(("GPU-", "MIG-"))

        entries = (entry.strip() for entry in self.listed.split(","))
        return min(allowed, len({*itertools.takewhile(may_know, entries)}))


def devices(host: Host) -> Devices:
    """Count the NVIDIA devices of this node in /dev, without contacting the driver.

    A control group keeps the files of other processes' GPUs visible, but refuses to open them.
    """
    try:
        names = json.loads(host.ask("list", "/dev"))
    except HostError:
        return Devices(0)
    paths = [f"/dev/{name}" for name in names if re.fullmatch(r"nvidia\d+", name)]
    denied = sum(_denied(host, path) for path in paths)
    return Devices(len(paths), denied=denied, listed=os.environ.get("CUDA_VISIBLE_DEVICES"))


def _denied(host: Host, path: str) -> bool:
    try:
        may = json.loads(host.ask("access", path))
    except HostError:
        return False
    return not (may["read"] and may["write"])


def choose_backend(asked: Backend | None, kind: str, local_ranks: int, devices: Devices) -> tuple[Backend, str]:
    """Choose the backend of `local_ranks` ranks started by `kind`; return it with a note for the reader, or "".

    Never falls back silently if the node has an NVIDIA device. Raises UsageError naming the remedy.
    """
    if asked == "gloo":
        return "gloo", ""
    count = devices.shown
    if count == 0 and devices.nodes and devices.usable is None:
        raise UsageError(
            f"this process can use none of the {devices.nodes} GPUs here: check CUDA_VISIBLE_DEVICES"
            f"{'' if devices.listed is None else f'={devices.listed}'} and the permissions of /dev/nvidia0, or use "
            "--backend gloo"
        )
    if devices.usable == 0 and devices.nodes:
        raise UsageError(
            f"this node has NVIDIA devices but torch {devices.torch} can use none; "
            "install a CUDA build of torch and check CUDA_VISIBLE_DEVICES, or use --backend gloo"
        )
    if count == 0 and asked is None:
        why = "no GPU is visible, so this measured gloo over the CPU; this result does not apply to NCCL"
        return "gloo", f"{why}; if gloo is meant, add --backend gloo"
    if count == 0 and devices.usable is not None:
        raise UsageError("--backend nccl needs a GPU per rank, and no GPU is visible; use --backend gloo")
    same = devices.usable is None and kind == "torchrun"  # else each rank may have its own, and all are asked for it
    if 0 < count < local_ranks and same:
        raise UsageError(
            f"{local_ranks} ranks on this node and {count} GPU{'s' * (count > 1)}: start one rank per GPU "
            "(--nproc-per-node=gpu), or use --backend gloo"
        )
    return "nccl", ""


def device_index(identity: RankIdentity, usable: int) -> int:
    """Return the CUDA index for this rank: its local rank, or 0 if the launcher left one GPU visible."""
    return identity.local_rank if identity.local_rank < usable else 0


def gpu_identity(number: int) -> str:
    """Return the PCI address of CUDA device `number` in this process, or its UUID if torch lacks the address.

    CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, control groups and MIG change CUDA's numbers but not these, and
    `Gpus.names` uses them to find NVML's name of the GPU.
    """
    import torch

    properties = torch.cuda.get_device_properties(number)
    return pci_address(properties) or str(getattr(properties, "uuid", "")) or _driver_identity(number)


def gpu_instance(number: int) -> str:
    """Return the UUID of the MIG instance that is CUDA device `number`; empty: a whole GPU, or torch lacks it."""
    import torch

    properties = torch.cuda.get_device_properties(number)
    return str(getattr(properties, "uuid", "")) if " MIG " in str(properties.name) else ""


def _driver_identity(number: int) -> str:
    """Return the same from the driver's library, which torch has loaded: torch 2.4 reports neither address nor UUID."""
    import ctypes

    address, device = ctypes.create_string_buffer(32), ctypes.c_int()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        failed = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), number)
        failed = failed or cuda.cuDeviceGetPCIBusId(address, len(address), device)
    except (OSError, AttributeError):
        return f"cuda:{number}"
    return f"cuda:{number}" if failed else address.value.decode(errors="replace").lower()


def pci_address(properties: Any) -> str:
    """Return the PCI address of a GPU; empty before torch 2.7, which introduced it."""
    if not hasattr(properties, "pci_bus_id"):
        return ""
    return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


class RankInfo(Struct, frozen=True):
    """The report of one rank about itself.

    `plan` is a digest of the options that all ranks must share, `gpu` the identity of its GPU (None: it uses none),
    `backend` the one it would measure with, and `note` what the reader must know about that; without a `backend`,
    `error` is the reason. `falsifying` are environment variables that change what is timed. `host_id` is NCCL_HOSTID,
    which NCCL uses to distinguish nodes; empty: not set. `usable` counts the GPUs that CUDA shows to it, `pid` is its
    process, `settings` the effective value of each variable that its libraries read and ranks should share.
    `other_nccl` names an NCCL other than the one that torch was compiled with. `instance` is the UUID of the MIG
    instance that CUDA shows; empty: the whole GPU.
    """

    host: str
    plan: int
    versions: dict[str, str | None]
    backend: Backend | None = None
    gpu: str | None = None
    note: str = ""
    error: str = ""
    falsifying: dict[str, str] = field(default_factory=dict)
    host_id: str = ""
    usable: int = 0
    pid: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    other_nccl: str = ""
    instance: str = ""

    @property
    def device(self) -> tuple[str, str, str]:
        """Return NCCL's key for a GPU of a node.

        Since 2.30 it is the UUID, so that instances of one GPU are several (src/init.cc:1054), before that the address.
        """
        release = tuple(int(part) for part in (self.versions.get("nccl") or "0").split(".")[:2] if part.isdecimal())
        return (self.host_id or self.host, self.gpu or "", self.instance if release >= _BY_UUID else "")


class RunConfig(Struct, frozen=True):
    """Rank 0's decision for all ranks. With an `error` no rank measures. `apart`: each rank may see only
    its own GPUs.
    """

    backend: Backend
    nodes: int
    note: str = ""
    error: str = ""
    apart: bool = False


def agree_on(infos: Sequence[RankInfo], nnodes: int) -> RunConfig:
    """Decide what the ranks that sent `infos`, ordered by rank, measure.

    `nnodes` is the launcher's count of nodes: containers on several nodes may share one host name.
    """
    first = infos[0]
    error = next((info.error for info in infos if info.error), "") or _disagreement(infos)
    here = Counter(info.host for info in infos)
    apart = first.backend == "nccl" and any(info.usable < here[info.host] for info in infos)
    return RunConfig(first.backend or "gloo", max(nnodes, len(here)), first.note or _shared_gpu(infos), error, apart)


def _disagreement(infos: Sequence[RankInfo]) -> str:
    first, seen = infos[0], dict[tuple[str, str, str], int]()
    for rank, info in enumerate(infos):
        if info.backend != first.backend:
            return (
                f"rank 0 on {first.host} would measure {first.backend} and rank {rank} on {info.host} "
                f"{info.backend}; give every node its GPUs, or use --backend gloo"
            )
        if info.plan != first.plan:
            other = f"rank {rank} on {info.host} was started with different options from rank 0"
            return f"{other}; give every rank the same options"
        same_gpu = rank if info.gpu is None else seen.setdefault(info.device, rank)
        if same_gpu != rank:
            parts = " as MIG instances, and NCCL before 2.30 takes one" if info.instance else ""
            return (
                f"ranks {same_gpu} and {rank} on {info.host} have the same GPU{parts}; start one rank per GPU "
                "(--nproc-per-node=gpu), or use --backend gloo"
            )
    return ""


def _shared_gpu(infos: Sequence[RankInfo]) -> str:
    """Report which ranks share a GPU; otherwise empty.

    NCCL allows it if NCCL_HOSTID makes them different nodes (src/init.cc).
    """
    seen = dict[str, int]()
    for rank, info in enumerate(infos):
        first = rank if info.gpu is None else seen.setdefault(" ".join((info.host, *info.device[1:])), rank)
        if first != rank:
            whose = f"ranks {first} and {rank} on {info.host} share a GPU, because NCCL_HOSTID makes them two nodes"
            return f"{whose}: their kernels take turns, so the times say nothing about any link"
    return ""
