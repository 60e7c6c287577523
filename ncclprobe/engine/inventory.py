"""The machines in a few lines, one per area: their parts, and the worst result of their checks.

A healthy line carries its values, so that its reader sees what was examined and not only that it passed.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.data_paths import DataPaths
from ncclprobe.facts.environment import EVENTS, MEASURING, RECORDING
from ncclprobe.facts.infiniband import Fabric, Port, Rate
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.machine import NamedMachine
from ncclprobe.facts.memory import Memory
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpu, Gpus
from ncclprobe.facts.placement import GROUP, ZONE, Placement
from ncclprobe.facts.process import SharedMemory
from ncclprobe.facts.reach import Paths, Rails
from ncclprobe.facts.software import Software
from ncclprobe.model.findings import Status, Verdict
from ncclprobe.model.hostlist import fold
from ncclprobe.model.layout import first_of
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.report import Area, Scope
from ncclprobe.model.snapshot import Absent, Job, Snapshot, learned
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import grouped

LOUDEST_FIRST = (Status.FAIL, Status.WARN, Status.UNKNOWN, Status.PASS, Status.SKIP)
_MOST_KINDS = 3
"""Different values of one area that are spelled out; further ones are counted."""
_MOST_SETTINGS = 3
_BETWEEN = " · "
_SETTINGS = ("NCCL_", "TORCH_", "GLOO_", "CUDA_", "UCX_", "FI_", "OFI_", "NVSHMEM_")
_OURS = frozenset({"TORCH_CPP_LOG_LEVEL", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", *MEASURING, *EVENTS, *RECORDING})
"""Variables that a measuring run sets in its own ranks."""
_PREFIXES: Mapping[str, tuple[str, ...]] = {
    "nodes": ("launch", "path", "sync"),
    "GPUs": ("gpu", "nvl"),
    "PCIe": ("pci",),
    "NICs": ("ib",),
    "transport": ("env.transport/transport", "sync.network/transport"),
    "rails": ("rail",),
    "host": ("host",),
    "NCCL": ("env",),
    "settings": ("env",),
    "data": ("data",),
    "measured": ("run",),
}
"""The checks of each area, by id prefix or key."""


def scope(snapshots: Sequence[Snapshot], job: Job) -> Scope:
    """Return the jobs that the report covers; GPUs are counted only if every node reports its number of whole GPUs."""
    said = [snapshot.facts.get(Gpus) for snapshot in snapshots]
    counted = [sum(gpu.mig is not True for gpu in gpus.all) for gpus in said if isinstance(gpus, Gpus)]
    gpus = sum(counted) if counted and len(counted) == len(said) else None
    missing = [gpus for gpus in said if isinstance(gpus, Absent) and gpus.refused == "Missing"]
    pasted = bool(snapshots) and all(snapshot.pasted for snapshot in snapshots)
    return Scope(job.backend, gpus, driver=not missing or len(missing) < len(said), pasted=pasted, apart=job.apart)


def areas(
    snapshots: Sequence[Snapshot], verdicts: Sequence[Verdict], job: Job, expected: int | None, rows: str = ""
) -> tuple[Area, ...]:
    """Return one line for each area of the machines that was examined.

    `expected`: the job's number of nodes, if known. `rows`: a summary of the measurements.
    """
    by_key = grouped((each.key, each) for each in verdicts)
    said = grouped((name, v) for key, own in by_key.items() for name in {key.partition(".")[0], key} for v in own)
    wanted = [name for name in _PREFIXES if name not in _NOT_OF[job.backend]]
    values = {name: _summarise_nodes(snapshots, show) for name, show in _SHOWN.items() if name in wanted}
    values = {"nodes": _nodes(snapshots, expected), **values, "rails": _rails(snapshots), "measured": rows}
    made = (_area(name, values.get(name, ""), said) for name in wanted)
    return tuple(area for area in made if area.values or area.ids)


def _area(name: str, values: str, said: Mapping[str, Sequence[Verdict]]) -> Area:
    """Build an area. Advisory checks that could not look are counted; a required one makes the area unknown."""
    own = [verdict for prefix in _PREFIXES[name] for verdict in said.get(prefix, ())]
    blind = {v.id for v in own if v.status is Status.UNKNOWN and not v.required}
    heard = [v for v in own if v.status is not Status.UNKNOWN or v.required]
    worst = min((v.status for v in heard), key=LOUDEST_FIRST.index, default=Status.SKIP)
    if worst is Status.SKIP and blind:
        worst = Status.UNKNOWN
    loud = {v.id: None for v in heard if v.status is worst} if worst in LOUDEST_FIRST[:3] else {}
    return Area(name, values, worst, tuple(loud), len(blind))


def _summarise_nodes(snapshots: Sequence[Snapshot], show: Callable[[Mapping[type, Any]], str]) -> str:
    """Summarise the values of all nodes: the most common first, then the nodes that differ."""
    nodes = grouped((show(snapshot.facts), snapshot.node) for snapshot in snapshots)
    if not nodes:
        return ""
    kinds = sorted(nodes.items(), key=lambda kind: -len(kind[1]))
    if len(kinds) == 1:
        return kinds[0][0]
    parts = {text: text.split(_BETWEEN) for text, _ in kinds}
    common = [part for part in parts[kinds[0][0]] if all(part in others for others in parts.values())]
    own = {text: _BETWEEN.join(part for part in parts[text] if part not in common) for text in parts}
    told = [
        f"{own[text] or ('without it' if text else 'not known')} on {fold(names) if n else plural(len(names), 'node')}"
        for n, (text, names) in enumerate(kinds[:_MOST_KINDS])
        if n or own[text]
    ]
    more = f"; {plural(len(kinds) - _MOST_KINDS, 'other kind')}" if len(kinds) > _MOST_KINDS else ""
    return _BETWEEN.join((*common, "; ".join(told) + more))


def _nodes(snapshots: Sequence[Snapshot], expected: int | None) -> str:
    here, wanted = len(snapshots), max(expected or 1, len(snapshots))
    if wanted == 1:
        return ""
    rows = [row for s in snapshots if (tried := learned(s.facts, Paths)) for row in tried.rows]
    open_ = sum(row.outcome == "ok" for row in rows)
    paths = f" · {'all' if open_ == len(rows) else f'{open_:,} of'} {plural(len(rows), 'path')}" if rows else ""
    return f"{here:,} of {wanted:,}{paths}{_locations(snapshots)}"


def _locations(snapshots: Sequence[Snapshot]) -> str:
    """Return the zone, group and switch directly above the nodes, or how many there are; empty if unknown."""
    known = [where for s in snapshots if (where := learned(s.facts, Placement))]
    found = [{each.name: each for where in known if (each := where.get(kind))} for kind in (ZONE, GROUP)]
    found.append({"/".join(each.name for each in where.tree): where.tree[-1] for where in known if where.tree})
    parts = []
    for levels in ([*each.values()] for each in found if each):
        kind = levels[0].kind
        many = plural(len(levels), f"{kind}e" if kind.endswith("switch") else kind)
        parts.append(f"{kind} {levels[0].name}" if len(levels) == 1 else many)
    return "".join(f"{_BETWEEN}{part}" for part in parts)


def _rails(snapshots: Sequence[Snapshot]) -> str:
    """Summarise the rail tests: ``8 × 4 nodes · 252 tests``; empty: not requested."""
    seen = [rails for s in snapshots if (rails := learned(s.facts, Rails))]
    if not seen:
        return ""
    counts = Counter(len(each.ports) for each in seen)
    kinds = ", ".join(f"{rails} on {plural(nodes, 'node')}" for rails, nodes in counts.most_common(_MOST_KINDS))
    tests = {row.number for each in seen for row in each.rows}
    return f"{kinds} · {plural(len(tests), 'test') if tests else 'none tried'}"


def _gpus(facts: Mapping[type, Any]) -> str:
    if not (gpus := learned(facts, Gpus)):
        return ""
    if not gpus.all:
        return "none"
    cut = (learned(facts, NamedMachine) or NamedMachine()).partial
    if cut and not any(gpu.name for gpu in gpus.all):
        return "neither number nor model known"
    models = Counter(gpu.name.removeprefix("NVIDIA ") or "of unknown model" for gpu in gpus.all)
    named = ", ".join(f"{number} × {model}" for model, number in models.most_common())
    return " · ".join(filter(None, (named, f"driver {gpus.driver}" if gpus.driver else "", _nvlink(facts))))


def _nvlink(facts: Mapping[type, Any]) -> str:
    """Return how many links are up on the worst GPU, out of the most that any has: ``NVLink 18/18``."""
    if not (links := learned(facts, NvLinks)):
        return ""
    known = [gpu for gpu in links.gpus if isinstance(gpu, tuple)]
    most = max(map(len, known), default=0)
    some = f" of {len(known)} GPUs" if len(known) < len(links.gpus) else ""
    active = (sum(link.state == "active" for link in row) for row in known)
    return f"NVLink {min(active)}/{most}{some}" if most else ""


def _pcie(facts: Mapping[type, Any]) -> str:
    """Return generation and lanes of the GPUs' links at their best, or which of them differ."""
    gpus = learned(facts, Gpus)
    found = Counter(filter(None, map(_pcie_of, gpus.all))) if gpus else Counter[str]()
    return ", ".join(f"{number} × {link}" if found.total() > number else link for link, number in found.most_common())


