"""What each rank tells rank 0 of itself, and what rank 0 records of all once they have agreed."""

import os
from collections.abc import Sequence

from ncclprobe.facts.run.ranks import Participants
from ncclprobe.host import Host
from ncclprobe.session.measure import interference
from ncclprobe.session.measure.numa import gpu_index
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.agreement import RankInfo, RunConfig
from ncclprobe.session.ranks.identity import Backend

NO_GRAPH = "--graph captures calls of NCCL in a CUDA graph, and this would measure gloo; leave it out"


def versions() -> dict[str, str | None]:
    """Return the versions of torch and of the NCCL that it loads."""
    import torch

    nccl = _nccl()
    return {"torch": str(torch.__version__), "nccl": ".".join(map(str, nccl)) if nccl else None}


def _nccl() -> tuple[int, int, int] | None:
    import torch

    found: tuple[int, int, int] | None = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
    return found


def rank_info(options: Options, hostname: str, host: Host, backend: Backend, device: int, note: str = "") -> RankInfo:
    """Return what this rank, which measures `backend` with CUDA device `device`, says of itself."""
    import torch

    if backend == "gloo" and options.mode == "graph":
        return RankInfo(hostname, options.digest, versions(), error=NO_GRAPH)
    on_gpu = backend == "nccl"
    return RankInfo(
        host=hostname,
        plan=options.digest,
        versions=versions(),
        backend=backend,
        gpu=str(getattr(torch.cuda.get_device_properties(device), "uuid", device)) if on_gpu else None,
        note=note,
        gpu_index=gpu_index(device) if on_gpu else None,
        falsifying=interference.falsifying(backend, os.environ, host, _nccl()),
        host_id=os.environ.get("NCCL_HOSTID", ""),
    )


def record_participants(recorder: Recorder, kind: str, infos: Sequence[RankInfo], config: RunConfig) -> None:
    """Record who measures, once all have met. `kind`: how the ranks were started."""
    gpus = tuple(info.gpu_index for info in infos)
    recorder.take_part(
        Participants(
            kind=kind,
            ranks=len(infos),
            hosts=tuple(info.host for info in infos),
            backend=config.backend,
            versions=infos[0].versions,
            nnodes=config.nodes,
            fallback=config.note,
            gpus=tuple(gpu for gpu in gpus if gpu is not None) if None not in gpus else (),
        )
    )
    recorder.meet()
    recorder.disturbed(interference.of_settings([info.falsifying for info in infos]))
