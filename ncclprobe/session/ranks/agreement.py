"""What ranks send to rank 0 before anything is measured, and its decision for all. Pure; JSON over the store."""

from collections import Counter
from collections.abc import Sequence

from ncclprobe.model.values import Struct, field
from ncclprobe.session.ranks.identity import Backend


class RankInfo(Struct, frozen=True):
    """What one rank says of itself.

    `plan` is a digest of the options that all ranks must share, `gpu` the identity of its GPU (None: it uses none),
    `backend` what it would measure with, and `note` what the reader must know of that; without a `backend`, `error`
    says why. `falsifying` are environment variables that change what is timed.
    `host_id` is NCCL_HOSTID, by which NCCL tells nodes apart; empty: not set. `usable` counts the GPUs that CUDA shows
    to it, `pid` is its process, `settings` what each variable comes to that its libraries read and ranks should share.
    `other_nccl` names an NCCL which is not the one that torch was compiled with.
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


class RunConfig(Struct, frozen=True):
    """Rank 0's decision for all ranks. With an `error` no rank measures. `apart`: ranks of a node may see GPUs of their
    own alone.
    """

    backend: Backend
    nodes: int
    note: str = ""
    error: str = ""
    apart: bool = False


def agree_on(infos: Sequence[RankInfo], nnodes: int) -> RunConfig:
    """Decide what the ranks that sent `infos`, in the order of ranks, measure. `nnodes` is the launcher's count of
    nodes: containers on several nodes may share one host name.
    """
    first = infos[0]
    error = next((info.error for info in infos if info.error), "") or _disagreement(infos)
    here = Counter(info.host for info in infos)
    apart = first.backend == "nccl" and any(info.usable < here[info.host] for info in infos)
    return RunConfig(first.backend or "gloo", max(nnodes, len(here)), first.note or _shared_gpu(infos), error, apart)


def _disagreement(infos: Sequence[RankInfo]) -> str:
    first, seen = infos[0], dict[tuple[str, str], int]()
    for rank, info in enumerate(infos):
        if info.backend != first.backend:
            return (
                f"rank 0 on {first.host} would measure {first.backend} and rank {rank} on {info.host} "
                f"{info.backend}; give every node its GPUs, or ask for --backend gloo"
            )
        if info.plan != first.plan:
            other = f"rank {rank} on {info.host} was started with other options than rank 0"
            return f"{other}; give every rank the same options"
        same_gpu = rank if info.gpu is None else seen.setdefault((info.host_id or info.host, info.gpu), rank)
        if same_gpu != rank:
            return (
                f"ranks {same_gpu} and {rank} on {info.host} have the same GPU; start one rank per GPU "
                "(--nproc-per-node=gpu), or ask for --backend gloo"
            )
    return ""


def _shared_gpu(infos: Sequence[RankInfo]) -> str:
    """Say which ranks share a GPU: NCCL allows it where NCCL_HOSTID makes nodes of them (src/init.cc); else empty."""
    seen = dict[str, int]()
    for rank, info in enumerate(infos):
        first = rank if info.gpu is None else seen.setdefault(f"{info.host} {info.gpu}", rank)
        if first != rank:
            whose = f"ranks {first} and {rank} on {info.host} share a GPU, as NCCL_HOSTID makes two nodes of them"
            return f"{whose}: their kernels take turns, so the times say nothing about any link"
    return ""
