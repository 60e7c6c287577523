"""NCCL's plugins found on this machine: networks (OFI, GPUDirect-TCPX, SHARP …), tuners, profilers.

Everyone may list the folders. A plugin that lies in a folder that the loader does not search is there for nothing: NCCL
opens ``libnccl-net.so`` by its bare name, and goes on with sockets without a word where it finds none.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from ncclprobe.errors import HostError
from ncclprobe.facts.environment import Environment
from ncclprobe.facts.loader import Loader, libraries, usr
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

_KINDS = ("net", "tuner", "profiler", "env", "gin")
_NAME = re.compile(r"libnccl[-_].*\.so(\.\d+)*")
_FOLDERS = (
    "/opt/amazon/ofi-nccl/lib",  # of Amazon's EFA installer, as are the next two
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/aws-ofi-nccl/lib",  # NeMo-RL#2359
    "/opt/aws-ofi-nccl/lib",
    "/usr/local/nvidia/lib64",  # Google's installers of GPUDirect-TCPX and -TCPXO (container-engine-accelerators)
    "/usr/local/tcpx/lib64",
    "/usr/local/gib/lib64",
    "/opt/hpcx/nccl_rdma_sharp_plugin/lib",  # NVIDIA HPC-X, NCCL-RDMA-SHARP Plugins
    "/opt/hpcx/ncclnet_plugin/lib",
)
_FLAVOURS = {  # by what the file or one of its folders is called, the more special first
    "ofi": "ofi",
    "tcpxo": "tcpxo",
    "fastrak": "tcpxo",
    "tcpx": "tcpx",
    "gib": "gib",
    "sharp": "sharp",
    "ucx": "ucx",
}
_NAMED_BY = ("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN")


class Plugin(Struct, frozen=True):
    """One plugin file. `kind` is net, tuner, profiler, env or gin, `flavour` ofi, tcpx, sharp … where its path tells.

    `reachable`: the loader finds it by its bare name, so that NCCL does.
    """

    path: str
    kind: str
    flavour: str
    reachable: bool


class Plugins(Struct, frozen=True):
    """Every plugin file found, those that the loader would find first."""

    all: tuple[Plugin, ...] = ()


@collector
def plugins(host: Host, loader: Loader, environment: Environment | Absent) -> Plugins:
    """Read the loader's folders, vendors' usual ones, and that of a plugin named by its path; open to every user."""
    variables = {} if isinstance(environment, Absent) else environment.variables
    searched = loader.folders()
    found = []
    for folder in dict.fromkeys([*searched, *_FOLDERS, *_named(variables)]):
        found += [_plugin(f"{folder}/{name}", folder in searched) for name in _names(host, folder)]
    return Plugins(tuple(found))


def _named(variables: Mapping[str, str | None]) -> Iterator[str]:
    """Yield the folders of plugins that variables name by an absolute path."""
    for variable in _NAMED_BY:
        for value in (variables.get(variable) or "").split(","):
            if value.startswith("/"):
                yield usr(str(PurePosixPath(value).parent))


def _names(host: Host, folder: str) -> list[str]:
    try:
        return [name for name in libraries(host, folder) if _NAME.fullmatch(name)]
    except HostError:  # a folder that does not answer hides what it has, and no more
        return []


def _plugin(path: str, reachable: bool) -> Plugin:
    words = re.split(r"[-_.]", PurePosixPath(path).name)
    kind = next((word for word in words if word in _KINDS), "")
    flavour = next((name for mark, name in _FLAVOURS.items() if re.search(rf"[-_./]{mark}[-_./]", path)), "")
    return Plugin(path, kind, flavour, reachable)
