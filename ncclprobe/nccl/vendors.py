"""What the vendor of a network prescribes for it: there a setting that is a mistake elsewhere is right.

The data is ``vendors.csv`` in this folder: for each vendor a row with its source and date, then a row per variable with
the values that its documents give (``*``: any), over all their editions. `must`: it stands in every edition, so that a
job without it has left the vendor's way.
"""

import csv
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.model.nccl_selection import Choices
from ncclprobe.model.report import Setting
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

TITLES: Mapping[str, str] = {
    "tcpxo": "Google's GPUDirect-TCPXO",
    "tcpx": "Google's GPUDirect-TCPX",
    "gib": "Google's gIB",
    "efa": "AWS for EFA",
    "cxi": "HPE for Slingshot",
    "oci": "Oracle for its RDMA network",
    "azure": "Azure for its InfiniBand",
    "sharp": "NVIDIA for SHARP",
}
_BEGINNINGS = {
    "tcpxo": ("NCCL_FASTRAK_",),
    "tcpx": ("NCCL_GPUDIRECTTCPX_",),
    "efa": ("FI_EFA_",),
    "cxi": ("FI_CXI_",),
    "oci": ("RX_QUEUE_LEN", "IB_RX_QUEUE_LEN"),
    "sharp": ("SHARP_",),
}
"""Variables that one vendor alone prescribes, by how they begin."""
_VALUES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "tcpxo": (("NCCL_NET", "fastrak"),),
    "gib": (("NCCL_NET", "gib"), ("NCCL_TUNER_CONFIG_PATH", "/usr/local/gib"), ("NCCL_IB_FIFO_TC", "84")),
    "efa": (("FI_PROVIDER", "efa"), ("NCCL_NET_PLUGIN", "/opt/amazon"), ("NCCL_TUNER_PLUGIN", "/opt/amazon")),
    "cxi": (("FI_PROVIDER", "cxi"), ("NCCL_SOCKET_IFNAME", "hsn")),
    "oci": (("NCCL_IB_TC", "41"),),
    "azure": (("NCCL_TOPO_FILE", "/opt/microsoft"),),
    "sharp": (("NCCL_ALGO", "collnet"),),
}
"""Values that say the same, by how they begin."""
_ANY_CASE = ("NCCL_PROTO", "NCCL_ALGO", "OFI_", "FI_")
"""How the names of variables begin whose readers do not mind the case."""
_CLOUDS = {"oracle": "oci", "azure": "azure"}
_NETWORKS = {"FasTrak": "tcpxo", "GPUDirectTCPX": "tcpx", "gIB": "gib", "AWS Libfabric": "efa"}


class Prescription(Struct, frozen=True):
    """One variable of one vendor. `values` empty: any; `must`: every edition has it."""

    vendor: str
    name: str
    values: tuple[str, ...]
    must: bool

    def allows(self, text: str | None) -> bool:
        """Return whether this is what the vendor gives; a value that is not recorded is."""
        if text is None or not self.values or text in self.values:
            return True
        return (self.name == "NCCL_NET" or self.name.startswith(_ANY_CASE)) and _plain(text) in map(_plain, self.values)


class Compared(Struct, frozen=True):
    """The settings of a node against what vendors prescribe: the names that are as one of them says, those that are
    not, and those that are missing.
    """

    right: Mapping[str, str]
    other: tuple[tuple[Setting, Prescription], ...]
    missing: tuple[Prescription, ...]


def _plain(text: str) -> str:
    return text.strip().lower()


@cache
def _table() -> tuple[Mapping[str, str], tuple[Prescription, ...]]:
    data = pkgutil.get_data("ncclprobe.nccl", "vendors.csv")
    _, *rows = csv.reader((data or b"").decode().splitlines())
    sources = {vendor: values for vendor, _, values, need in rows if need == "source"}
    made = (
        Prescription(vendor, name, () if values == "*" else tuple(values.split("|")), need == "must")
        for vendor, name, values, need in rows
        if need != "source"
    )
    return sources, tuple(made)


def source(vendor: str) -> str:
    """Return where a vendor's prescriptions are from."""
    return _table()[0][vendor]


def in_use(settings: Settings, machine: Machine | Absent, choices: Choices) -> tuple[str, ...]:
    """Return the vendors whose network this job is set up for: by its plugin, by the cloud, by settings of theirs."""
    found = {name for name in TITLES if any(_marks(name, settings))}
    taken = choices.network.chosen or ()
    over = _NETWORKS.get(taken[0].name, "") if taken else ""
    found |= {"cxi" if over == "efa" and any(d.startswith("hsn") for d in taken[0].devices) else over} - {""}
    cloud = _CLOUDS.get(machine.cloud, "") if isinstance(machine, Machine) else ""
    found |= {cloud} if cloud and taken and taken[0].name == "IB" else set()
    found -= {"efa"} if "cxi" in found else set()
    turned_off = {settings.get("NCCL_COLLNET_ENABLE"), settings.get("SHARP_COLL_ENABLE_SAT")} == {"0"}
    found -= {"sharp"} if turned_off else set()
    return tuple(name for name in TITLES if name in found)


def _marks(vendor: str, settings: Settings) -> Iterator[bool]:
    yield any(name.startswith(_BEGINNINGS.get(vendor, ("\0",))) for name in settings.effective)
    for name, begins in _VALUES.get(vendor, ()):
        text = _plain(settings.get(name) or "")
        yield text == begins if begins.isdecimal() else text.removeprefix("=").startswith(begins)


def compared(settings: Settings, vendors: Sequence[str]) -> Compared:
    """Return the settings against what these vendors prescribe. Where two prescribe one variable, either is right."""
    by_name: dict[str, list[Prescription]] = {}
    for each in _table()[1]:
        if each.vendor in vendors:
            by_name.setdefault(each.name, []).append(each)
    right: dict[str, str] = {}
    other, missing = [], []
    for name, rows in by_name.items():
        entry = settings.effective.get(name)
        if entry is None:
            missing += [row for row in rows if row.must]
        elif allowing := next((row for row in rows if row.allows(entry.value)), None):
            right[name] = allowing.vendor
        else:
            other += [(entry, rows[0])]
    return Compared(right, tuple(other), tuple(missing))
