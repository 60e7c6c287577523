"""What each rank tells rank 0 of itself, and what rank 0 records of all once they have agreed."""

import os
from collections.abc import Sequence

from ncclprobe.checks.run.settings import in_words
from ncclprobe.checks.sync.settings import FAMILIES, MUST_AGREE, OWN_BUSINESS, is_read_by, meaning
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.run.samples import DifferingSetting, Participants
from ncclprobe.facts.software import parse_version
from ncclprobe.host import Host
from ncclprobe.model.snapshot import Job
from ncclprobe.nccl.parameters import Parameter, table
from ncclprobe.probes import nccl_library
from ncclprobe.session.measure import interference
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.agreement import RankInfo, RunConfig
from ncclprobe.session.ranks.identity import Backend, gpu_identity

_MOST_CHARACTERS = 64
"""Of a setting's value."""
NO_GRAPH = "--graph captures calls of NCCL in a CUDA graph, and this would measure gloo; leave it out"


def versions() -> dict[str, str | None]:
    """Return the versions of torch and of the NCCL that it calls."""
    import torch

    nccl = nccl_library.loaded()
    return {"torch": str(torch.__version__), "nccl": str(nccl) if nccl else None}


def rank_info(
    options: Options, hostname: str, host: Host, backend: Backend, device: int, local_ranks: int, note: str = ""
) -> RankInfo:
    """Return what this rank, one of `local_ranks` here, which measures `backend` with CUDA device `device`, says of
    itself.
    """
    import torch

    from ncclprobe.probes.buffers import free_bytes

    on_gpu = backend == "nccl"
    free = free_bytes(torch.device(f"cuda:{device}" if on_gpu else "cpu"), host)
    place = f"on GPU {device} of {hostname}" if on_gpu else f"on {hostname}"
    error = NO_GRAPH if not on_gpu and options.mode == "graph" else ""
    if error := error or options.without_room(1 if on_gpu else local_ranks, free, place):
        return RankInfo(hostname, options.digest, versions(), error=error)
    nccl = nccl_library.loaded() if on_gpu else None
    return RankInfo(
        host=hostname,
        plan=options.digest,
        versions=versions(),
        backend=backend,
        gpu=gpu_identity(device) if backend == "nccl" else None,
        note=note,
        falsifying=interference.falsifying(backend, os.environ, host, nccl.version if nccl else None),
        host_id=os.environ.get("NCCL_HOSTID", ""),
        pid=os.getpid(),
        settings=told_settings(backend, host),
        usable=torch.cuda.device_count() if backend == "nccl" else 0,
        other_nccl=nccl.note if nccl else "",
    )


def record_participants(recorder: Recorder, kind: str, infos: Sequence[RankInfo], config: RunConfig) -> tuple[str, ...]:
    """Record who measures, once all have met. `kind`: how the ranks were started.

    Return what the first call may hang for: the settings on which ranks must agree, and do not.
    """
    recorder.take_part(
        Participants(
            kind=kind,
            ranks=len(infos),
            hosts=tuple(info.host for info in infos),
            backend=config.backend,
            versions=infos[0].versions,
            nnodes=config.nodes,
            fallback=config.note,
            pids=tuple(info.pid if info.host == infos[0].host else 0 for info in infos),
            gpus=tuple(info.gpu for info in infos if info.gpu is not None),
            settings={name: value for name, value in infos[0].settings.items() if _is_kept(name)},
        )
    )
    recorder.meet()
    for text in dict.fromkeys(info.other_nccl for info in infos if info.other_nccl):
        ranks = [rank for rank, info in enumerate(infos) if info.other_nccl == text]
        recorder.note(text if len(ranks) == len(infos) else f"{text} (on {interference.named(ranks, len(infos))})")
    recorder.disturbed(interference.of_settings([info.falsifying for info in infos]))
    found = differing(infos)
    recorder.differ(found)
    return tuple(f"{each.name}: {in_words(each)}" for each in found if each.name in MUST_AGREE)


def _is_kept(name: str) -> bool:
    """Return whether the report tells the setting apart from a baseline's: no path, no name of a host, none of ours."""
    return table()[name].type not in ("path", "string") and not name.startswith("TORCH_")


def told_settings(backend: Backend, host: Host) -> dict[str, str]:
    """Return what each setting of this process comes to that libraries of `backend` read and ranks should share.

    Two ways to write one value are one. Only variables of the table are told, whose values may be recorded.
    """
    nccl = nccl_library.loaded()
    version = nccl.version if nccl else None
    read = interference.effective_settings(host, Environment(os.environ), version)
    shared = {name: parameter for name, entry in read.effective.items() if (parameter := _shared(name, backend))}
    return {
        name: meaning(read.effective[name], parameter, version)[:_MOST_CHARACTERS] for name, parameter in shared.items()
    }


def _shared(name: str, backend: Backend) -> Parameter | None:
    """Return the variable where it is read with `backend`, and no rank's own business."""
    parameter = table().get(name)
    ours = name.startswith(FAMILIES) and name not in OWN_BUSINESS and is_read_by(name, Job(backend))
    return parameter if ours and parameter and parameter.is_read else None


def differing(infos: Sequence[RankInfo]) -> tuple[DifferingSetting, ...]:
    """Return the settings in which the ranks differ that told so; a rank that has not set one has its default."""
    known = infos[0].versions.get("nccl")
    version = parse_version(known) if known else None
    found = []
    for name in sorted({name for info in infos for name in info.settings}):
        unset = meaning(None, table().get(name), version)
        ranks: dict[str, list[int]] = {}
        for rank, info in enumerate(infos):
            ranks.setdefault(info.settings.get(name, unset), []).append(rank)
        if len(ranks) > 1:
            found.append(DifferingSetting(name, tuple((value, tuple(those)) for value, those in ranks.items())))
    return tuple(found)
