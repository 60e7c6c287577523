"""Files that NCCL's variables name: whether they are there, and for a topology file which devices it speaks of.

NCCL opens them as the user of the job, so what this process sees holds for a job that the same user starts here.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from ncclprobe.errors import Missing
from ncclprobe.facts.field import learn
from ncclprobe.facts.loader import Loader
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct, field


class TopologyFile(Struct, frozen=True):
    """The file of NCCL_TOPO_FILE. `addresses`: the PCI functions that it calls a gpu or nic, in lower case.

    `whole`: it begins with <system and ends with </system>, as NCCL demands; `version` is the attribute of <system>.
    """

    path: str
    whole: bool = True
    version: str = "1"
    addresses: tuple[str, ...] = ()


class NamedFiles(Struct, frozen=True):
    """`topology`: None where NCCL_TOPO_FILE is not set. `libraries`: plugins named by a path; whether they are there.

    A plugin named without a folder, and not as NCCL's usually are, is a key as it stands: whether the loader finds it.
    `log_folder`: where NCCL_DEBUG_FILE would be made; `log_writable`: None where that is not set, Absent: not known. A
    folder that does not exist is not writable.
    """

    topology: TopologyFile | Absent | None = None
    log_folder: str = ""
    log_writable: bool | Absent | None = None
    libraries: Mapping[str, bool | Absent] = field(default_factory=dict)


_CLASSES = ("0x0302", "0x0207", "0x0200", "0x0300")
"""PCI classes of GPUs and NICs."""
_PLUGINS = ("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_ENV_PLUGIN")
_MOST = 64  # names; NCCL reads 14 of NCCL_NET_PLUGIN
_SONAME = re.compile(r"(?!libnccl)[^/]+\.so(\.\d+)*")
"""A library by its bare name; those that begin with libnccl are found by :mod:`ncclprobe.facts.plugins`."""


@collector
def named_files(host: Host, settings: Settings, loader: Loader | Absent) -> NamedFiles:
    """Inspect the files that variables name; open only NCCL_TOPO_FILE, and create nothing."""
    wanted = settings.get("NCCL_TOPO_FILE")
    folder = log_folder(settings.get("NCCL_DEBUG_FILE") or "")
    named = list(dict.fromkeys(one for name in _PLUGINS for one in (settings.get(name) or "").split(",")))[:_MOST]
    there = {name: _there(host, name) for name in named if name.startswith("/")}
    there |= {name: _loadable(host, name, loader) for name in named if _SONAME.fullmatch(name)}
    return NamedFiles(
        topology=learn(host, lambda text: topology_file(wanted, text), "read", wanted) if wanted else None,
        log_folder=folder,
        log_writable=learn(host, _writable, "access", folder) if folder else None,
        libraries=there,
    )


def log_folder(pattern: str) -> str:
    """Return the folder of NCCL_DEBUG_FILE, empty where it is not known: relative, one of NCCL's devices, or with a
    ``%``.
    """
    folder = str(PurePosixPath(pattern).parent)
    special = pattern.lower() in ("stdout", "stderr") or pattern.startswith("/dev/")
    return "" if special or not pattern.startswith("/") or "%" in folder else folder


def _writable(text: str) -> bool:
    return bool(json.loads(text)["write"])


def _there(host: Host, path: str) -> bool | Absent:
    found = learn(host, json.loads, "stat", path)
    if isinstance(found, Absent):
        return False if found.refused == Missing.__name__ else found
    return True


def _loadable(host: Host, name: str, loader: Loader | Absent) -> bool | Absent:
    """Return whether the loader finds a library by its bare name, in the folders that it is known to search."""
    if isinstance(loader, Absent):
        return loader
    places = [_there(host, f"{folder}/{name}") for folder in loader.folders()]
    places.append(learn(host, lambda text: bool(json.loads(text)), "ld_cache", name))
    return any(place is True for place in places) or next((p for p in places if isinstance(p, Absent)), False)


def topology_file(path: str, text: str) -> TopologyFile:
    """Return what NCCL's own parser would find in it (src/graph/xml.cc). Virtual addresses are as good as any."""
    version = next((each.get("version", "") for each in _elements(text, "system")), "")
    devices = [each.get("busid", "") for each in _elements(text, "pci") if each.get("class", "")[:6] in _CLASSES]
    whole = "<system" in text and text.rstrip().endswith("</system>")
    addresses = tuple(each.lower() for each in devices if each and not each.strip("0123456789abcdefABCDEF:."))
    return TopologyFile(path, whole, version if version.isdecimal() else "", addresses)


def _elements(text: str, tag: str) -> Iterator[dict[str, str]]:
    """Yield the attributes of each element `tag`, in one pass over the text."""
    for piece in text.split("<"):
        element = piece.partition(">")[0]
        if element.startswith(tag) and element[len(tag) : len(tag) + 1].isspace():
            words = element[len(tag) :].split('"')
            yield {name.strip().rstrip("="): value for name, value in zip(words[::2], words[1::2], strict=False)}