def _pcie_of(gpu: Gpu) -> str:
    """Return ``Gen5 x16``: the current lanes and the maximum generation, which drops at idle."""
    if isinstance(gpu.pcie_width, int) and isinstance(gpu.pcie_max_generation, int):
        return f"Gen{gpu.pcie_max_generation} x{gpu.pcie_width}"
    return ""


def _nics(facts: Mapping[type, Any]) -> str:
    if not (fabric := learned(facts, Fabric)):
        return ""
    ports = [port for device in fabric.devices for port in device.ports]
    if not ports:
        return f"no RDMA device{_sockets(facts)}"
    states = Counter(str(port.state) for port in ports if isinstance(port.state, str))
    kinds = Counter(map(_port, ports))
    named = ", ".join(f"{number} × {kind}" for kind, number in kinds.most_common(_MOST_KINDS))
    if fabric.cut:
        return f"{named} among those that the texts show"
    if not states:
        return f"{named} · states not known"
    up = states.get("ACTIVE", 0)
    return f"{named} · {'all' if up == len(ports) else f'{up} of {len(ports)}'} ACTIVE{_nics_per_gpu(facts, up)}"


def _nics_per_gpu(facts: Mapping[type, Any], ports: int) -> str:
    """Return the number of NICs per GPU, or of GPUs per NIC, if it is whole."""
    gpus = learned(facts, Gpus)
    number = len(gpus.all) if gpus else 0
    if not number or not ports or max(number, ports) % min(number, ports):
        return ""
    return f" · {ports // number} per GPU" if ports >= number else f" · 1 for {number // ports} GPUs"


