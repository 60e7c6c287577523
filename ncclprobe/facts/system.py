"""The operating system: kernel, distribution, host name, boot id and architecture and clock.

The options of the kernel about IOMMU and PCI decide how devices reach each other's memory. Whether the clock is kept
right, the kernel says through timedatectl: every user may ask, but in a container systemd does not answer, though the
clock is the machine's.
"""

import json
import re
import shlex

from ncclprobe.errors import HostError, Missing, ParseError
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct

CMDLINE = "/proc/cmdline"
_OPTION = re.compile(r"(?:(?:intel_|amd_)?iommu|arm-smmu(?:-v3)?|pci|pcie_\w+|swiotlb)(?:[.=].*)?")


class KernelOptions(Struct, frozen=True):
    """The options about IOMMU, PCI and bounce buffers as they were written, sorted (kernel-parameters.txt of Linux).

    ``intel_iommu=on``, ``iommu=pt``, ``iommu.passthrough=1``, ``pci=realloc``, ``pcie_aspm=off`` …
    """

    devices: tuple[str, ...] = ()


@collector
def kernel_options(host: Host) -> KernelOptions:
    """Read /proc/cmdline, open to every user; in a container it is the machine's."""
    return KernelOptions(device_options(host.ask("read", CMDLINE)))


def device_options(text: str) -> tuple[str, ...]:
    """Return the words of a kernel command line that are about IOMMU and PCI, each once. What follows ``--``
    is init's.
    """
    words = re.split(r"(?:^|\s)--(?:\s|$)", text.strip(), maxsplit=1)[0].split()
    return tuple(sorted({word for word in words if _OPTION.fullmatch(word)}))


class TimeSync(Struct, frozen=True):
    """`synchronized`: a daemon keeps the clock (chrony, ntpd, ptp4l with phc2sys …): adjtimex(2) without STA_UNSYNC."""

    synchronized: bool


@collector
def timesync(host: Host) -> TimeSync:
    """Read one property of systemd (since 239). Every user may ask."""
    return TimeSync(synchronized(host.ask("run", "timedatectl", "show", "--property=NTPSynchronized")))


def synchronized(text: str) -> bool:
    """Parse ``NTPSynchronized=yes``. Raises ParseError."""
    if text.strip() not in ("NTPSynchronized=yes", "NTPSynchronized=no"):
        raise ParseError(f"timedatectl: {text[:80]!r}")
    return text.strip().endswith("=yes")


class System(Struct, frozen=True):
    """`boot_id` changes at each boot and is shared by a machine's containers; None where it cannot be read."""

    hostname: str
    kernel: str
    machine: str
    distribution: str
    boot_id: str | None


@collector
def system(host: Host) -> System:
    """Read uname(2), /etc/os-release and the kernel's boot id."""
    names = json.loads(host.ask("uname"))
    try:
        release = host.ask("read", "/etc/os-release")
    except Missing:  # a minimal container
        release = ""
    return System(
        hostname=names["hostname"],
        kernel=names["release"],
        machine=names["machine"],
        distribution=distribution(release),
        boot_id=_boot_id(host),
    )


def _boot_id(host: Host) -> str | None:
    try:
        return host.ask("read", "/proc/sys/kernel/random/boot_id").strip()
    except HostError:  # a container may hide it, which says nothing of the rest
        return None


def distribution(text: str) -> str:
    """Return PRETTY_NAME of os-release(5), which is shell-quoted; empty where the file lacks it."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            try:
                return " ".join(shlex.split(value))
            except ValueError:
                raise ParseError(f"/etc/os-release: unbalanced quotes: {line[:80]!r}") from None
    return ""
