"""The verbs library, RDMA devices and the registration of memory, on one host."""

from collections.abc import Iterator
from typing import Any

from ncclprobe.checks.log import cause, said
from ncclprobe.checks.log.lines import IMAGE, JOB, NODE, demoted, each, informed
from ncclprobe.facts.files.job_log import JobLog, LogEvent
from ncclprobe.facts.files.texts import between
from ncclprobe.model.findings import Finding

_REGISTER = ("Call to ibv_reg_mr", "Call to ibv_reg_dmabuf_mr")
_CREATE = ("Call to ibv_create_cq failed", "Call to ibv_create_qp failed", "Call to ibv_alloc_pd failed")
_NO_MEMORY = "Cannot allocate memory"
_LOCKED = ("RLIMIT_MEMLOCK", "memlock limit", "ulimit -l")


def _registrations(log: JobLog, signs: tuple[str, ...]) -> Iterator[tuple[LogEvent, str]]:
    """Yield failed calls with what the line gives as their error, empty in releases that print none."""
    for event in log.having(*signs):
        if "failed" in event.text and not demoted(event):
            yield event, between(event.text, "failed with error ", " errno").strip()


@cause(
    code="memlock",
    signs=(*_REGISTER, *_CREATE, *_LOCKED),
    doctor="host.memlock",
    bad=lambda: [
        "n1:7:9 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"
    ],
    good=lambda: ["n1:7:9 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_reg_mr failed with error Bad address"],
)
def locked_memory(log: JobLog) -> Iterator[Finding]:
    """The limit on locked memory stops registration.

    Right: No registration failed for want of locked memory.
    Why: RDMA locks every page that it uses; with a `ulimit -l` of 64 kB, the default of many container runtimes and of
    sshd, the first buffers and queues already fail with ENOMEM.
    Fix: `ulimit -l unlimited` in the job, `docker run --ulimit memlock=-1`, `LimitMEMLOCK=infinity` for containerd,
    slurmd or sshd, and `ulimit -l` from inside a job to confirm.
    """
    said_low = any(True for _ in log.having(*_LOCKED))
    for event, error in _registrations(log, (*_REGISTER, *_CREATE)):
        if error.startswith(_NO_MEMORY):
            yield said(log, event, f"{_call(event)} is refused: {error}", **JOB)
        elif not error and said_low:
            yield said(log, event, f"{_call(event)} is refused, and the limit on locked memory is low", **JOB)
        elif not error and any(call in event.text for call in _CREATE):
            yield said(log, event, f"{_call(event)} is refused", codes=("memlock", "ib-device-not-in-container"), **JOB)


def _call(event: LogEvent) -> str:
    return between(event.text, "Call to ", " ") or "a registration"


@cause(
    code="kernel-pin-failure",
    signs=(*_REGISTER, *_LOCKED, "OS call failed or operation not supported on this OS", "microsoft-standard", "WSL2"),
    doctor="ib.gdr",
    bad=lambda: ["n1:7:9 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_reg_mr failed with error Bad address"],
    good=lambda: [
        "n1:7:9 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"
    ],
)
def pinning_failed(log: JobLog) -> Iterator[Finding]:
    """The kernel cannot pin memory for a device.

    Right: The kernel pinned all memory that was to be registered.
    Why: EFAULT or EINVAL for GPU memory says that no module translates it for the NIC (nvidia-peermem not loaded, or of
    another driver); for host memory that the kernel or sandbox does not support it (gVisor, some virtual machines).
    Fix: `lsmod | grep nvidia_peermem` and `modprobe nvidia-peermem` after the NIC's driver; or the open kernel modules
    with DMA-BUF. To confirm, start once with NCCL_NET_GDR_LEVEL=LOC.
    """
    low = any(True for _ in log.having(*_LOCKED))
    for event, error in _registrations(log, ("Call to ibv_reg_mr",)):
        if error and not error.startswith(_NO_MEMORY):
            yield said(log, event, f"{_call(event)} is refused: {error}", **NODE)
        elif not error and not low:
            yield said(log, event, "memory cannot be registered", codes=("kernel-pin-failure", "memlock"), **NODE)
    if not any(True for _ in log.having("microsoft-standard", "WSL2")):
        signs = ("OS call failed or operation not supported on this OS",)
        yield from each(log, signs, "the kernel refused to pin host memory for a GPU", **NODE)


