"""What NCCL would choose on this node as a whole, and what the vendor of the network prescribes."""

import re
from collections.abc import Iterator
from typing import Any

from ncclprobe.checks import IMAGE, JOB, Blamed
from ncclprobe.checks.env import (
    START_GROUP,
    TRANSPORT_GROUP,
    UNPRICED,
    as_evidence,
    costs_nothing,
    evidence,
    jobs_fail,
    jobs_note,
    jobs_warn,
    nccl_job,
)
from ncclprobe.checks.env.fixtures import PLAIN, PLAIN_HOST, TWO_NODES, having, setting
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.launcher import Launch
from ncclprobe.facts.machine import Machine, NamedMachine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, Severity, Sources, fail, severity_of, warn
from ncclprobe.model.nccl_selection import Choices, Decision, HcaChoice, InterfaceChoice, NetworkChoice, NvlsChoice
from ncclprobe.model.registry import check
from ncclprobe.model.report import AttainableRate
from ncclprobe.model.snapshot import Absent, Job
from ncclprobe.model.units import plural
from ncclprobe.model.values import replace
from ncclprobe.nccl.networks import TITLES, compared, in_use, of_another, other_provider, over_kernel, source
from ncclprobe.nccl.selection import CLOSED
from ncclprobe.nccl.values import read_setting

_ETH0 = Decision((InterfaceChoice("eth0", "10.0.0.5", "^docker,lo,virbr", "the first"),), "the first")
_UNKNOWN: Decision[Any] = Decision(None, "not looked at")
_UNCALLED: Decision[Any] = Decision((), "NCCL_NET=ofi names no known network, so NCCL does not start", True, "NCCL_NET")
STARTS = Choices(
    nccl="2.27.3",
    bootstrap=_ETH0,
    sockets=_ETH0,
    hcas=_UNKNOWN,
    hcas_left_out=_UNKNOWN,
    gids=_UNKNOWN,
    gpudirect=_UNKNOWN,
    p2p=_UNKNOWN,
    nvls=NvlsChoice(None, "not looked at"),
)


@check(
    group=START_GROUP,
    bad=lambda: [(replace(STARTS, network=_UNCALLED), PLAIN_HOST, setting("NCCL_NET", "ofi"))],
    good=lambda: [(STARTS, PLAIN_HOST, PLAIN)],
    required=True,
    last=True,
    applies=nccl_job,
)
def start(choices: Choices, interfaces: Interfaces, settings: Settings) -> Iterator[Finding]:
    """NCCL cannot start on this node.

    Right: NCCL can start on this node.
    Why: each communicator needs a GPU that CUDA can see, an interface for its bootstrap, and a network, even on a
    single node. If one of them is missing, it fails with "no socket interface found" (src/bootstrap.cc) or "Failed to
    initialize any NET plugin" (src/plugin/net.cc). `ncclprobe doctor -v` shows every choice.
    Fix: give the container an interface that is up and has an address (docker --network=host, hostNetwork: true), and
    unset the variable that excludes every interface.
    """
    for subject in dict.fromkeys(part.subject for _, part in choices.refused):
        names = [name for name, part in choices.refused if part.subject == subject]
        why = next(part.why for _, part in choices.refused if part.subject == subject)
        shown = evidence(settings, subject) or _looked_at(names[0], interfaces)
        blamed = JOB if subject in settings.effective or subject.isupper() else IMAGE
        remedy = "install its plugin where the loader finds it, or unset NCCL_NET" if subject == "NCCL_NET" else ""
        message = f"{why} (while choosing {', '.join(names)})"
        yield fail(subject, message, evidence=shown, remedy=remedy, **blamed)


def _looked_at(name: str, interfaces: Interfaces) -> Sources:
    if name not in ("bootstrap", "sockets"):
        return f"NCCL's choice of {name}"
    each = (f"{i.name} {'up' if i.running else 'down'}{'' if i.addresses else ', no address'}" for i in interfaces.all)
    return f"/sys/class/net: {'; '.join(each) or 'no interface'}"


