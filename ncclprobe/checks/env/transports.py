"""Settings that switch off a fast transport of NCCL, or choose one that is not available."""

from collections.abc import Iterator

from ncclprobe.checks.env import (
    evidence,
    jobs_fail,
    jobs_note,
    jobs_warn,
    loaded,
    nccl_job,
)
from ncclprobe.checks.env.fixtures import (
    ALONE,
    NO_NCCL,
    PLAIN,
    TWO_NODES,
    fabric,
    gpus,
    having,
    hcas,
    linked,
    port,
    setting,
)
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.plugins import Plugin, Plugins
from ncclprobe.facts.software import Software
from ncclprobe.model.findings import Finding
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.nccl.hcas import select
from ncclprobe.nccl.networks import efa_ports, ofi_plugin_named, other_provider
from ncclprobe.nccl.p2p import nvls
from ncclprobe.nccl.values import read_level, read_setting

_OFI = Plugin("/opt/amazon/ofi-nccl/lib/libnccl-net.so", "net", "ofi", reachable=True)
_EFA = fabric(port("rdmap79s0", link_layer="Unknown"))


@applies
def efa_job(job: Job, fabric: Fabric) -> bool:
    """to jobs on GPUs where there are EFA devices."""
    return job.backend == "nccl" and bool(efa_ports(fabric))


@check(
    slows=True,
    bad=lambda: [(setting("NCCL_IB_DISABLE", "1"), hcas(8), TWO_NODES)],
    good=lambda: [(setting("NCCL_IB_DISABLE", "0"), hcas(8), TWO_NODES)],
    required=True,
    applies=nccl_job,
)
def ib_disable(settings: Settings, fabric: Fabric, launch: Launch | Absent) -> Iterator[Finding]:
    """InfiniBand or RoCE is switched off although this node has NICs for it.

    Right: InfiniBand and RoCE are not switched off.
    Why: NCCL then sends everything through sockets and the kernel: a tenth of the rate or less (nccl#634).
    Fix: unset NCCL_IB_DISABLE and NCCL_NET; if they hide another fault, find that one.
    """
    network = (settings.get("NCCL_NET") or "").lower()
    off = read_setting(settings, "NCCL_IB_DISABLE", 0) != 0 and network in ("", "ib", "socket")
    ports = [p.name for p in select(fabric, settings.get("NCCL_IB_HCA") or "").taken]
    if not ports or not (off or network == "socket"):
        return
    name = "NCCL_IB_DISABLE" if off else "NCCL_NET"
    message = f"stops NCCL from using {', '.join(ports)}, which {'are' if len(ports) > 1 else 'is'} up"
    shown = evidence(settings, "NCCL_IB_DISABLE", "NCCL_NET")
    if isinstance(launch, Absent) or launch.nnodes is None:
        yield jobs_warn(name, message, shown)
    else:
        yield (jobs_fail if launch.several_nodes else jobs_note)(name, message, shown)


@check(
    slows=True,
    bad=lambda: [(having(NCCL_NET="IB", NCCL_IB_DISABLE="1"), hcas(8), ALONE)],
    good=lambda: [(setting("NCCL_NET", "IB"), hcas(8), TWO_NODES)],
    applies=nccl_job,
)
def net_unpinned(settings: Settings, fabric: Fabric, launch: Launch | Absent) -> Iterator[Finding]:
    """NCCL_NET names a network that is missing, or is not set: NCCL can fall back to sockets silently.

    Right: NCCL_NET rules out a silent fallback to sockets.
    Why: without NCCL_NET the first network that starts is used, so a node that loses its NICs drops the job to sockets
    without an error; with it NCCL says "Failed to initialize any NET plugin" instead.
    Fix: NCCL_NET=IB, or the plugin's name, in jobs of several nodes whose nodes have HCAs.
    """
    network, several = settings.get("NCCL_NET"), isinstance(launch, Launch) and launch.several_nodes
    off = read_setting(settings, "NCCL_IB_DISABLE", 0) != 0
    ports = () if off else select(fabric, settings.get("NCCL_IB_HCA") or "").taken
    if network and network.lower() == "ib" and not ports:
        why = "NCCL_IB_DISABLE switches it off" if off else "NCCL can use no port of this node"
        yield jobs_fail(
            "NCCL_NET",
            f"accepts only IB, and {why}",
            evidence(settings, "NCCL_NET", "NCCL_IB_DISABLE", "NCCL_IB_HCA"),
            "unset NCCL_NET, or bring the HCAs up",
        )
    elif not network and several and ports:
        yield jobs_note(
            "NCCL_NET", "is not set: a node that loses its HCAs would use sockets without an error", "environment"
        )


