"""Settings of PCIe requests: what one GPU or NIC has otherwise than its siblings, here or on other nodes."""

from collections import Counter
from collections.abc import Iterator, Mapping

from ncclprobe.checks.gpu import blanks
from ncclprobe.checks.pci import bare_metal, gpu_devices, rdma_cards
from ncclprobe.checks.pci.links import FULL, cards, nic
from ncclprobe.errors import Unlearned
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Device, Pci, PcieSettings
from ncclprobe.model.findings import Finding, warn
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace

_LARGE = PcieSettings(4096, 256, True)
_FEW = 3


def _with(pci: Pci, *settings: PcieSettings | Absent | None) -> Pci:
    """Return these devices with these settings, in their order; the last one is for all others."""
    every = [*settings, *[settings[-1]] * len(pci.devices)]
    named = zip(pci.devices.items(), every, strict=False)
    return replace(pci, devices={address: replace(device, settings=each) for (address, device), each in named})


_FABRIC, _CARDS = cards(*(nic(number, FULL) for number in range(4)))


@check(
    slows=True,
    bad=lambda: [(_with(_CARDS, replace(_LARGE, relaxed_ordering=False), _LARGE), Absent("no driver"), _FABRIC)],
    good=lambda: [(_with(_CARDS, _LARGE), Absent("no driver"), _FABRIC)],
    privilege="root",
    applies=bare_metal,
)
def settings(pci: Pci, gpus: Gpus | Absent, fabric: Fabric | Absent) -> Iterator[Finding]:
    """A GPU or NIC has other PCIe settings than its siblings.

    Right: All GPUs, and all NICs of one model, have the same PCIe settings.
    Why: a NIC whose MaxReadReq is 512 where the others have 4096, or without relaxed ordering, reads memory slower than
    they do, and every ring goes at its pace; a card that was exchanged or reset, or a script that missed one, leaves
    that behind. Address translation by the device (ATS) on one GPU alone makes its DMA go another way.
    Fix: `setpci -s ADDRESS CAP_EXP+8.w` shows the register; set it as for the others at each boot, or in the firmware.
    """
    devices = gpu_devices(pci, gpus)
    if isinstance(fabric, Fabric):
        devices |= {name: device for name, (device, _) in rdma_cards(fabric, pci).items()}
    unknown = {name: device.settings for name, device in devices.items() if isinstance(device.settings, Absent)}
    if devices and len(unknown) == len(devices):
        raise Unlearned(next(iter(unknown.values())).why)
    models: dict[tuple[int, int], dict[str, PcieSettings]] = {}
    for name, device in devices.items():
        if isinstance(device.settings, PcieSettings):
            models.setdefault((device.identity.vendor, device.identity.device), {})[name] = device.settings
    for found in models.values():
        yield from _odd(found, devices)
    if unknown:
        yield from blanks(unknown, len(devices), "/sys/bus/pci/devices/*/config")


def _odd(found: Mapping[str, PcieSettings], devices: Mapping[str, Device]) -> Iterator[Finding]:
    """Yield those few of one model that differ from most."""
    usual, times = Counter(found.values()).most_common(1)[0]
    if len(found) < _FEW or 2 * times <= len(found):
        return
    for name, own in found.items():
        if own != usual:
            message = f"{own}, where {times} of {len(found)} have {usual}"
            evidence = f"/sys/bus/pci/devices/{devices[name].address}/config (lspci -vvv: DevCtl)"
            yield warn(name, message, blame="node", action="fix-image", evidence=evidence)
