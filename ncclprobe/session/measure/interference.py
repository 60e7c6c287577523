"""Each rank's report to rank 0 about itself and about disturbances, and rank 0's record once all have agreed.

Disturbances of a run: throttled GPUs, processors busy with other work, settings that change what is timed. The settings
are read on every rank before anything is measured. The rest is read once before and once after, never in between. A
disturbance explains only a limited loss: a run is not ten times slower because a third of the processors was busy. So
each has a share of the usual speed that remains at least.
"""

import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence

from ncclprobe.checks.run.ranks import in_words
from ncclprobe.checks.sync.settings import FAMILIES, MUST_AGREE, OWN_BUSINESS, is_read_by, meaning
from ncclprobe.engine.collect import collect
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.nccl_conf import Settings, merge, settings_of
from ncclprobe.facts.nvml import SLOWED, Gpus, heated_s, xids
from ncclprobe.facts.run.samples import DifferingSetting, Participants
from ncclprobe.facts.software import parse_version
from ncclprobe.host import Host
from ncclprobe.model.errors import HostError
from ncclprobe.model.layout import first_of
from ncclprobe.model.measurement import Disturbance, Xids
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Absent, Job, learned
from ncclprobe.model.units import USER_HZ
from ncclprobe.model.values import Struct, grouped
from ncclprobe.nccl.parameters import Parameter, table
from ncclprobe.nccl.values import read_setting
from ncclprobe.probes import nccl_library
from ncclprobe.session.measure.context import RankContext
from ncclprobe.session.measure.recorder import Recorder
from ncclprobe.session.options import Options
from ncclprobe.session.ranks.identity import Backend, RankInfo, RunConfig, gpu_identity, gpu_instance

_NOTABLE = 0.25
"""Other work must have used this share of a host's processors to be reported."""
_LEAST_LEFT = 0.25
"""A busy host leaves at least this share of the speed: a slower run has another cause."""
_HOT = 0.05
"""Heat must have lowered a GPU's clocks for this share of a run to be reported."""
_MOST_XIDS = 3
_MOST_CHARACTERS = 64
"""Longest recorded value of a setting."""


class Reading(Struct, frozen=True):
    """Seconds since the host booted, over all its processors, of this process, and on the wall."""

    total_s: float
    busy_s: float
    steal_s: float
    own_s: float


def read(host: Host) -> Reading | None:
    """Read the processors' time; None if /proc/stat cannot be read."""
    try:
        text = host.ask("read", "/proc/stat")
    except HostError:
        return None
    return parse(text, time.process_time())


def parse(text: str, own_s: float) -> Reading | None:
    """Parse the first line of /proc/stat: user nice system idle iowait irq softirq steal (proc(5))."""
    words = text.partition("\n")[0].split()
    if len(words) < 9 or words[0] != "cpu" or not all(word.isdigit() for word in words[1:9]):
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = (int(word) / USER_HZ for word in words[1:9])
    busy = user + nice + system + irq + softirq
    return Reading(busy + idle + iowait + steal, busy, steal, own_s)


def processor_disturbance(host: str, before: Reading, after: Reading, own_s: Iterable[float]) -> Disturbance | None:
    """Return whether other work kept the processors of `host` busy; `own_s` is the CPU time of its ranks."""
    total = after.total_s - before.total_s
    if total <= 0:
        return None
    others = max(0.0, after.busy_s - before.busy_s - sum(own_s)) / total
    stolen = max(0.0, after.steal_s - before.steal_s) / total
    if others + stolen < _NOTABLE:
        return None
    words = [f"{others:.0%} of the processors of {host} were busy with other work"] if others >= 0.01 else []
    words += [f"{stolen:.0%} of the processors of {host} were taken by its hypervisor"] if stolen >= 0.01 else []
    # a rank that waits for a processor delays the others too, so the loss counts twice
    return Disturbance(", ".join(words), max(_LEAST_LEFT, 1 - 2 * (others + stolen)))


class Heat(Struct, frozen=True):
    """Time of the reading in seconds, and for how many seconds heat had lowered each GPU's clocks until then."""

    at_s: float
    by_gpu: Mapping[int, float]


def heat(host: Host) -> Heat:
    """Read NVML's heat counters. A GPU cools within a second of its last call, and then reports no reason any more."""
    return Heat(time.monotonic(), heated_s(host))


def of_gpus(host: str, before: Heat, after: Heat, gpus: Gpus | None) -> list[Disturbance]:
    """Return which GPUs of `host` lowered their clocks between two readings, or have lowered them now, by `gpus`."""
    told: dict[int, list[str]] = {}
    for gpu in gpus.all if gpus else ():
        throttle = gpu.throttle if isinstance(gpu.throttle, tuple) else ()
        told[gpu.index] = [reason for reason in throttle if reason in SLOWED]
    for index, until_s in after.by_gpu.items():
        share = (until_s - before.by_gpu.get(index, until_s)) / max(after.at_s - before.at_s, 1e-9)
        if share >= _HOT:
            told.setdefault(index, []).append(f"for heat, {min(share, 1.0):.0%} of the time")
    return [
        Disturbance(f"GPU{index} of {host} lowered its clocks ({', '.join(reasons)})", _LEAST_LEFT)
        for index, reasons in told.items()
        if reasons
    ]


