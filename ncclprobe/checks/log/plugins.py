"""Network plugins, libfabric's providers, the verbs library and its devices, and files that describe a topology."""

from collections.abc import Iterator
from typing import Any

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.lines import (
    FABRIC,
    IMAGE,
    JOB,
    NODE,
    demoted,
    each,
    failed,
    informed,
    rdma_found,
)
from ncclprobe.logs.job_log import JobLog, LogEvent
from ncclprobe.logs.outcome import worked_before
from ncclprobe.logs.texts import between
from ncclprobe.model.findings import Finding, Severity
from ncclprobe.model.values import grouped

_NO_PROVIDER = (
    "No eligible providers were found",
    "Couldn't find any optimal provider",
    "Only EFA provider is supported",
    "OFI fi_getinfo() call failed",
    "NET/OFI aws-ofi-nccl initialization failed",
    "NET/OFI Failed to initialize",
)
_EFA_WANTED = (
    "FI_PROVIDER",
    "NCCL_NET set by environment to AWS",
    "Error: network AWS",
    "Failed to initialize any NET",
)


@cause(
    code="efa-no-provider",
    signs=(*_NO_PROVIDER, *_EFA_WANTED, "Using network AWS Libfabric", "Using network Libfabric"),
    doctor="env.libraries",
    bad=lambda: ["n1:7:7 [0] nccl_net_ofi_init:1304 NCCL WARN NET/OFI Only EFA provider is supported"],
    good=lambda: [
        "n1:7:7 [0] NCCL INFO NET/OFI No eligible providers were found\nn1:7:7 [0] NCCL INFO Using network Socket"
    ],
)
def no_efa_provider(log: JobLog) -> Iterator[Finding]:
    """libfabric finds no usable EFA provider.

    Right: libfabric found an EFA provider on every host that needed it.
    Why: aws-ofi-nccl asks libfabric for the provider efa. If the container has no EFA devices, the kernel module is
    missing, or libfabric lacks the provider, NCCL falls back to sockets or fails. If an image with the plugin runs on a
    machine without EFA, the same line is harmless.
    Fix: run `fi_info -p efa` where the job runs (in its container, if it has one). Give the container the devices
    (`vpc.amazonaws.com/efa`, `--device=/dev/infiniband`), and use the instance's own libfabric in /opt/amazon/efa.
    """
    wanted = failed(log) or any(True for _ in log.having(*_EFA_WANTED, "Using network AWS", "Using network Libfabric"))
    for event in log.having(*_NO_PROVIDER):
        if wanted or "Only EFA provider" in event.text:
            yield said(log, event, "libfabric has no provider that the plugin can use", **IMAGE)


_GROUP = (
    "security group on either this instance or the peer",
    "Unreachable remote",
    "never received a response",
    "FI_EHOSTUNREACH",
)


@cause(
    code="efa-security-group",
    signs=_GROUP,
    doctor="launch.mesh",
    bad=lambda: [
        "n1:7:9 [0] ofi_process_cq:1047 NCCL WARN NET/OFI Request 0x7f11 (send) completed with error: err: 113, flags: "
        "1024, prov_errno: 4119, strerror: Unreachable remote, len: 0"
    ],
    good=lambda: [
        "n1:7:9 [0] ofi_process_cq:1730 NCCL WARN NET/OFI Request 0x7f11 completed with error. RC: 5. Error: 4 (x)."
    ],
)
def efa_security_group(log: JobLog) -> Iterator[Finding]:
    """EFA traffic is blocked between the hosts.

    Right: EFA traffic passed between all hosts.
    Why: a security group must allow all traffic from and to itself, because EFA's packets have no ports that a rule
    could name. libfabric reports "unreachable" (FI_EHOSTUNREACH) only if packets are dropped.
    Fix: add inbound and outbound rules for "all traffic" with the group itself as source and destination. Apply the
    group to all hosts of the job, and start them in one subnet.
    """
    yield from each(log, _GROUP, "EFA's packets are dropped between the hosts", **FABRIC)


_OFI_COMPLETION = ("completed with error", "Unable to retrieve completion queue entries")


_NEVER_MET = "Peer host id: N/A"
"""libfabric's efa provider knows a peer's host id from its handshake."""


