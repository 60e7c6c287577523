"""Variables that NCCL, its plugins, torch and gloo read, wherever each node has them from."""

from collections.abc import Collection, Iterator, Sequence

from ncclprobe.checks import IMAGE, JOB, several
from ncclprobe.checks.env import as_evidence, loaded
from ncclprobe.checks.env.fixtures import having, setting
from ncclprobe.checks.env.values import default_of
from ncclprobe.checks.sync import differing, named, several_with_gpus
from ncclprobe.facts.machine import System
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.software import Software, Version
from ncclprobe.model.findings import Finding, fail, note, warn
from ncclprobe.model.hostlist import fold
from ncclprobe.model.registry import check
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Every, Job, vote
from ncclprobe.nccl.parameters import Parameter, table
from ncclprobe.nccl.values import read_int

_DETAIL = "TORCH_DISTRIBUTED_DEBUG"
_GLOOS = ("GLOO_", "TORCH_GLOO_", _DETAIL)
FAMILIES = ("NCCL_", "TORCH_NCCL_", "OFI_NCCL_", "FI_", "UCX_", "RDMAV_", "SHARP_", *_GLOOS)
UNSET = "not set"

_OWN_NAMES = """
    NCCL_SOCKET_IFNAME NCCL_OOB_NET_IFNAME NCCL_IB_HCA NCCL_IB_GID_INDEX NCCL_IB_ROUTABLE_FLID_GID_INDEX
    NCCL_IB_ADDR_RANGE NCCL_HOSTID NCCL_TOPO_FILE NCCL_TOPO_DUMP_FILE NCCL_TOPO_DUMP_FILE_RANK NCCL_GRAPH_DUMP_FILE
    NCCL_GRAPH_DUMP_FILE_RANK NCCL_PROXY_CPUSET NCCL_IGNORE_CPU_AFFINITY NCCL_MNNVL_UUID NCCL_MNNVL_CLIQUE_ID
    NCCL_RAS_ADDR NCCL_CONF_FILE NCCL_IBVERBS_LIB NCCL_DEBUG NCCL_DEBUG_FILE NCCL_DEBUG_SUBSYS
    NCCL_DEBUG_TIMESTAMP_FORMAT NCCL_DEBUG_TIMESTAMP_LEVELS NCCL_WARN_ENABLE_DEBUG_INFO NCCL_PROFILER_PLUGIN
    NCCL_NVTX_DISABLE NCCL_SET_THREAD_NAME NCCL_PARAM_DUMP_ALL FI_LOG_LEVEL FI_TCP_IFACE UCX_LOG_LEVEL
    UCX_NET_DEVICES UCX_IB_GID_INDEX GLOO_SOCKET_IFNAME GLOO_LOG_LEVEL TORCH_NCCL_DEBUG_INFO_TEMP_FILE
    TORCH_NCCL_DEBUG_INFO_PIPE_FILE
"""
OWN_BUSINESS = frozenset(_OWN_NAMES.split())
"""Devices, files, addresses, and what is written where: each node may have its own."""
_MUST_NAMES = """
    NCCL_ALGO NCCL_PROTO NCCL_NET NCCL_NET_PLUGIN NCCL_IB_DISABLE NCCL_BUFFSIZE NCCL_LL_BUFFSIZE NCCL_LL128_BUFFSIZE
    NCCL_P2P_NET_CHUNKSIZE NCCL_COLLNET_ENABLE NCCL_NVLS_ENABLE NCCL_CUMEM_ENABLE
    NCCL_ALLGATHERV_ENABLE NCCL_CHECK_MODE NCCL_COMM_ID NCCL_OOB_NET_ENABLE NCCL_SOCKET_MAGIC NCCL_SOCKET_FAMILY
    NCCL_IB_MERGE_NICS NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME NCCL_GIN_NCONNECTIONS NCCL_TUNER_PLUGIN
    NCCL_TUNER_CONFIG_FILE NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MAX_CTAS FI_PROVIDER
    OFI_NCCL_PROTOCOL TORCH_DISTRIBUTED_DEBUG TORCH_GLOO_LAZY_INIT
    GLOO_DEVICE_TRANSPORT GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER GLOO_ENABLE_STORE_V2_API
"""
MUST_AGREE = frozenset(_MUST_NAMES.split())
"""The table's `hazard` of each says what becomes of ranks that disagree.

NCCL_CROSS_NIC is none: of all ranks the greatest counts (src/init.cc initTransportsRank, v2.30.7), and where one
differs the job ends well (played with 2.23.4 and 2.28.9).
"""
MUST_AGREE_ON_A_HOST = frozenset({"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE"})
"""Ranks of one host choose how they reach each other by these: where one of them differs, some crash and others wait
(played with 2.23.4 and 2.28.9).
"""
_RING = having(NCCL_ALGO="Ring")
_ANY: Every[Software | Absent] = Every({})


@check(
    slows=True,
    bad=lambda: [(Every({"n0": _RING, "n1": having(NCCL_ALGO="Tree")}), _ANY, Job())],
    good=lambda: [(Every({"n0": _RING, "n1": _RING}), _ANY, Job())],
    required=True,
    applies=several,
)
def env(settings: Every[Settings], software: Every[Software | Absent], job: Job) -> Iterator[Finding]:
    """Nodes have different settings, from the environment or from NCCL's configuration files.

    Right: All nodes have the same settings.
    Why: ranks choose algorithm, protocol, buffers and network each by its own settings and never compare them: where
    they disagree, the job hangs, or ends in "message truncated", and neither names the variable. A file such as
    /etc/nccl.conf, or a shell's profile, differs without a change by hand.
    Fix: set the variable in one place for all nodes: the job script with srun --export or mpirun -x, or one image.
    """
    version = _version(software)
    names = {name for _, each in settings.items() for name in each.effective if name.startswith(FAMILIES)}
    for name in sorted(names):
        entries = {node: each.effective.get(name) for node, each in settings.items()}
        yield from _compared(name, entries, version, job)