def _port(port: Port) -> str:
    rate = f"{port.rate.gbps:g} Gb/s " if isinstance(port.rate, Rate) else ""
    layer = port.link_layer if port.link_layer in ("InfiniBand", "Ethernet") else "RDMA"
    return rate + ("RoCE" if layer == "Ethernet" else layer)


def _transport(facts: Mapping[type, Any]) -> str:
    """Describe the transport between nodes: ``NCCL → IB 8 × 400 Gb/s, GPUDirect``."""
    choices = learned(facts, Choices)
    if not choices or choices.network.chosen is None:
        return f"not known: {choices.network.why}" if choices else ""
    if not choices.network.chosen:
        return f"NCCL has none: {choices.network.why}"
    (network,) = choices.network.chosen
    if network.name == "Socket":
        rate = f" ({network.rate_gbps:g} Gb/s)" if network.rate_gbps else ""
        return f"NCCL → sockets over {first_of(network.devices, _MOST_KINDS)}{rate}: {choices.network.why}"
    number = len(network.devices)
    each = f"{number} × {network.rate_gbps / number:.3g} Gb/s" if network.rate_gbps else plural(number, "device")
    plugin = network.plugin + (f" ({network.version})" if network.version else "")
    direct = _direct(choices) if network.name == "IB" else plugin
    return f"NCCL → {network.name} {each}, {direct}"