def tell_xids(run: RankContext, *, heard: bool) -> None:
    """Record the errors that NVML reported on each node's GPUs; `heard`: it listened since before the first call."""
    run.set_phase("read the errors that NVML reports")
    found = xids(run.host) if run.look and heard else None
    told = run.exchange.collect(None if isinstance(found, Absent) or found is None else [socket.gethostname(), found])
    run.record(Xids(node, tuple((gpu, code) for gpu, code in heard)) for node, heard in filter(None, told or ()))


def xids_behind(host: Host, backend: Backend | None) -> str:
    """Describe the errors that NVML reported on this host's GPUs after a failed call; empty: none."""
    found = xids(host) if backend == "nccl" else ()
    told = [] if isinstance(found, Absent) else [f"Xid {code} of GPU{gpu}" for gpu, code in dict.fromkeys(found)]
    return f"; NVML reported {first_of(told, _MOST_XIDS)}" if told else ""


def gpus_now(host: Host) -> Gpus | None:
    """Read the GPUs from NVML."""
    found = [each for each in discover("ncclprobe.facts", Collector, {"machine"}) if each.produces is Gpus]
    return learned(collect(host, found), Gpus)


def host_disturbances(readings: Sequence[tuple[str, Reading | None, Reading | None]]) -> list[Disturbance]:
    """Return which hosts were busy; `readings` are each rank's host and its readings before and after."""
    found = []
    for host in dict.fromkeys(host for host, _, _ in readings):
        pairs = [(before, after) for name, before, after in readings if name == host and before and after]
        if pairs:
            own = (after.own_s - before.own_s for before, after in pairs)
            found.append(processor_disturbance(host, *pairs[0], own))
    return [each for each in found if each]


_DETAIL = "torch compares the shapes of every call over gloo first"
_BLOCKING = "every launch waits until it has finished, so calls do not overlap"
_LINES = "NCCL logs a line for every call"
_CHECKED = "NCCL checks the arguments of each call"
_TORCHS_SWITCHES = {
    "TORCH_NCCL_BLOCKING_WAIT": "the host waits for the end of each call, so calls do not overlap",
    "NCCL_BLOCKING_WAIT": "torch reads it as TORCH_NCCL_BLOCKING_WAIT: the host waits for the end of each call",
    "TORCH_NCCL_NAN_CHECK": "torch searches each buffer for NaN before it is sent",
    "TORCH_DIST_NAN_CHECK": "torch searches each buffer for NaN before it is sent",
    "TORCH_NCCL_DESYNC_DEBUG": "torch writes the beginning and the end of each call to its store",
}
"""Read by torch's getCvarBool (csrc/distributed/c10d/Utils.hpp), only by NCCL's process group."""
_TRUE = ("y", "yes", "1", "t", "true")
_EFFECTS = {
    **_TORCHS_SWITCHES,
    "NCCL_CHECK_MODE": _CHECKED,
    "NCCL_CHECK_POINTERS": _CHECKED,
    "TORCH_DISTRIBUTED_DEBUG": _DETAIL,
    "CUDA_LAUNCH_BLOCKING": _BLOCKING,
    "NCCL_DEBUG": _LINES,
    "NCCL_DEBUG_SUBSYS": _LINES,
}