@cause(
    signs=(*_OFI_COMPLETION, _NEVER_MET),
    echoes=("rank-crashed", "efa-security-group", "gpu-hw-error", "oom"),
    bad=lambda: [
        "n1:7:9 [0] ofi_process_cq:1730 NCCL WARN NET/OFI Request 0x7f11 completed with error. RC: 5. Error: 4 "
        "(Unknown error). Completed length: 0, Request: { buffer_index: 1 }"
    ],
    good=lambda: [
        "n1:7:9 [0] ofi_process_cq:1047 NCCL WARN NET/OFI Request 0x7f11 (send) completed with error: err: 113, "
        "prov_errno: 4119, strerror: Unreachable remote, len: 0"
    ],
)
def efa_completion(log: JobLog) -> Iterator[Finding]:
    """A transfer over EFA ended with an error.

    Right: All transfers over EFA succeeded.
    Why: "unresponsive remote" means that the peer answered before but no longer does, because its process or host is
    gone. If its host id is "N/A", it never answered, for example because a security group blocks everything.
    Fix: look for the rank that failed first. If no rank failed earlier, check the EFA counters on both hosts (`rdma -p
    statistic show`).
    """
    both = any(True for _ in log.having(*_OFI_COMPLETION)) and _first_unanswered(log)
    never_met = both or any("nresponsive" in event.text for event in log.having(_NEVER_MET))
    for event in log.having(*_OFI_COMPLETION):
        if "OFI" in event.text and not any(text in event.text for text in _GROUP):
            codes = ("rank-crashed", "ib-no-path")
            codes = ("efa-security-group", codes[both]) if never_met else codes
            yield said(log, event, _UNANSWERED if never_met else _ENDED, codes=codes, **FABRIC)


_ENDED = "a transfer over EFA ended with an error"
_UNANSWERED = "the first transfers over EFA were not answered, so packets do not arrive"
_TIMED_OUT = ("RC: 20.", "err: 20,")
"""IBV_WC_RESP_TIMEOUT_ERR: the peer is unresponsive or unreachable (rdma-core, providers/efa/verbs.c)."""


def _first_unanswered(log: JobLog) -> bool:
    """Return whether hosts complain of each other before the first step: both are alive, and no data arrived."""
    failed_ones = [event for event in log.having(*_OFI_COMPLETION) if "OFI" in event.text]
    unanswered = [event for event in failed_ones if any(text in event.text for text in _TIMED_OUT)]
    both_live = len(unanswered) == len(failed_ones) and len({event.host for event in unanswered}) > 1
    return both_live and not any(worked_before(log, event) for event in failed_ones)


_NOT_FOUND = ("Error: network ", "Failed to initialize any NET plugin")
_NO_DEVICE = "NET/IB : No device found"
_NAMED = ("NCCL_NET_PLUGIN set", "NET/Plugin: Plugin name set by env", "Plugin name set by env to")
_LOOKED_FOR, _DEFAULT = "NET/Plugin: Could not find: ", "libnccl-net.so"
_UNLOADED = (
    "NET/Plugin: Could not find",
    "NET/Plugin : No plugin found",
    "NET/Plugin: No plugin found",
    "No plugin found (",
)


@cause(
    code="plugin-missing",
    signs=(*_NOT_FOUND, *_NAMED, *_UNLOADED, _NO_DEVICE, "libnccl-net"),
    doctor="env.libraries",
    echoes=("efa-no-provider", "plugin-mismatch", "ib-hca-wrong", "libibverbs-missing"),
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NET/IB : No device found.\n"
        "n1:7:7 [0] net.cc:349 NCCL WARN Error: network AWS Libfabric not found."
    ],
    good=lambda: ["n1:7:7 [0] net.cc:349 NCCL WARN Error: network IB not found."],
)
def plugin_not_found(log: JobLog) -> Iterator[Finding]:
    """The requested network plugin is not loaded.

    Right: Every requested plugin was loaded.
    Why: NCCL_NET or NCCL_NET_PLUGIN names a network or library that the loader cannot find in this image. If
    neither variable is set, a missing libnccl-net.so is normal, and NCCL uses its internal network.
    Fix: run `find / -name 'libnccl-net*'` in the image, add the plugin's folder to LD_LIBRARY_PATH, and check with
    `ldd` which libraries it lacks. If the plugin is not needed, unset the variable.
    """
    mute = not any(event.host and event.level in ("INFO", "WARN") for event in log.events)
    without = {(event.host, event.pid) for event in log.having(_NO_DEVICE)}
    for event in log.having(*_NOT_FOUND):
        no_device = (event.host, event.pid) in without or bool(without and event.level not in ("INFO", "WARN"))
        name = between(event.text, "network ", " not")
        if name == "Socket" or demoted(event) or (name == "IB" and not mute) or (no_device and name in ("", "IB")):
            continue  # NCCL's own transport was asked for, and says itself what it lacks
        message = f"NCCL found no network called {name}" if name else "NCCL found no network"
        yield said(log, event, message, codes=_likely_nccl_errors(event.text) if mute else (), **IMAGE)
    named = {
        between(event.text, "set by env to ").strip() or between(event.text, "set by environment to ").strip()
        for event in log.having(*_NAMED)
    }
    named |= {between(event.text, _LOOKED_FOR, " ").rstrip(".") for event in log.having(_LOOKED_FOR)} - {_DEFAULT}
    if named - {"none", ""}:
        severity = Severity.FAIL if failed(log) else Severity.WARN  # NCCL goes on with its own transport
        message = "the plugin that NCCL_NET_PLUGIN names was not found"
        yield from informed(log, _UNLOADED, message, severity=severity, **IMAGE)