def _direct(choices: Choices) -> str:
    """Return for how many GPUs NICs access the memory directly."""
    rows = choices.gpudirect.chosen or ()
    if choices.gpudirect.chosen is None or any(row.receives is None for row in rows):
        return "GPUDirect not known"
    able = sum(bool(row.receives) for row in rows)
    some = f"GPUDirect for {able} of {plural(len(rows), 'GPU')}" if able else "no GPUDirect"
    return "GPUDirect" if able == len(rows) else some


def _sockets(facts: Mapping[type, Any]) -> str:
    """Return the interfaces for sockets: physical ones that are up, with their rate if they report it."""
    if not (found := learned(facts, Interfaces)):
        return ""
    up = [i for i in found.all if i.addresses and "running" in i.flags and "loopback" not in i.flags and not i.virtual]
    shown = [f"{i.name} {(i.speed_mbps or 0) / 1000:g} Gb/s".replace(" 0 Gb/s", "") for i in up]
    return f" · {', '.join(shown[:_MOST_KINDS])}" if shown else ""


def _host(facts: Mapping[type, Any]) -> str:
    parts = []
    if cpus := learned(facts, Cpus):
        numa = f" in {plural(len(cpus.numa), 'NUMA node')}" if cpus.numa else ""
        parts.append(plural(len(cpus.online), "processor") + numa)
    if memory := learned(facts, Memory):
        parts.append(f"{_whole(memory.total_bytes)} memory")
    if shm := learned(facts, SharedMemory):
        parts.append(f"{_whole(shm.total_bytes)} /dev/shm")
    return " · ".join(parts)


def _whole(nbytes: int) -> str:
    number, unit = size(nbytes).split()
    return f"{float(number):.3g} {unit}"


def _nccl(facts: Mapping[type, Any]) -> str:
    parts = [_settings(facts)]
    if software := learned(facts, Software):
        version = ".".join(map(str, software.nccl_version or ())) or "none found"
        torch = software.packages.get("torch", "")
        parts.insert(0, f"{version} (torch {torch})" if torch else version)
    return " · ".join(filter(None, parts))


def _settings(facts: Mapping[type, Any]) -> str:
    """Return the names of the set variables that NCCL, gloo, torch and plugins read."""
    if not (settings := learned(facts, Settings)):
        return ""
    names = [each.name for each in settings.named(*_SETTINGS) if each.name not in _OURS]
    return f"{plural(len(names), 'setting')}: {first_of(names, _MOST_SETTINGS)}" if names else "no setting"


def _data(facts: Mapping[type, Any]) -> str:
    """Name each --path with its file system; further ones are counted."""
    paths = learned(facts, DataPaths)
    rows = paths.rows if paths else ()
    kinds = {row.path: "not known" if isinstance(row.mount, Absent) else row.mount.kind for row in rows}
    told = [f"{path} on {kind}" for path, kind in list(kinds.items())[:_MOST_KINDS]]
    return " · ".join([*told, *([f"{len(kinds) - _MOST_KINDS} more"] if len(kinds) > _MOST_KINDS else [])])


_SHOWN: Mapping[str, Callable[[Mapping[type, Any]], str]] = {
    "GPUs": _gpus,
    "PCIe": _pcie,
    "NICs": _nics,
    "transport": _transport,
    "host": _host,
    "NCCL": _nccl,
    "settings": _settings,
    "data": _data,
}
_NOT_OF: Mapping[str, Sequence[str]] = {"nccl": ("settings",), "gloo": ("GPUs", "PCIe", "transport", "NCCL", "rails")}
"""Areas that a report on jobs with this library omits."""