@check(
    slows=True,
    bad=lambda: [(setting("NCCL_P2P_DISABLE", "1"), gpus(8), linked(8), NO_NCCL)],
    good=lambda: [(PLAIN, gpus(8), linked(8), NO_NCCL)],
    applies=nccl_job,
)
def p2p_off(
    settings: Settings, gpus: Gpus, nvlinks: NvLinks | Absent, software: Software | Absent
) -> Iterator[Finding]:
    """A fast transport between the GPUs of this node is switched off.

    Right: All fast transports between the GPUs of this node are switched on.
    Why: without P2P NVLinks carry nothing, and every byte goes through host memory; without NVLS an all-reduce on
    NVSwitches loses the reduction inside the switches. Both are set to find faults, and then forgotten.
    Fix: unset the variable; if the job fails without it, it hides a fault that has to be found.
    """
    alive = [gpu.index for gpu in gpus.all if not gpu.lost]
    if len(alive) < 2:
        return
    version = loaded(software)
    level = settings.get("NCCL_P2P_LEVEL")
    closed = read_setting(settings, "NCCL_P2P_DISABLE", 0) == 1
    name = "NCCL_P2P_DISABLE" if closed else "NCCL_P2P_LEVEL"
    closed = closed or (level is not None and read_level(level, version) == "LOC")
    if closed and _nvlinked(nvlinks):
        yield jobs_warn(name, "stops GPUs from using the NVLinks that connect them", evidence(settings, name))
    elif closed:
        yield jobs_note(name, "sends traffic between GPUs through host memory", evidence(settings, name))
    if closed and read_setting(settings, "NCCL_SHM_DISABLE", 0) == 1:
        both = evidence(settings, name, "NCCL_SHM_DISABLE")
        yield jobs_warn("NCCL_SHM_DISABLE", f"and {name} leave only the network between GPUs of one node", both)
    if read_setting(settings, "NCCL_NVLS_ENABLE", 2, version) == 0 and nvls(gpus, nvlinks, PLAIN, version).available:
        shown = evidence(settings, "NCCL_NVLS_ENABLE")
        yield jobs_warn("NCCL_NVLS_ENABLE", "is 0: NVLink SHARP of this node is not used", shown)


def _nvlinked(nvlinks: NvLinks | Absent) -> bool:
    rows = () if isinstance(nvlinks, Absent) else nvlinks.gpus
    links = [link for row in rows if not isinstance(row, Absent) for link in row]
    return any(link.state == "active" and link.remote in ("gpu", "switch") for link in links)


@check(
    slows=True,
    bad=lambda: [(PLAIN, _EFA, Plugins((Plugin(_OFI.path, "net", "ofi", reachable=False),)), TWO_NODES)],
    good=lambda: [(PLAIN, _EFA, Plugins((_OFI,)), TWO_NODES)],
    requires="env.transport",
    applies=efa_job,
)
def efa(settings: Settings, fabric: Fabric, plugins: Plugins, launch: Launch | Absent) -> Iterator[Finding]:
    """EFA devices are present, and NCCL's plugin for them is incomplete.

    Right: NCCL's plugin for the EFA devices is complete.
    Why: NCCL does not know EFA; the OFI plugin does. Where the loader does not find it, or libfabric is told to use
    another provider, NCCL goes over TCP without an error.
    Fix: install aws-ofi-nccl, put its folder on LD_LIBRARY_PATH, and leave FI_PROVIDER to it (or set it to efa).
    """
    several = isinstance(launch, Launch) and launch.several_nodes
    tell = jobs_warn if several else jobs_note
    found = [plugin for plugin in plugins.all if plugin.kind == "net" and plugin.flavour == "ofi"]
    devices = ", ".join(port.device for port in efa_ports(fabric))
    if not found:
        yield tell("libnccl-net.so", f"no OFI plugin was found for {devices}", "the loader's and the usual folders")
    elif not ofi_plugin_named(settings) and not any(plugin.reachable for plugin in found):
        message = "the loader does not search the folder of the OFI plugin"
        yield tell("libnccl-net.so", message, found[0].path)
    if other_provider(settings):
        message = f"is {settings.get('FI_PROVIDER')!r}, with which libfabric does not use EFA"
        yield tell("FI_PROVIDER", message, evidence(settings, "FI_PROVIDER"))