@cause(
    code="dmabuf-unsupported",
    signs=_REGISTER,
    doctor="ib.gdr",
    bad=lambda: [
        "n1:7:9 [0] misc/ibvwrap.cc:200 NCCL WARN Call to ibv_reg_dmabuf_mr failed with error Operation not supported"
    ],
    good=lambda: ["n1:7:9 [0] NCCL INFO DMA-BUF is available on GPU device 0"],
)
def dmabuf_refused(log: JobLog) -> Iterator[Finding]:
    """The kernel or NIC does not register GPU memory by DMA-BUF.

    Right: Every registration by DMA-BUF was accepted.
    Why: NCCL takes DMA-BUF where the GPU's driver offers it; an older kernel (below 5.12), an out-of-tree NIC driver or
    an IOMMU may refuse it all the same.
    Fix: NCCL_DMABUF_ENABLE=0 together with a loaded nvidia-peermem; or update the NIC's driver and kernel.
    """
    for event, error in _registrations(log, ("Call to ibv_reg_dmabuf_mr",)):
        if not error.startswith(_NO_MEMORY):
            yield said(log, event, f"registration by DMA-BUF is refused: {error or 'failed'}", **IMAGE)


_OPEN = ("NET/IB : Unable to open device", "ibv_open_device failed", "/dev/infiniband/")


@cause(
    code="ib-device-not-in-container",
    signs=_OPEN,
    doctor="ib.perm",
    bad=lambda: ["n1:7:9 [0] transport/net_ib.cc:334 NCCL WARN NET/IB : Unable to open device mlx5_0"],
    good=lambda: ["mounting /dev/infiniband/uverbs0 into the container"],
)
def device_not_in_container(log: JobLog) -> Iterator[Finding]:
    """RDMA devices are seen and cannot be opened.

    Right: Every RDMA device that was seen could be opened.
    Why: /sys shows the host's devices in every container, but /dev/infiniband has to be given to it and allowed by its
    control group.
    Fix: `docker run --device=/dev/infiniband` (and `--cap-add=IPC_LOCK`), or the RDMA device plugin of the cluster.
    """
    refusals = ("Unable to open", "failed", "No such file", "ermission denied", "not permitted", "cannot open")
    for event in log.having(*_OPEN):
        if any(text in event.text for text in refusals) and not demoted(event):
            yield said(log, event, "an RDMA device cannot be opened", **JOB)


_NO_LIBRARY = ("Failed to open libibverbs.so", "libibverbs.so.1: cannot open shared object file")
_NO_PROVIDER = ("no userspace device-specific driver found",)
_WANTED = (
    "NCCL_IB_HCA set",
    "NCCL_IB_GID_INDEX set",
    "NCCL_NET set by environment to IB",
    "NCCL_IB_DISABLE set by environment to 0",
)


def rdma_wanted(log: JobLog) -> bool:
    """Return whether the job's settings, or other ranks' choices, say that it was to use InfiniBand or RoCE."""
    return any(True for _ in log.having(*_WANTED, "Using network IB", "NET/IB : Using"))


@cause(
    code="libibverbs-missing",
    signs=(*_NO_LIBRARY, *_NO_PROVIDER, *_WANTED, "Using network IB", "NET/IB : Using", "NET/IB : No device found"),
    doctor="ib.perm",
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NCCL_IB_HCA set to mlx5_0\n"
        "n1:7:7 [0] NCCL INFO Failed to open libibverbs.so[.1]\n"
        "n1:7:7 [0] NCCL INFO Using network Socket"
    ],
    good=lambda: ["n1:7:7 [0] NCCL INFO Failed to open libibverbs.so[.1]\nn1:7:7 [0] NCCL INFO Using network Socket"],
)
def verbs_library_missing(log: JobLog) -> Iterator[Finding]:
    """The verbs library, or its driver for the NIC, is not in the image.

    Right: The verbs library was found wherever RDMA was wanted.
    Why: NCCL opens libibverbs at run time and goes on over sockets without it; the line stands in healthy logs of
    machines without RDMA as well, so it counts only where settings or other ranks speak of RDMA.
    Fix: install rdma-core's libraries in the image: `apt-get install libibverbs1 ibverbs-providers`, and
    `ibv_devinfo` inside the container to confirm.
    """
    wanted = rdma_wanted(log)
    no_device = any(True for _ in log.having("NET/IB : No device found"))
    if wanted:
        yield from informed(log, _NO_LIBRARY, "the verbs library is not there, and sockets are used instead", **IMAGE)
    if no_device:
        yield from informed(log, _NO_PROVIDER, "the NIC's driver for the verbs library is not there", **IMAGE)


