"""``lspci -vv`` output as the kernel's files of each function, and the ports that redirect requests (ACS)."""

import json
import re
from collections.abc import Sequence

from ncclprobe.host import REDIRECTS, Question
from ncclprobe.model.errors import HostError

_SWITCH = re.compile(r"PLX|PEX|Broadcom|Switchtec|Microsemi|Microchip|PMC-Sierra")
_ROOT = "/sys/bus/pci/devices"
_HEAD = re.compile(
    r"((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([\w/ -]{3,40}?)(?: \[[0-9a-f]{4}\])?: (.{1,160})"
)
_NAMED = re.compile(r"((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])[ :]{1,2}((?:mlx|rdmap|ibp|roce)[\w.-]{1,20})")
"""Heading that a script prints for a NIC in place of that of lspci."""
_CLASSES = {
    "infiniband controller": "20700",
    "ethernet controller": "20000",
    "network controller": "28000",
    "3d controller": "30200",
    "vga compatible controller": "30000",
    "bridge": "68000",
}
_VENDORS = {"mellanox": "15B3", "nvidia": "10DE", "amazon": "1D0F", "broadcom": "14E4", "intel": "8086"}
_IDS = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]")
_LINK = re.compile(r"Speed (\d{1,2}(?:\.\d)?)GT/s(?: \([a-z]{2,12}\))?, Width x(\d{1,2})")
_FILES = {"LnkCap:": ("max_link_speed", "max_link_width"), "LnkSta:": ("current_link_speed", "current_link_width")}


def lspci(lines: Sequence[str]) -> dict[Question, str | HostError]:
    """Read the links of GPUs and NICs.

    >>> read = lspci(["5e:00.0 Ethernet controller: Mellanox …", "LnkSta: Speed 8GT/s (downgraded), Width x16"])
    >>> read["read", "/sys/bus/pci/devices/0000:5e:00.0/current_link_speed"]
    '8 GT/s PCIe'
    """
    found: dict[Question, str | HostError] = {}
    functions: dict[str, bool] = {}
    address = ""
    redirects, others, bridge = list[str](), 0, "a bridge"
    for line in map(str.strip, lines):
        if short := _NAMED.fullmatch(line):
            line = f"{short[1]} Infiniband controller: {'Mellanox' if short[2].startswith('mlx') else 'Amazon'}"
        if head := _HEAD.match(line):
            address = head[1] if head[1].count(":") > 1 else f"0000:{head[1]}"
            kind, words = _CLASSES.get(head[2].lower(), ""), head[3].lower()
            bridge = address if _SWITCH.search(head[3]) else ""
            vendor = next((number for name, number in _VENDORS.items() if name in words), "0")
            ids = _IDS.findall(words)[-1:] or [(vendor, "1")]
            functions[address] = False
            if kind:
                found["read", f"{_ROOT}/{address}/uevent"] = f"PCI_CLASS={kind}\nPCI_ID={':'.join(ids[0])}\n"
        elif (
            address
            and (files := _FILES.get(line.partition("\t")[0].partition(" ")[0]))
            and (link := _LINK.search(line))
        ):
            found["read", f"{_ROOT}/{address}/{files[0]}"] = f"{link[1]} GT/s PCIe"
            found["read", f"{_ROOT}/{address}/{files[1]}"] = link[2]
            functions[address] = True
        elif line.startswith("ACSCtl:") and bridge:
            redirects += [bridge] if "ReqRedir+" in line or "CmpltRedir+" in line else []
            others += "Redir+" not in line
        elif line.startswith("NUMA node:") and address:
            found["read", f"{_ROOT}/{address}/numa_node"] = line.partition(":")[2].strip()
    known = [each for each, linked in functions.items() if linked and ("read", f"{_ROOT}/{each}/uevent") in found]
    acs: dict[Question, str | HostError] = {REDIRECTS: json.dumps([redirects, others])} if redirects or others else {}
    return acs | (found | {("list", _ROOT): json.dumps(known)} if known else {})
