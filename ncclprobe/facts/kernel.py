"""What the kernel was told at boot about IOMMU and PCI: options that decide how devices reach each other's memory."""

import re

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