FAST = Decision(tuple(HcaChoice(f"mlx5_{n}:1", 400.0, "ACTIVE, InfiniBand") for n in range(8)), "ACTIVE devices")
_SOCKET = Decision((NetworkChoice("Socket", "", ("eth0",), 10.0, "the first"),), "the loader finds no libnccl-net.so")
OVER_SOCKETS = replace(STARTS, network=_SOCKET, fast_nics=FAST)
NO_NIC: Decision[HcaChoice] = Decision((), "no RDMA device is ACTIVE")


@check(
    group=TRANSPORT_GROUP,
    slows=True,
    bad=lambda: [(OVER_SOCKETS, PLAIN, TWO_NODES, Job(), UNPRICED)],
    good=lambda: [(replace(OVER_SOCKETS, fast_nics=NO_NIC), PLAIN, TWO_NODES, Job(), UNPRICED)],
    last=True,
    applies=nccl_job,
)
def transport(
    choices: Choices, settings: Settings, launch: Launch | Absent, job: Job, predicted: AttainableRate | Absent
) -> Iterator[Finding]:
    """NCCL uses sockets although faster NICs are up.

    Right: NCCL uses the fastest NICs that are up.
    Why: if a plugin is missing, or a setting excludes the fast NICs, NCCL silently falls back to sockets. They reach a
    tenth of the rate or less: 3 to 6 GB/s between nodes instead of 50 to 400. A job on one node is not affected.
    Fix: unset NCCL_NET, NCCL_IB_DISABLE, NCCL_IB_HCA and FI_PROVIDER. Install a release of the network's plugin that
    this NCCL supports, and put its folder on LD_LIBRARY_PATH (/opt/amazon/ofi-nccl/lib on AWS, /usr/local/nvidia/lib64
    or /usr/local/gib/lib64 on Google Cloud). Give the container /dev/infiniband.
    """
    taken, nics = choices.network.chosen, choices.fast_nics.chosen
    if not taken or (nics is None and job.expect_nics is None):
        raise Unlearned(choices.network.why if not taken else choices.fast_nics.why)
    network, several = taken[0], isinstance(launch, Launch) and launch.several_nodes
    over = 0 if network.name == "Socket" else len(network.devices)
    subject, blamed = _kept_by(choices, settings)
    shown = evidence(settings, subject) or f"NCCL's choice of network: {network.name}"
    if job.expect_nics is not None and over < job.expect_nics:
        message = f"NCCL would use {over} fast NICs, {job.expect_nics} expected (--expect-nics)"
        yield fail(
            subject, f"{message}; its network is {network.name} because {choices.network.why}", evidence=shown, **blamed
        )
    elif subject in settings.effective and costs_nothing(predicted, subject):
        return
    elif network.name == "Socket" and nics:
        tell = fail if several else warn
        up = f"{plural(len(nics), 'faster NIC')} ({nics[0].port}{' …' * bool(nics[1:])})"
        message = f"NCCL uses sockets ({', '.join(network.devices[:3])}) instead of {up}: {choices.network.why}"
        yield tell(subject, message, evidence=shown, **blamed)


def _kept_by(choices: Choices, settings: Settings) -> tuple[str, Blamed]:
    """Return what keeps NCCL off the fast NICs, and whose that is."""
    if choices.network.chosen and choices.network.chosen[0].plugin and over_kernel(settings):
        return "FI_PROVIDER", JOB
    names = ("NCCL_NET", "NCCL_IB_DISABLE", "NCCL_NET_PLUGIN", "NCCL_IB_HCA", "FI_PROVIDER")
    keeps = next((name for name in names if settings.get(name) not in (None, "", "0")), "")
    if keeps:
        return keeps, JOB
    left_out = choices.hcas_left_out.chosen or ()
    closed = any(each.why == CLOSED for each in left_out) or choices.fast_nics.chosen == ()
    return "/dev/infiniband" if closed else "libnccl-net.so", IMAGE


