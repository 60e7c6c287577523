"""NVIDIA's IMEX service, by which machines of one NVLink rack share memory: which nodes it is told of, and its state.

Its guide (docs.nvidia.com/multi-node-nvlink-systems/imex-guide): nodes_config.cfg has an address per line and must be
the same on all nodes; `nvidia-imex-ctl -q` prints READY once the domain is up. Everyone may read and ask. In a
container the service is usually elsewhere, and neither can be seen.
"""

from ncclprobe import bounds
from ncclprobe.errors import Failed, ParseError
from ncclprobe.facts.field import learn
from ncclprobe.facts.nvml import GpuFabric, Gpus
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct

NODES = "/etc/nvidia-imex/nodes_config.cfg"
_LONGEST_STATE = 40


class Imex(Struct, frozen=True):
    """`nodes`: the addresses of the domain, in their order. `state` is the service's word, such as READY."""

    nodes: tuple[str, ...] | Absent
    state: str | Absent


@collector
def imex(host: Host, gpus: Gpus) -> Imex:
    """Read nodes_config.cfg and ask nvidia-imex-ctl -q, where a GPU is part of a cluster of machines."""
    if not any(isinstance(gpu.fabric, GpuFabric) and gpu.fabric.cluster.strip("0-") for gpu in gpus.all):
        raise Failed("no GPU is part of a cluster of machines")
    return Imex(learn(host, nodes, "read", NODES), learn(host, state, "run", "nvidia-imex-ctl", "-q"))


def nodes(text: str) -> tuple[str, ...]:
    """Return the addresses in nodes_config.cfg: one a line, # begins a comment. Raises ParseError for too many."""
    found = [line.partition("#")[0].strip() for line in text.splitlines()]
    listed = tuple(line for line in found if line)
    if len(listed) > bounds.IMEX_NODES:
        raise ParseError(f"{NODES}: {len(listed)} nodes")
    return listed


def state(text: str) -> str:
    """Return the last line of ``nvidia-imex-ctl -q``. Raises ParseError where it says nothing."""
    lines = text.strip().splitlines()
    if not lines or len(lines[-1]) > _LONGEST_STATE:
        raise ParseError(f"nvidia-imex-ctl -q: {text[:80]!r}")
    return lines[-1].strip()