_NO_NET = "Failed to initialize any NET plugin"
"""From 2.27 on; sockets can always be initialised, so after "No device found" NCCL_NET asked for IB alone."""


@cause(
    signs=(
        "NET/IB : No device found",
        "NCCL_IB_HCA set to",
        "NCCL_NET set by environment to IB",
        "Error: network IB not",
        _NO_NET,
    ),
    doctor="env.hca-match",
    echoes=("libibverbs-missing",),
    bad=lambda: [
        "n1:7:7 [0] NCCL INFO NET/IB : No device found.\nn1:7:7 [0] net.cc:349 NCCL WARN Error: network IB not found."
    ],
    good=lambda: ["n1:7:7 [0] NCCL INFO NET/IB : No device found.\nn1:7:7 [0] NCCL INFO Using network Socket"],
)
def no_device_of_that_name(log: JobLog) -> Iterator[Finding]:
    """RDMA was asked for, and NCCL found no device for it.

    Right: NCCL found a device wherever RDMA was asked for.
    Why: NCCL_IB_HCA matches none of the devices, all ports that it names are down, or the container has none.
    Fix: `ibv_devinfo` where the job runs; shows it none: give the container /dev/infiniband. Shows it some: correct
    NCCL_IB_HCA to their names.
    """
    asked = ("NCCL_IB_HCA set to", "NCCL_NET set by environment to IB", "Error: network IB not")
    details: dict[str, Any] = {"codes": ("ib-hca-wrong", "ib-device-not-in-container"), **JOB}
    if any("set to ^" not in event.text for event in log.having(*asked)):
        yield from informed(log, ("NET/IB : No device found",), "NCCL found no RDMA device", **details)
    without = {(event.host, event.pid) for event in log.having("NET/IB : No device found")}
    for event in log.having(_NO_NET):
        if not demoted(event) and (event.host, event.pid) in without:
            yield said(log, event, "NCCL found no RDMA device", **details)


@cause(
    code="net-asymmetric",
    signs=("Using network ",),
    doctor="sync.nic-count",
    echoes=("libibverbs-missing", "ib-device-not-in-container", "ib-hca-wrong", "plugin-missing", "efa-no-provider"),
    bad=lambda: ["n1:7:7 [0] NCCL INFO Using network IB\nn2:7:7 [0] NCCL INFO Using network Socket"],
    good=lambda: ["n1:7:7 [0] NCCL INFO Using network IB\nn2:7:7 [0] NCCL INFO Using network IB"],
)
def networks_differ(log: JobLog) -> Iterator[Finding]:
    """Nodes chose different networks.

    Right: All nodes chose the same network.
    Why: each rank chooses for itself; where one host has no usable NIC it takes sockets, and the ranks then wait for
    each other on different networks.
    Fix: compare the lines before "Using network" on both hosts for the reason; set NCCL_NET=IB to make the host without
    devices fail at once.
    """
    of: dict[str, set[str]] = {}
    for event in log.having("Using network "):
        if event.host:
            of.setdefault(event.host, set()).add(between(event.text, "Using network ").strip())
    chosen = {next(iter(networks)) for networks in of.values() if len(networks) == 1}
    if len(chosen) < 2:
        return
    usual = max(sorted(chosen), key=lambda name: (name != "Socket", sum(name in networks for networks in of.values())))
    seen: set[str] = set()
    for event in log.having("Using network "):
        network = between(event.text, "Using network ").strip()
        if event.host and network != usual and event.host not in seen:
            seen.add(event.host)
            yield said(log, event, f"{event.host} uses {network}, other hosts {usual}", **NODE)