TCPX = {
    "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2,eth3,eth4",
    "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0",
    "NCCL_CROSS_NIC": "0",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_NET_GDR_LEVEL": "PIX",
}
ANY = Absent("not asked")
_INTERFACES = (
    ("NCCL_FASTRAK_IFNAME", "NCCL_FASTRAK_CTRL_DEV", 8, "an A3 Mega"),
    ("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "NCCL_GPUDIRECTTCPX_CTRL_DEV", 4, "an A3 High"),
)
"""Lists of NICs for data and the control device, how many such NICs there are, and on the only machine that has them.
"""
_PLUGINS = {"efa": "EFA", "cxi": "Slingshot", "tcpx": "GPUDirect-TCPX", "tcpxo": "GPUDirect-TCPXO", "gib": "gIB"}
"""Networks that NCCL reaches by a plugin."""
_OWN = {"azure": "InfiniBand", "oci": "RoCE", "sharp": "InfiniBand"}
"""Networks that NCCL reaches by its own transport."""
_TELL = {Severity.FAIL: jobs_fail, Severity.WARN: jobs_warn, Severity.NOTE: jobs_note}


@check(
    slows=True,
    bad=lambda: [(having(**{**TCPX, "NCCL_PROTO": "LL"}), ANY, STARTS, ANY, TWO_NODES)],
    good=lambda: [(having(**TCPX), ANY, STARTS, ANY, TWO_NODES)],
    last=True,
    applies=nccl_job,
)
def vendor(
    settings: Settings,
    machine: Machine | Absent,
    choices: Choices,
    interfaces: Interfaces | Absent,
    launch: Launch | Absent,
    named: NamedMachine | Absent = ANY,
) -> Iterator[Finding]:
    """A setting differs from what the network's vendor prescribes.

    Right: Every setting is as the network's vendor prescribes.
    Why: cloud and network vendors test their plugin with one set of settings. Some plugins end the job if a setting
    differs (Google's guest config checker). Settings that are right for InfiniBand are wrong for these networks, and
    vice versa. Without its plugin or provider a network is not used, and TCP reaches a tenth of the rate or less.
    Fix: copy all of the vendor's settings from the page or script that the finding names.
    """
    vendors = in_use(settings, machine, choices)
    found, alone = compared(settings, vendors), isinstance(launch, Launch) and launch.nnodes == 1
    unused = {name: why for vendor in vendors for name, why in _unused(vendor, settings)}
    for name, why in unused.items():
        yield (jobs_note if alone else jobs_fail)(name, f"is {settings.get(name)!r}: {why}", evidence(settings, name))
    for entry, row in found.other:
        if entry.name not in (*unused, "NCCL_MNNVL_ENABLE"):  # `cost` judges it where nodes are joined
            told = " or ".join(row.values[:3]) or "another"
            message = f"is {entry.value!r}; {TITLES[row.vendor]} prescribes {told} ({source(row.vendor)})"
            yield (jobs_note if row.leaves(entry.value) else jobs_warn)(entry.name, message, as_evidence(entry))
    for name in vendors:
        lacking = [row.name for row in found.missing if row.vendor == name]
        if lacking and not (isinstance(named, NamedMachine) and named.sources):
            message = (
                f"{'is' if len(lacking) == 1 else 'are'} not set, but {TITLES[name]} prescribes "
                f"{'it' if len(lacking) == 1 else 'them'} ({source(name)})"
            )
            yield jobs_note(", ".join(lacking), message, "environment and NCCL's configuration files")
    if "efa" in vendors and _unstriped(settings, machine):
        message = (
            "is SENDRECV, which does not spread a GPU's data over its EFA devices; the plugin's default here is RDMA"
        )
        yield jobs_warn("OFI_NCCL_PROTOCOL", message, evidence(settings, "OFI_NCCL_PROTOCOL"))
    if "gib" in vendors and not (isinstance(named, NamedMachine) and named.gib):
        yield from _gib_off_path(settings)
    over_ucx = (settings.get("NCCL_PLUGIN_P2P") or "").lower() == "ucx"
    if over_ucx and (transports := settings.get("UCX_TLS")) and not {*re.split("[,_]", transports)} & _RDMA_OF_UCX:
        message = f"is {transports!r}; NCCL_PLUGIN_P2P=ucx sends NCCL's data over UCX, so none of it uses RDMA"
        yield jobs_fail("UCX_TLS", message, evidence(settings, "UCX_TLS", "NCCL_PLUGIN_P2P"))
    yield from _absent_interfaces(settings, interfaces)


_RDMA_OF_UCX = {"rc", "ud", "dc", "ib", "all", "^tcp"}


def _gib_off_path(settings: Settings) -> Iterator[Finding]:
    path, network = settings.get("LD_LIBRARY_PATH") or "", (settings.get("NCCL_NET") or "").lower()
    if network == "gib" and path and "/gib/" not in f"{path}/":
        message = "does not contain /usr/local/gib/lib64, so the loader may not find the plugin that NCCL_NET names"
        yield jobs_warn("LD_LIBRARY_PATH", message, evidence(settings, "LD_LIBRARY_PATH", "NCCL_NET"))


def _unstriped(settings: Settings, machine: Machine | Absent) -> bool:
    """Return whether the plugin is kept to one rail, on a machine with several EFA devices per GPU (aws-ofi-nccl,
    src/platform-aws.cpp).
    """
    name = machine.instance_type if isinstance(machine, Machine) else ""
    return (settings.get("OFI_NCCL_PROTOCOL") or "").lower() == "sendrecv" and name.startswith(("p5", "p6"))


def _unused(vendor: str, settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield each variable that keeps NCCL off the network of a vendor, and why."""
    plugin, network = _PLUGINS.get(vendor, ""), (settings.get("NCCL_NET") or "").lower()
    if plugin and (settings.get("NCCL_NET_PLUGIN") or "").lower() == "none":
        yield "NCCL_NET_PLUGIN", f"NCCL loads no plugin, so it does not use {plugin}"
    if network == "socket" or of_another(vendor, network) or (plugin and network == "ib"):
        yield "NCCL_NET", f"NCCL uses only this network, not {plugin or _OWN[vendor]}"
    if not plugin and read_setting(settings, "NCCL_IB_DISABLE", 0):
        yield "NCCL_IB_DISABLE", f"NCCL does not use {_OWN[vendor]}"
    if (vendor == "efa" and other_provider(settings)) or (vendor == "cxi" and over_kernel(settings)):
        yield "FI_PROVIDER", f"libfabric does not use {plugin}"


def _absent_interfaces(settings: Settings, interfaces: Interfaces | Absent) -> Iterator[Finding]:
    """Yield each list of Google's data NICs that this node does not have, or that the control device is one of."""
    for names, control, most, machine in _INTERFACES:
        listed = [name for name in (settings.get(names) or "").split(",") if name]
        here = {} if isinstance(interfaces, Absent) else interfaces.by_name
        for variable, wanted in ((names, listed), (control, [settings.get(control) or ""])):
            strange = [name for name in wanted if name and here and name not in here]
            if strange:
                message = f"names {', '.join(strange)}, which this node does not have"
                yield jobs_warn(variable, message, as_evidence(settings.effective[variable]))
        if listed and len({*listed}) < most:
            message = f"names only {len({*listed})} of the {most} NICs that {machine} has for its GPUs"
            tell = _TELL[severity_of(1 - len({*listed}) / most)]
            yield tell(names, message, as_evidence(settings.effective[names]))
        if len({*listed}) < len(listed):
            yield jobs_warn(names, "names a NIC twice", as_evidence(settings.effective[names]))
        if len(listed) > 1 and settings.get(control) in listed:
            message = f"is {settings.get(control)}, which {names} lists as a NIC for data"
            yield jobs_warn(control, message, as_evidence(settings.effective[control]))
