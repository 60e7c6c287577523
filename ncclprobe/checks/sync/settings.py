"""What a job runs with, node by node: variables that NCCL, its plugins, torch and gloo read, wherever they are from;
versions of libraries, drivers and firmware, the code, and the time.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

from ncclprobe.checks import IMAGE, JOB, several
from ncclprobe.checks.env import as_evidence, loaded
from ncclprobe.checks.env.fixtures import gpus, having, hcas, nccl, over, setting
from ncclprobe.checks.env.values import default_of
from ncclprobe.checks.majority import differing, named, several_with_gpus, unlike
from ncclprobe.checks.sync import IDENTITY_GROUP, NETWORK_GROUP, VERSIONS_GROUP
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.machine import System
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.reach import ClockOffset, Gathering
from ncclprobe.facts.software import Software, Torch, Version
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, fail, note, seen, warn
from ncclprobe.model.hostlist import fold
from ncclprobe.model.layout import first_of
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.registry import check
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent, Every, Job, vote
from ncclprobe.model.values import replace
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
"""Devices, files, addresses, and output paths: each node may have its own."""
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
"""The table's `hazard` of each says what happens to ranks that disagree.

NCCL_CROSS_NIC has none: the greatest of all ranks counts (src/init.cc initTransportsRank, v2.30.7), and if one
differs the job succeeds (played with 2.23.4 and 2.28.9).
"""
MUST_AGREE_ON_A_HOST = frozenset({"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE"})
"""Ranks of one host choose by these how they reach each other: if one of them differs, some crash and others wait
(played with 2.23.4 and 2.28.9).
"""
RING = having(NCCL_ALGO="Ring")
_ANY: Every[Software | Absent] = Every({})


@check(
    slows=True,
    bad=lambda: [(Every({"n0": RING, "n1": having(NCCL_ALGO="Tree")}), _ANY, Job())],
    good=lambda: [(Every({"n0": RING, "n1": RING}), _ANY, Job())],
    required=True,
    applies=several,
)
def env(settings: Every[Settings], software: Every[Software | Absent], job: Job) -> Iterator[Finding]:
    """Nodes have different settings, from the environment or from NCCL's configuration files.

    Right: All nodes have the same settings.
    Why: each rank chooses algorithm, protocol, buffers and network by its own settings, and ranks never compare them.
    If they differ, the job hangs or fails with "message truncated", and no message names the variable. Files such as
    /etc/nccl.conf or a shell profile can differ even if nobody changed a setting by hand.
    Fix: set the variable in one place for all nodes: in the job script with srun --export or mpirun -x, or in one
    image.
    """
    version = _version(software)
    names = {name for _, each in settings.items() for name in each.effective if name.startswith(FAMILIES)}
    for name in sorted(names):
        entries = {node: each.effective.get(name) for node, each in settings.items()}
        yield from _compared(name, entries, version, job)


def _version(software: Every[Software | Absent]) -> Version | None:
    """Return the NCCL of the first node that has one; others are sync.versions's business."""
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
        return f"on {where}, set {name} as on the other nodes, or unset it on all nodes"
    if entry.origin == "environment":
        return f"on {where}, run `unset {name}`, or set it to the same value on all nodes (srun --export, mpirun -x)"
    return f"on {where}, remove {name} from {entry.origin}, or set the same value there on all nodes (one image)"


def is_read_by(name: str, job: Job) -> bool:
    """Return whether a library of this job reads the variable."""
    return job.backend == "nccl" or name.startswith(_GLOOS)


def meaning(entry: Setting | None, parameter: Parameter | None, version: Version | None) -> str:
    """Return a setting's effective value in one spelling: ``0x10`` is 16, and an unset variable may be too."""
    if parameter is not None and parameter.name == _DETAIL:  # INFO and OFF are one: no rank waits for another's checks
        return "DETAIL" if entry and (entry.value or "").upper() == "DETAIL" else UNSET
    if parameter is None or (entry and entry.value is None):
        return UNSET if entry is None else str(entry.value)
    text = (entry.value if entry else None) or ""
    if parameter.is_integer:
        default = default_of(parameter, version)
        if text:
            return str(read_int(text, 0).value)
        return UNSET if default is None else str(default)
    return (text.lower() if parameter.any_case else text) or UNSET