def falsifying(
    backend: str, variables: Mapping[str, str], host: Host, nccl: tuple[int, int, int] | None = None
) -> dict[str, str]:
    """Return this process's settings that change what is timed with `backend`, by name, with their values.

    NCCL's may also be set in its configuration files, as its version `nccl` (None: the newest) reads them: the value is
    then followed by file and line. torch and NCCL ignore case (torch csrc/distributed/c10d/debug.cpp; NCCL
    src/debug.cc).
    """
    found = {"TORCH_DISTRIBUTED_DEBUG": variables.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"}
    settings = Settings()
    if backend == "nccl":
        settings = effective_settings(host, Environment(variables), nccl)
        level, systems = ((settings.get(name) or "").upper() for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"))
        found |= {name: variables.get(name, "").lower() in _TRUE for name in _TORCHS_SWITCHES}
        found |= {
            "NCCL_CHECK_MODE": (settings.get("NCCL_CHECK_MODE") or "").upper() in ("DEBUG_LOCAL", "DEBUG_GLOBAL"),
            "NCCL_CHECK_POINTERS": read_setting(settings, "NCCL_CHECK_POINTERS", 0) != 0,
            "CUDA_LAUNCH_BLOCKING": variables.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"),
            "NCCL_DEBUG": level == "TRACE",
            "NCCL_DEBUG_SUBSYS": level in ("INFO", "ABORT") and "ALL" in systems.split(","),
        }
    return {name: _value(name, variables, settings) for name, is_set in found.items() if is_set}


def effective_settings(host: Host, environment: Environment, nccl: tuple[int, int, int] | None) -> Settings:
    """Return NCCL's settings; only the environment's if the host's files cannot be read in time."""
    try:
        return settings_of(host, environment, nccl)
    except HostError:
        return merge(environment, ())


def _value(name: str, variables: Mapping[str, str], settings: Settings) -> str:
    """Return a setting's value, with file and line unless it comes from the environment."""
    if name in variables:
        return variables[name][:_MOST_CHARACTERS]
    setting = settings.effective[name]
    return f"{(setting.value or '')[:_MOST_CHARACTERS]} ({setting.origin})"


def setting_disturbances(by_rank: Sequence[Mapping[str, str]]) -> list[Disturbance]:
    """Return the settings of all ranks that change what is timed: each once, with its ranks."""
    ranks = grouped((setting, rank) for rank, settings in enumerate(by_rank) for setting in settings.items())
    return [
        Disturbance(f"{name}={value} on {named(found, len(by_rank))}: {_EFFECTS[name]}", 0.0, falsifies=True)
        for (name, value), found in ranks.items()
        if name in _EFFECTS
    ]


def named(ranks: Sequence[int], of: int) -> str:
    """Describe `ranks` out of `of` ranks."""
    if len(ranks) == of:
        return "every rank"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} of {of} ranks, {ranks[0]} first"


NO_GRAPH = "--graph captures calls of NCCL in a CUDA graph, and this would measure gloo; leave it out"


def versions() -> dict[str, str | None]:
    """Return the versions of torch and of the NCCL that it calls."""
    import torch

    nccl = nccl_library.loaded()
    return {"torch": str(torch.__version__), "nccl": str(nccl) if nccl else None}


def usable_gpus() -> int:
    """Count the GPUs that CUDA shows to this process. torch uses NVML's count, but CUDA omits those split by MIG."""
    import torch

    count = torch.cuda.device_count()
    return min(count, torch._C._cuda_getDeviceCount()) if count else 0


def rank_info(
    options: Options, hostname: str, host: Host, backend: Backend, device: int, local_ranks: int, note: str = ""
) -> RankInfo:
    """Return the report of this rank, one of `local_ranks` here, about itself, with `backend` and CUDA
    device `device`.
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
        falsifying=falsifying(backend, os.environ, host, nccl.version if nccl else None),
        host_id=os.environ.get("NCCL_HOSTID", ""),
        pid=os.getpid(),
        settings=told_settings(backend, host),
        usable=usable_gpus() if backend == "nccl" else 0,
        other_nccl=nccl.note if nccl else "",
        instance=gpu_instance(device) if backend == "nccl" else "",
    )


def record_participants(recorder: Recorder, kind: str, infos: Sequence[RankInfo], config: RunConfig) -> tuple[str, ...]:
    """Record the participants, once all have joined. `kind`: how the ranks were started.

    Return the settings that differ although ranks must agree on them: the first call may hang because of them.
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
        recorder.note(text if len(ranks) == len(infos) else f"{text} (on {named(ranks, len(infos))})")
    recorder.disturbed(setting_disturbances([info.falsifying for info in infos]))
    found = differing(infos)
    recorder.differ(found)
    return tuple(f"{each.name}: {in_words(each)}" for each in found if each.name in MUST_AGREE)


def _is_kept(name: str) -> bool:
    """Return whether the setting helps to compare the report with a baseline: not a path, a host name, or ours."""
    return table()[name].type not in ("path", "string") and not name.startswith("TORCH_")


def told_settings(backend: Backend, host: Host) -> dict[str, str]:
    """Return the effective values of this process's settings that `backend` reads and ranks should share.

    Two spellings of one value count as one. Only variables of the table, whose values may be recorded, are included.
    """
    nccl = nccl_library.loaded()
    version = nccl.version if nccl else None
    read = effective_settings(host, Environment(os.environ), version)
    shared = {
        name: parameter for name, entry in read.effective.items() if (parameter := _shared_parameter(name, backend))
    }
    return {
        name: meaning(read.effective[name], parameter, version)[:_MOST_CHARACTERS] for name, parameter in shared.items()
    }


def _shared_parameter(name: str, backend: Backend) -> Parameter | None:
    """Return the variable if `backend` reads it and it must not differ between ranks."""
    parameter = table().get(name)
    ours = name.startswith(FAMILIES) and name not in OWN_BUSINESS and is_read_by(name, Job(backend))
    return parameter if ours and parameter and parameter.is_read else None


def differing(infos: Sequence[RankInfo]) -> tuple[DifferingSetting, ...]:
    """Return the settings that differ between the ranks that reported; an unset one counts as its default."""
    known = infos[0].versions.get("nccl")
    version = parse_version(known) if known else None
    found = []
    for name in sorted({name for info in infos for name in info.settings}):
        unset = meaning(None, table().get(name), version)
        ranks = grouped((info.settings.get(name, unset), rank) for rank, info in enumerate(infos))
        if len(ranks) > 1:
            found.append(DifferingSetting(name, tuple((value, tuple(those)) for value, those in ranks.items())))
    return tuple(found)
