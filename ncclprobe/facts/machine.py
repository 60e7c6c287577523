"""What machine this is, by its firmware, and whether it is a virtual one. No metadata service is asked.

The files of /sys/class/dmi/id read here are for everyone (serial numbers and the UUID, which are root's, are not). In
some containers and on machines without SMBIOS there is no such folder; POWER and Arm boards may name their model in the
device tree instead.
"""

import re

from ncclprobe.errors import HostError, Missing
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct

DMI = "/sys/class/dmi/id"
DEVICE_TREE = "/proc/device-tree/model"
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"  # azure-sdk and cloud-init know Azure by it
_ORACLE_TAG = "OracleCloud.com"

_HYPERVISORS = {  # how they name themselves in DMI (dmi_vendor_table of systemd, src/basic/virt.c)
    "KVM": "kvm",
    "QEMU": "qemu",
    "OpenStack": "kvm",
    "Amazon EC2": "amazon",
    "VMware": "vmware",
    "VMW": "vmware",
    "innotek GmbH": "virtualbox",
    "VirtualBox": "virtualbox",
    "Xen": "xen",
    "Bochs": "bochs",
    "Parallels": "parallels",
    "BHYVE": "bhyve",
    "Hyper-V": "hyper-v",
    "Google Compute Engine": "google",
}


class Dmi(Struct, frozen=True):
    """What the firmware says; a field is empty where it says nothing. `asset_tag` is that of the chassis."""

    vendor: str = ""
    product: str = ""
    board_vendor: str = ""
    board: str = ""
    chassis_vendor: str = ""
    asset_tag: str = ""
    bios_vendor: str = ""


class Machine(Struct, frozen=True):
    """`cloud` is aws, azure, gcp, oracle or empty. `instance_type` only where the firmware says it, as on AWS.

    `virtual`: a hypervisor runs below this kernel; None: nothing tells (on Arm and POWER no processor flag does).
    `hypervisor` is its name where it gives one.
    """

    dmi: Dmi = Dmi()
    cloud: str = ""
    instance_type: str = ""
    virtual: bool | None = None
    hypervisor: str = ""


@collector
def machine(host: Host) -> Machine:
    """Read seven small files, or the device tree's; /proc/cpuinfo for the hypervisor flag; Xen's type. For
    every user.
    """
    try:
        dmi = Dmi(
            vendor=host.ask("read", f"{DMI}/sys_vendor").strip(),
            product=_optional(host, f"{DMI}/product_name"),
            board_vendor=_optional(host, f"{DMI}/board_vendor"),
            board=_optional(host, f"{DMI}/board_name"),
            chassis_vendor=_optional(host, f"{DMI}/chassis_vendor"),
            asset_tag=_optional(host, f"{DMI}/chassis_asset_tag"),
            bios_vendor=_optional(host, f"{DMI}/bios_vendor"),
        )
    except Missing:
        dmi = Dmi(product=_optional(host, DEVICE_TREE).rstrip("\0"))
    return identify(dmi, _optional(host, "/proc/cpuinfo"), _optional(host, "/sys/hypervisor/type"))


def _optional(host: Host, path: str) -> str:
    try:
        return host.ask("read", path).strip()
    except HostError:
        return ""


def identify(dmi: Dmi, cpuinfo: str, xen: str) -> Machine:
    """Return the machine that has these DMI fields, this /proc/cpuinfo and this /sys/hypervisor/type."""
    cloud = _cloud(dmi)
    hypervisor = xen or _hypervisor(dmi)
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    virtual: bool | None = " hypervisor" in f"{flags[1]} " if flags else bool(hypervisor) or None
    if ".metal" in dmi.product and cloud == "aws":
        virtual = False
    if virtual is False:  # bare metal of a cloud carries the cloud's name too
        hypervisor = ""
    instance = dmi.product if cloud == "aws" and "." in dmi.product else ""
    return Machine(dmi, cloud, instance, virtual, hypervisor)


def _cloud(dmi: Dmi) -> str:
    """Return which public cloud the firmware names."""
    if dmi.vendor.startswith("Amazon EC2"):
        return "aws"
    if dmi.product == "Google Compute Engine":
        return "gcp"
    if dmi.asset_tag == _AZURE_TAG:
        return "azure"
    return "oracle" if dmi.asset_tag == _ORACLE_TAG else ""


def _hypervisor(dmi: Dmi) -> str:
    if dmi.vendor == "Microsoft Corporation" and dmi.product == "Virtual Machine":
        return "hyper-v"
    for reported in (dmi.product, dmi.vendor, dmi.board_vendor, dmi.bios_vendor):
        for words, name in _HYPERVISORS.items():
            if reported.startswith(words):
                return name
    return ""