def _written(entry: Setting | None) -> str:
    if entry is None:
        return UNSET
    return "set" if entry.value is None else repr(entry.value) if entry.value != entry.value.strip() else entry.value


def booted(identity: str) -> System:
    return System(identity, "6.8.0", "x86_64", "Ubuntu 22.04", identity)


SYSTEMS: Every[System | Absent] = Every({"n0": booted("a"), "n1": booted("b")})
NODE = having(NCCL_HOSTID="node")


@check(
    group=IDENTITY_GROUP,
    bad=lambda: [(Every({"n0": NODE, "n1": setting("NCCL_HOSTID", "node", "/etc/nccl.conf:1")}), SYSTEMS)],
    good=lambda: [(Every({"n0": NODE, "n1": having(NCCL_HOSTID="node1")}), SYSTEMS)],
    applies=several_with_gpus,
)
def hostid(settings: Every[Settings], systems: Every[System | Absent]) -> Iterator[Finding]:
    """Different machines have the same NCCL_HOSTID.

    Right: Every machine has its own identity for NCCL.
    Why: NCCL treats ranks with the same identity as ranks on one machine (getHostHash in src/misc/utils.cc:117). It
    mistakes GPUs with the same PCI address for one GPU, then tries shared memory between machines, which fails
    (nccl#879).
    Fix: unset it, or make it different on each node, for example with NCCL_HOSTID=$(hostname) evaluated on each node.
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


_SHOWN = 4  # nodes whose library is named as evidence

NEW, OLD = nccl(2, 29, 7), nccl(2, 27, 3)


@check(
    group=VERSIONS_GROUP,
    slows=True,
    bad=lambda: [(Every({"n0": NEW, "n1": NEW, "n2": OLD}),)],
    good=lambda: [(Every({"n0": NEW, "n1": NEW}),)],
    required=True,
    applies=several_with_gpus,
)
def nccl_version(software: Every[Software]) -> Iterator[Finding]:
    """Nodes would load different NCCL versions.

    Right: All nodes would load the same NCCL version.
    Why: NCCL compares the full version of all ranks when it starts. It fails with "Mismatched NCCL version detected"
    (src/init.cc:1042) even if only the patch release differs. Different release branches do not get that far: no two of
    2.23.4, 2.27.7, 2.28.9, 2.29.7 and 2.30.7 can communicate (tested), and most pairs wait forever.
    Fix: run the same image or environment on all nodes. Look for another libnccl in LD_LIBRARY_PATH on the nodes that
    differ.
    """
    said = {node: each.nccl[0] if each.nccl else None for node, each in software.items()}
    unread = [node for node, library in said.items() if library and library.version is None]
    versions = {node: library.version if library else None for node, library in said.items() if node not in unread}
    if not any(versions.values()):
        raise Unlearned("no libnccl with a known version was found on any node, in this interpreter's environment")
    ballot = vote(versions)
    if not ballot.agreed:
        few = list(ballot.outliers or versions)[:_SHOWN]
        shown = [seen(f"libnccl of {node}", found.source if (found := said[node]) else "none") for node in few]
        yield from unlike(ballot, _spell_version, tell=fail, evidence=shown, **IMAGE)
    elif unread:
        raise Unlearned(f"the version of the libnccl of {named(unread)} is not known")


def _spell_version(version: Version | None) -> str:
    return f"NCCL {'.'.join(map(str, version))}" if version else "no libnccl"


def built(torch: str, cuda: str) -> Software:
    return Software({"torch": torch}, torch=Torch("/usr/lib/torch", cuda))


TORCH = built("2.7.0+cu128", "12.8")
GPUS: Every[Gpus | Absent] = Every({"n0": gpus(8), "n1": gpus(8), "n2": gpus(8)})


@check(
    group=VERSIONS_GROUP,
    bad=lambda: [(Every({"n0": TORCH, "n1": TORCH, "n2": built("2.6.0+cu128", "12.8")}), GPUS)],
    good=lambda: [(Every({"n0": TORCH, "n1": TORCH}), GPUS)],
    applies=several,
)
def torch_cuda(software: Every[Software], gpus: Every[Gpus | Absent]) -> Iterator[Finding]:
    """Nodes have different versions of torch, its CUDA or the GPU driver.

    Right: All nodes have the same version of torch, its CUDA and the GPU driver.
    Why: torch does not guarantee that process groups work across versions. With a different driver, NCCL may choose
    other transports (cuMem, NVLS, DMA-BUF) on one node than on its peers.
    Fix: run the same image on all nodes, and finish the driver upgrade on the nodes that lack it.
    """
    words: dict[str, Callable[[Software], str | Absent]] = {
        "torch": lambda each: each.packages.get("torch", "not installed"),
        "CUDA of torch": _cuda_of_torch,
    }
    for name, ask in words.items():
        yield from _versions(name, {node: ask(each) for node, each in software.items()}, "installed distributions")
    drivers = {node: each.driver if isinstance(each, Gpus) else each for node, each in gpus.items()}
    yield from _versions("driver", drivers, "nvmlSystemGetDriverVersion")


def _cuda_of_torch(software: Software) -> str | Absent:
    if isinstance(software.torch, Torch):
        cuda = software.torch.cuda
        return cuda if isinstance(cuda, Absent) else cuda or "built without CUDA"
    return software.torch or Absent("torch is not installed")


def _versions(what: str, said: dict[str, str | Absent], evidence: str) -> Iterator[Finding]:
    ballot = vote({node: version for node, version in said.items() if isinstance(version, str)})
    yield from unlike(ballot, what=what, subject=what, evidence=evidence, **IMAGE)


def flashed(version: str) -> Fabric:
    devices = hcas(2).devices
    return Fabric(tuple(replace(each, board="MT_0000000838", firmware=version) for each in devices))


FW = flashed("28.39.1002")


@check(
    group=VERSIONS_GROUP,
    slows=True,
    bad=lambda: [(Every({"n0": FW, "n1": FW, "n2": flashed("28.36.1010")}),)],
    good=lambda: [(Every({"n0": FW, "n1": FW}),)],
    applies=several_with_gpus,
)
def nic_fw(fabrics: Every[Fabric]) -> Iterator[Finding]:
    """NICs of the same model have different firmware on different nodes.

    Right: NICs of the same model have the same firmware on all nodes.
    Why: firmware determines congestion control, adaptive routing and which errors are retried. If an upgrade missed a
    node, it is slow or drops connections, and no counter explains why.
    Fix: update the NICs that the finding names to the firmware of the others (mlxfwmanager, or the vendor's tool), and
    reboot.
    """
    boards: dict[str, dict[str, frozenset[str]]] = {}
    for node, fabric in fabrics.items():
        for board in {device.board for device in fabric.devices if isinstance(device.board, str) and device.board}:
            every = (d.firmware for d in fabric.devices if d.board == board)
            if versions := frozenset(text for text in every if isinstance(text, str) and text):
                boards.setdefault(board, {})[node] = versions
    for board, said in boards.items():
        say, seen = (lambda versions: " and ".join(sorted(versions))), "/sys/class/infiniband/*/fw_ver"
        yield from unlike(vote(said), say, f"{board}: firmware", subject=board, evidence=seen, **IMAGE)


@check(
    group=NETWORK_GROUP,
    slows=True,
    bad=lambda: [(Every({"n0": over("IB"), "n1": over("IB"), "n2": over("Socket")}),)],
    good=lambda: [(Every({"n0": over("IB"), "n1": over("IB")}),)],
    applies=several_with_gpus,
)
def transport(choices: Every[Choices]) -> Iterator[Finding]:
    """NCCL chooses different networks on different nodes.

    Right: NCCL chooses the same network on all nodes.
    Why: every rank uses the network that its own node chose, and two different networks cannot connect. A socket cannot
    use the handle of an InfiniBand port, so the job fails or hangs at its first connection (nccl#2428).
    Fix: check which network the nodes that differ choose and why (`ncclprobe doctor -v`). Common causes are a plugin
    that the loader cannot find, a container without /dev/infiniband, ports that are down, or a setting that only this
    node has.
    """
    known = {node: each.network.chosen[0].name for node, each in choices.items() if each.network.chosen}
    ballot = vote(known)
    if not ballot.agreed:
        few = list(ballot.outliers or known)[:_SHOWN]
        shown = [seen(f"network of {node}", choices.by_node[node].network.why) for node in few]
        yield from unlike(ballot, what="NCCL's network is", tell=fail, evidence=shown, **IMAGE)
        return
    unread = [node for node, each in choices.items() if node not in known and not each.network.refused]
    if unread and (known or len({choices.by_node[node].network.why for node in unread}) > 1):
        raise Unlearned(f"the network of {named(unread)} is not known: {choices.by_node[unread[0]].network.why}")


_APART_S = 1.0  # clocks that are kept by NTP are within hundredths of a second
_MOST_TOLD = 5

_ASKED = Gathering(4, 0.1)
SELF: ClockOffset | Absent = Absent("rank 0 is the reference")
HUB: Every[Gathering | Absent] = Every({"n0": _ASKED, "n1": Absent("not rank 0")})


def offsets_of(*seconds: float) -> Every[ClockOffset | Absent]:
    """The settings of n1, n2 … compared with n0's."""
    return Every({"n0": SELF, **{f"n{i}": ClockOffset(s, 0.001) for i, s in enumerate(seconds, start=1)}})


@check(
    bad=lambda: [(offsets_of(-1.5), HUB)],
    good=lambda: [(Every({"n0": SELF, "n1": ClockOffset(1.4, 1.2)}), HUB)],
    applies=several,
)
def clock(offsets: Every[ClockOffset | Absent], gatherings: Every[Gathering | Absent]) -> Iterator[Finding]:
    """The clocks of the nodes are more than a second apart.

    Right: The clocks of the nodes are within a second of each other.
    Why: different clocks do not break an NCCL job. But a hang is found by ordering the logs of several nodes, which is
    then impossible. Files and certificates that one node writes seem to come from the future on another.
    Fix: on the nodes that the finding names, run `systemctl enable --now chronyd` (or systemd-timesyncd). `chronyc
    tracking` shows the offset.
    """
    known = {node: each for node, each in offsets.items() if isinstance(each, ClockOffset)}
    if not known:
        raise Unlearned("no clock was compared with rank 0's")
    ahead = {node: 0.0 for node, each in gatherings.items() if isinstance(each, Gathering)}
    ahead |= {node: each.offset_s for node, each in known.items()}
    middle = sorted(ahead, key=lambda node: ahead[node])[(len(ahead) - 1) // 2]  # a mean would be the time of neither
    unsure = dict.fromkeys(ahead, 0.0) | {node: each.rtt_s / 2 for node, each in known.items()}
    apart = {node: s - ahead[middle] for node, s in ahead.items()}
    off = {node: s for node, s in apart.items() if abs(s) > _APART_S + unsure[node] + unsure[middle]}
    blamed = {**IMAGE, "evidence": "pings to rank 0, the shortest round trip of several"}
    if 2 * len(off) < len(ahead):
        if off:
            words = [f"{node} is {abs(s):.3g} s {'ahead' if s > 0 else 'behind'}" for node, s in off.items()]
            differ = "differs" if len(off) == 1 else "differ"
            message = f"{len(off)} of {len(ahead)} nodes {differ}: {first_of(words, _MOST_TOLD)}"
            yield warn(named(tuple(off)), message, nodes=tuple(off), **blamed)
    else:
        spread = max(ahead.values()) - min(ahead.values())
        first, last = min(ahead, key=lambda node: ahead[node]), max(ahead, key=lambda node: ahead[node])
        message = (
            f"no majority among {len(ahead)} nodes: their clocks are up to {spread:.3g} s apart, with {first} behind "
            f"and {last} ahead"
        )
        yield warn("clocks", message, **blamed)
    unknown = [node for node, each in offsets.items() if node not in ahead]
    if unknown and not off:
        raise Unlearned(f"the clock of {named(unknown)} was not compared with rank 0's")