def _likely_nccl_errors(text: str) -> tuple[str, ...]:
    """Return the possible meanings if torch repeats NCCL's last error, without the lines of NCCL that would decide."""
    if "network " in text and "network IB" not in text:
        return ("plugin-missing", "plugin-mismatch", *(("efa-no-provider",) if "network AWS" in text else ()))
    return ("ib-device-not-in-container", "libibverbs-missing", "ib-hca-wrong")


_OLDEST = "Failed to find ncclNetPlugin_v6 symbol"
"""The last that 2.27 and later look for. Before, a fifth may have been found."""
_MISFIT = (
    "symbols v4 and lower are not supported",
    " is unsupported",
    "plugin has incompatible version",
    "requires at least libfabric version",
    "version `FABRIC_",
)


@cause(
    code="plugin-mismatch",
    signs=(*_MISFIT, _OLDEST, "undefined symbol: ", "cannot open shared object file", "version `GLIBC"),
    doctor="env.libraries",
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin symbol (>= v5). ncclNetPlugin symbols v4 and "
        "lower are not supported."
    ],
    good=lambda: [
        "n1:7:7 [0] NCCL INFO NET/Plugin: libnccl-net.so: cannot open shared object file: No such file or directory"
    ],
)
def plugin_does_not_fit(log: JobLog) -> Iterator[Finding]:
    """The network plugin is incompatible with this NCCL or libfabric, or lacks a library.

    Right: Every plugin that was found could be loaded.
    Why: NCCL supports several versions of the plugin's symbols. It rejects a plugin that was built for another NCCL or
    libfabric, and uses its internal network or fails.
    Fix: run `ldd -r` on the plugin in the image to see what it lacks. Build or install it for this NCCL and libfabric,
    and put their folder first in LD_LIBRARY_PATH.
    """
    for event in log.having(_OLDEST):
        loaded = log.having("NET/Plugin: Loaded net plugin")
        if (event.host, event.pid) not in {(each_one.host, each_one.pid) for each_one in loaded}:
            yield said(log, event, "the network plugin cannot be loaded", **IMAGE)
    for event in log.having(*_MISFIT, "undefined symbol: ", "cannot open shared object file"):
        text = event.text
        if "ncclCollNetPlugin" in text or "TUNER/" in text or "PROFILER/" in text:
            continue
        if " is unsupported" in text and "External network plugin" not in text:
            continue
        lacks = "/Plugin" in text and _lacks_a_library(text)
        undefined = "/Plugin" in text and "undefined symbol: " in text
        if lacks or undefined or any(sign in text for sign in _MISFIT):
            yield said(log, event, "the network plugin cannot be loaded", **IMAGE)


def _lacks_a_library(text: str) -> bool:
    """Return whether the loader misses a library of a plugin; a missing plugin is not a mismatch.

    NCCL 2.4 to 2.21 print dlerror() in five forms. Two of them are in every log of a machine without a plugin: "Plugin
    load returned 2 : libnccl-net.so: cannot open …" (2.21) and "Plugin load (libnccl-net.so) returned 2 : …" (to 2.18);
    see src/net.cc: tryOpenDynamicLib, summarizeOpenNetPluginErrors.
    """
    before, cannot, after = text.partition(": cannot open shared object file")
    missing = before.rpartition(" ")[2].rpartition("=")[2]
    asked_for = missing in after or f"({missing})" in before
    return bool(cannot) and not missing.startswith("libnccl-net") and not asked_for


