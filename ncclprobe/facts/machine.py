"""Identify the machine: firmware, hypervisor, operating system and clock synchronisation.

Every user may read the files of /sys/class/dmi/id used here (only root may read serial numbers and the UUID). Some
containers and machines without SMBIOS lack this folder; POWER and Arm boards may name their model in the device tree
instead. No metadata service is queried.

The kernel's IOMMU and PCI options decide how devices reach each other's memory. timedatectl reports whether the clock
is synchronised. It needs no privileges, but systemd does not answer in a container, although the clock is the
machine's.
"""

import json
import re
import shlex
from collections.abc import Mapping

from ncclprobe.host import Host
from ncclprobe.model.errors import HostError, Missing, ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct, field

DMI = "/sys/class/dmi/id"
DEVICE_TREE = "/proc/device-tree/model"
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"  # azure-sdk and cloud-init know Azure by it
_ORACLE_TAG = "OracleCloud.com"

_HYPERVISORS = (  # how they name themselves in DMI (dmi_vendor_table of systemd, src/basic/virt.c)
    "KVM",
    "QEMU",
    "OpenStack",
    "Amazon EC2",
    "VMware",
    "VMW",
    "innotek GmbH",
    "VirtualBox",
    "Xen",
    "Bochs",
    "Parallels",
    "BHYVE",
    "Hyper-V",
    "Google Compute Engine",
)


class Dmi(Struct, frozen=True):
    """Firmware fields; empty if the firmware does not set the field. `asset_tag` is the chassis's."""

    vendor: str = ""
    product: str = ""
    board_vendor: str = ""
    board: str = ""
    asset_tag: str = ""
    bios_vendor: str = ""


class Machine(Struct, frozen=True):
    """`cloud` is aws, azure, gcp, oracle or empty. `instance_type` is set only if the firmware has it, as on AWS.

    `virtual`: this kernel runs under a hypervisor; None: unknown (Arm and POWER have no processor flag for it).
    """

    dmi: Dmi = Dmi()
    cloud: str = ""
    instance_type: str = ""
    virtual: bool | None = None


class NamedMachine(Struct, frozen=True):
    """A machine that pasted text names but does not show: its type, GPUs, nodes, ranks per node and RDMA interfaces.

    `withheld` are variables that mpirun does not pass to other nodes, `given` the NICs that a container gets, by
    resource. `partial`: the text does not show all GPUs; `some_nics`: not all NICs. `rdma`: it mentions RDMA devices.
    `sources`: a script takes variables from a file that is not shown. `gib`: Google's image puts the gIB plugin
    on the loader's path. Empty or 0: not named.
    """

    type: str = ""
    gpu: str = ""
    gpus: int = 0
    nodes: int = 0
    ranks: int = 0
    withheld: tuple[str, ...] = ()
    given: Mapping[str, int] = field(default_factory=dict)
    partial: bool = False
    some_nics: bool = False
    rdma: bool = False
    sources: bool = False
    gib: bool = False
    netdevs: Mapping[str, str] = field(default_factory=dict)

    @property
    def machine(self) -> Machine | None:
        """Return the machine that the type's name implies, or None if it implies no cloud."""
        cloud = next((cloud for begin, cloud in _CLOUDS_OF_TYPES if self.type.startswith(begin)), "")
        return Machine(cloud=cloud, instance_type=self.type) if cloud else None


_CLOUDS_OF_TYPES = (
    *(("bm.gpu", "oracle"), ("standard_n", "azure")),
    *((begin, "gcp") for begin in ("a2-", "a3-", "a4", "g2-", "g4-")),
    *((begin, "aws") for begin in ("p3", "p4", "p5", "p6", "g4dn", "g5", "g6", "g7")),
)
"""Prefixes of machine types, and the cloud each belongs to."""


def is_virtual(machine: object) -> bool:
    """Return whether `machine` is known to be virtual; False if it is absent."""
    return isinstance(machine, Machine) and machine.virtual is True


@collector
def machine(host: Host) -> Machine:
    """Read six small files or the device tree, /proc/cpuinfo's hypervisor flag, and Xen's type. Needs no privileges."""
    try:
        dmi = Dmi(
            vendor=host.ask("read", f"{DMI}/sys_vendor").strip(),
            product=_optional(host, f"{DMI}/product_name"),
            board_vendor=_optional(host, f"{DMI}/board_vendor"),
            board=_optional(host, f"{DMI}/board_name"),
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
    """Build the machine from its DMI fields, /proc/cpuinfo and /sys/hypervisor/type."""
    cloud = _cloud(dmi)
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    virtual: bool | None = " hypervisor" in f"{flags[1]} " if flags else bool(xen) or _is_hypervisors(dmi) or None
    if ".metal" in dmi.product and cloud == "aws":
        virtual = False
    instance = dmi.product if cloud == "aws" and "." in dmi.product else ""
    return Machine(dmi, cloud, instance, virtual)


def _cloud(dmi: Dmi) -> str:
    """Return the public cloud that the firmware names; empty if none."""
    if dmi.vendor.startswith("Amazon EC2"):
        return "aws"
    if dmi.product == "Google Compute Engine":
        return "gcp"
    if dmi.asset_tag == _AZURE_TAG:
        return "azure"
    return "oracle" if dmi.asset_tag == _ORACLE_TAG else ""


def _is_hypervisors(dmi: Dmi) -> bool:
    if dmi.vendor == "Microsoft Corporation" and dmi.product == "Virtual Machine":
        return True
    return any(said.startswith(_HYPERVISORS) for said in (dmi.product, dmi.vendor, dmi.board_vendor, dmi.bios_vendor))


class TimeSync(Struct, frozen=True):
    """`synchronized`: a daemon (chrony, ntpd, ptp4l with phc2sys …) disciplines the clock: adjtimex(2) without
    STA_UNSYNC.
    """

    synchronized: bool


@collector
def timesync(host: Host) -> TimeSync:
    """Read one property of systemd (since 239). Needs no privileges."""
    return TimeSync(synchronized(host.ask("run", "timedatectl", "show", "--property=NTPSynchronized")))


def synchronized(text: str) -> bool:
    """Parse ``NTPSynchronized=yes``. Raises ParseError."""
    if text.strip() not in ("NTPSynchronized=yes", "NTPSynchronized=no"):
        raise ParseError(f"timedatectl: {text[:80]!r}")
    return text.strip().endswith("=yes")


class System(Struct, frozen=True):
    """`boot_id` changes at each boot and is common to all containers of a machine; None if unreadable."""

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
    """Return PRETTY_NAME of os-release(5), which is shell-quoted; empty if the file lacks it."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            try:
                return " ".join(shlex.split(value))
            except ValueError:
                raise ParseError(f"/etc/os-release: unbalanced quotes: {line[:80]!r}") from None
    return ""