def _version(software: Every[Software | Absent]) -> Version | None:
    """Return the NCCL of the first node that has one; others are sync.nccl-version's business."""
    return next((version for _, each in software.items() if (version := loaded(each))), None)


def _compared(name: str, entries: dict[str, Setting | None], version: Version | None, job: Job) -> Iterator[Finding]:
    parameter = table().get(name)
    meant = {node: meaning(entry, parameter, version) for node, entry in entries.items()}
    if len(set(meant.values())) <= 1:
        return
    ballot = vote(meant)
    outliers = ballot.outliers
    written = {meant[node]: _written(entry) for node, entry in reversed(entries.items())}
    told = differing(ballot, lambda meaning: written[meaning], f"{name} is")
    given = [entry for node in outliers or entries if (entry := entries[node])] or [e for e in entries.values() if e]
    from_files = all(entry.origin != "environment" for entry in given)
    remedy = _alike(name, outliers, {entries[node] for node in outliers})
    details = {**told, **(IMAGE if from_files else JOB), "remedy": remedy, "evidence": as_evidence(given[0])}
    if name in OWN_BUSINESS or parameter is None or not parameter.is_read or not is_read_by(name, job):
        if ballot.settled:  # as many values as nodes is how it is meant
            yield note(name, **details)
    elif name in MUST_AGREE:
        details["message"] += f" ({parameter.hazard})"
        yield fail(name, **details)
    else:
        yield warn(name, **details)


def _alike(name: str, outliers: Sequence[str], given: Collection[Setting | None]) -> str:
    """Return what to type on the nodes that differ in one way; empty: they differ in several."""
    if len(given) != 1:
        return ""
    (entry,), where = given, fold(outliers)
    if entry is None:
        return f"on {where}: set {name} as on the other nodes, or unset it on all"
    if entry.origin == "environment":
        return f"on {where}: `unset {name}`, or set it to the same on all (srun --export, mpirun -x)"
    return f"on {where}: take {name} out of {entry.origin}, or have the same there on all nodes (one image)"


def is_read_by(name: str, job: Job) -> bool:
    """Return whether a library of this job reads the variable."""
    return job.backend == "nccl" or name.startswith(_GLOOS)


def meaning(entry: Setting | None, parameter: Parameter | None, version: Version | None) -> str:
    """Return what a setting comes to, one for all ways to write it: ``0x10`` is 16, and so may be not to set it."""
    if parameter is not None and parameter.name == _DETAIL:  # INFO and OFF are one: no rank waits for another's checks
        return "DETAIL" if entry and (entry.value or "").upper() == "DETAIL" else UNSET
    if parameter is None or (entry and entry.value is None):
        return UNSET if entry is None else str(entry.value)
    text = (entry.value if entry else None) or ""
    if parameter.is_integer:
        return _integer(text, default_of(parameter, version))
    return (text.lower() if parameter.any_case else text) or UNSET


def _integer(text: str, default: int | None) -> str:
    if text:
        return str(read_int(text, 0).value)
    return UNSET if default is None else str(default)


def _written(entry: Setting | None) -> str:
    if entry is None:
        return UNSET
    return "set" if entry.value is None else repr(entry.value) if entry.value != entry.value.strip() else entry.value


def _booted(identity: str) -> System:
    return System(identity, "6.8.0", "x86_64", "Ubuntu 22.04", identity)


_SYSTEMS: Every[System | Absent] = Every({"n0": _booted("a"), "n1": _booted("b")})
_NODE = having(NCCL_HOSTID="node")


@check(
    bad=lambda: [(Every({"n0": _NODE, "n1": setting("NCCL_HOSTID", "node", "/etc/nccl.conf:1")}), _SYSTEMS)],
    good=lambda: [(Every({"n0": _NODE, "n1": having(NCCL_HOSTID="node1")}), _SYSTEMS)],
    applies=several_with_gpus,
)
def hostid(settings: Every[Settings], systems: Every[System | Absent]) -> Iterator[Finding]:
    """Different machines have the same NCCL_HOSTID.

    Right: Every machine has an identity of its own for NCCL.
    Why: to NCCL ranks with one identity are on one machine (getHostHash in src/misc/utils.cc:117): it takes GPUs with
    the same PCI address for one GPU, and tries shared memory between machines, and fails (nccl#879).
    Fix: unset it, or make it differ: NCCL_HOSTID=$(hostname), evaluated on each node.
    """
    groups: dict[str, dict[str, str]] = {}
    for node, each in settings.items():
        system = systems.by_node.get(node)
        boot = system.boot_id if isinstance(system, System) else None
        if value := each.get("NCCL_HOSTID"):
            groups.setdefault(value, {})[node] = boot or node
    for value, machines in groups.items():
        if len(set(machines.values())) > 1:
            entry = next(iter(settings.by_node[node] for node in machines)).effective["NCCL_HOSTID"]
            message = f"is {value!r} on {len(set(machines.values()))} machines: {named(machines)}"
            yield fail("NCCL_HOSTID", message, nodes=tuple(machines), evidence=as_evidence(entry), **JOB)