_TOPO = (
    "Could not open XML topology file",
    "XML Topology has wrong version",
    "XML Parse error",
    "XML Parse :",
    "XML Mismatch",
    "provided topology file",
    "TopoFillNet: parent is NULL",
)
_TOPO_SET = ("NCCL_TOPO_FILE set by environment", "Loading topology file")
_PARSED, _GRAPH_SET = "XML ", "NCCL_GRAPH_FILE set by environment"
_GRAPH = (
    "Could not open XML graph file",
    "XML Graph has wrong version",
    "XML Import Channel :",
    "XML Export Channel :",
)


@cause(
    code="topo-file",
    signs=(*_TOPO, *_TOPO_SET, *_GRAPH, _GRAPH_SET, "Attribute "),
    doctor="env.files",
    bad=lambda: [
        "n1:7:7 [0] graph/xml.cc:300 NCCL WARN Could not open XML topology file /opt/topo.xml : No such file or "
        "directory"
    ],
    good=lambda: ["n1:7:7 [0] NCCL INFO XML Parse : Ignoring extra attributes (max 16)"],
)
def topology_file(log: JobLog) -> Iterator[Finding]:
    """The file that NCCL_TOPO_FILE or NCCL_GRAPH_FILE names is missing, broken or for another machine.

    Right: No topology file or graph file was rejected.
    Why: the file replaces the topology that NCCL finds in /sys, or the channels that it would compute. If the file
    omits devices, or lists devices that this machine does not have, there is no path to GPUs or NICs.
    Fix: unset NCCL_TOPO_FILE, or use the file for this machine type. To compare, NCCL_TOPO_DUMP_FILE=now.xml writes the
    topology that NCCL itself finds.
    """
    named = any(True for _ in log.having(*_TOPO_SET))
    for event in log.having(*_TOPO, "Attribute "):
        attribute = "Attribute " in event.text and " not found" in event.text and event.host
        at_info = "Could not open XML topology" in event.text and named and "virtualTopology" not in event.text
        if demoted(event) and not at_info and "provided topology file" not in event.text:
            continue
        if (attribute and not named) or ("Attribute " in event.text and not attribute):
            continue
        found = said(log, event, "the topology file is missing, broken or for another machine", **JOB)
        yield said(log, event, **_OF_GRAPH) if _is_graph_error(log, event) else found
    yield from each(log, _GRAPH, **_OF_GRAPH)


_OF_GRAPH: dict[str, Any] = {
    **JOB,
    "message": "the graph file is missing, broken or for another machine",
    "codes": ("graph-file",),
    "remedy": "unset NCCL_GRAPH_FILE, or write it again on this machine with NCCL_GRAPH_DUMP_FILE",
}


def _is_graph_error(log: JobLog, event: LogEvent) -> bool:
    """Return whether a parser's error is about the graph file: NCCL reads it after the topology, and names neither."""
    read = [
        each for each in log.having(*_TOPO_SET, _GRAPH_SET) if each.stream == event.stream and each.pid == event.pid
    ]
    before = [each for each in read if each.line < event.line]
    return _PARSED in event.text and bool(before) and _GRAPH_SET in before[-1].text


_NO_LIBRARY = (
    "Failed to open libibverbs.so",
    "Failed to load libibverbs",
    "libibverbs.so.1: cannot open shared object file",
)
_NO_DRIVER = ("no userspace device-specific driver found",)
_WANTED = (
    "NCCL_IB_HCA set",
    "NCCL_IB_GID_INDEX set",
    "NCCL_NET set by environment to IB",
    "NCCL_IB_DISABLE set by environment to 0",
)


def rdma_wanted(log: JobLog) -> bool:
    """Return whether the job's settings, or other ranks' choices, say that it was to use InfiniBand or RoCE."""
    return rdma_found(log) or any(True for _ in log.having(*_WANTED, "Using network IB"))


@cause(
    code="libibverbs-missing",
    signs=(*_NO_LIBRARY, *_NO_DRIVER, *_WANTED, "Using network IB", "NET/IB : Using", "NET/IB : No device found"),
    doctor="ib.perm",
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL_IB_HCA set to mlx5_0\n"
        "n1:7:7 [0] NCCL INFO Failed to open libibverbs.so[.1]\n"
        "n1:7:7 [0] NCCL INFO Using network Socket"
    ],
    good=lambda: ["n1:7:7 [0] NCCL INFO Failed to open libibverbs.so[.1]\nn1:7:7 [0] NCCL INFO Using network Socket"],
)
def verbs_library_missing(log: JobLog) -> Iterator[Finding]:
    """The image lacks the verbs library, or its driver for this NIC.

    Right: The verbs library was found on every host that needs RDMA.
    Why: NCCL opens libibverbs at run time. Without it NCCL uses sockets. The line also appears in healthy logs of
    machines without RDMA, so it counts only if settings or other ranks mention RDMA.
    Fix: install rdma-core's libraries in the image: `apt-get install libibverbs1 ibverbs-providers`. To confirm, run
    `ibv_devinfo` inside the container.
    """
    wanted = rdma_wanted(log)
    no_device = any(True for _ in log.having("NET/IB : No device found"))
    if wanted:
        yield from informed(log, _NO_LIBRARY, "the verbs library was not found, so NCCL uses sockets instead", **IMAGE)
    if no_device:
        yield from informed(log, _NO_DRIVER, "the verbs library's driver for this NIC was not found", **IMAGE)


_NO_NET = "Failed to initialize any NET plugin"
"""From 2.27 on. 2.28 initialises what NCCL_NET names, so that after "No device found" it was IB; 2.27 initialises all,
and does not say what it was looking for.
"""


@cause(
    signs=(
        "NET/IB : No device found",
        "NCCL_IB_HCA set to",
        "NCCL_NET set by environment to IB",
        "Error: network IB not",
        _NO_NET,
    ),
    doctor="env.hca",
    echoes=("libibverbs-missing",),
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NET/IB : No device found.\nn1:7:7 [0] net.cc:349 NCCL WARN Error: network IB not found."
    ],
    good=lambda: ["n1:7:7 [0] NCCL INFO NET/IB : No device found.\nn1:7:7 [0] NCCL INFO Using network Socket"],
)
def no_device_of_that_name(log: JobLog) -> Iterator[Finding]:
    """RDMA was requested, but NCCL found no RDMA device.

    Right: NCCL found an RDMA device on every host that needs one.
    Why: NCCL_IB_HCA matches none of the devices, all ports that it names are down, or the container has no device.
    Fix: run `ibv_devinfo` where the job runs (in its container, if it has one). If it shows no device, give the
    container /dev/infiniband. If it shows devices, set NCCL_IB_HCA to their names.
    """
    asked = ("NCCL_IB_HCA set to", "NCCL_NET set by environment to IB", "Error: network IB not")
    details: dict[str, Any] = {"codes": ("ib-hca-wrong", "ib-device-not-in-container"), **JOB}
    if any("set to ^" not in event.text for event in log.having(*asked)):
        yield from informed(log, ("NET/IB : No device found",), "NCCL found no RDMA device", **details)
    without = {(event.host, event.pid) for event in log.having("NET/IB : No device found")}
    for event in log.having(_NO_NET):
        others = {(each_one.host, each_one.pid) for each_one in log.having("Initialized NET plugin Socket")}
        if not demoted(event) and (event.host, event.pid) in without - others:
            yield said(log, event, "NCCL found no RDMA device", **details)
        elif not demoted(event) and (event.host, event.pid) in without:
            codes = (*details["codes"], "plugin-missing")
            yield said(
                log,
                event,
                "NCCL_NET requests RDMA or a network that does not exist here",
                **{**details, "codes": codes},
            )


@cause(
    code="net-asymmetric",
    signs=("Using network ",),
    doctor="sync.machine",
    echoes=("libibverbs-missing", "ib-device-not-in-container", "ib-hca-wrong", "plugin-missing", "efa-no-provider"),
    bad=lambda: ["n1:7:7 [0] NCCL INFO Using network IB\nn2:7:7 [0] NCCL INFO Using network Socket"],
    good=lambda: ["n1:7:7 [0] NCCL INFO Using network IB\nn2:7:7 [0] NCCL INFO Using network IB"],
)
def networks_differ(log: JobLog) -> Iterator[Finding]:
    """Nodes chose different networks.

    Right: All nodes chose the same network.
    Why: each rank chooses for itself. If one host has no usable NIC, it uses sockets, and the ranks then wait for each
    other on different networks.
    Fix: to find the reason, compare the lines before "Using network" on both hosts. Set NCCL_NET=IB to make the host
    without devices fail at once.
    """
    said_by = [(e, between(e.text, "Using network ").strip()) for e in log.having("Using network ") if e.host]
    of = grouped((event.host, network) for event, network in said_by)
    chosen = {networks[0] for networks in of.values() if len({*networks}) == 1}
    if len(chosen) < 2:
        return
    usual = max(sorted(chosen), key=lambda name: (name != "Socket", sum(name in networks for networks in of.values())))
    for (event, network), *_ in grouped((one[0].host, one) for one in said_by if one[1] != usual).values():
        yield said(log, event, f"{event.host} uses {network}, but other hosts use {usual}", **NODE)
