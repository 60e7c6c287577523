"""Choose the transport between two GPUs of one node, and whether NCCL uses the NVSwitches' multicast (NVLS).

Sources: src/graph/paths.cc ncclTopoCheckP2p, src/transport/p2p.cc:130, src/transport/shm.cc:61, src/transport/nvls.cc
ncclNvlsInit, src/graph/search.cc:1124 (v2.30.7); older versions from their own tags. In prose:
docs/how/nccl-selection.md. Both GPUs are taken to belong to ranks of one host that share /dev/shm. Not modelled: NCCL
prefers the network where both GPUs reach a NIC below their own switch faster than each other (it takes bandwidths to
tell).
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.nccl_conf import Settings
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import GpuFabric, Gpus, PeerAccess
from ncclprobe.facts.software import Version, reaches
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct
from ncclprobe.nccl.gpudirect import Level, user_level
from ncclprobe.nccl.values import read_setting
from ncclprobe.topology.paths import PathType, Topology

Maker = Literal["amd", "intel", "zhaoxin", "arm", "power", ""]
Transport = Literal["P2P", "SHM", "NET"]

_NEAR_BY_DEFAULT = (2, 23)
_DISABLED_IS_REPORTED = (2, 12)
_NVLS, _NVLS_FOR_TWO, _HOPPER, _MULTICAST_CUDA = (2, 17), (2, 29), (9, 0), (12, 1)


class PeerTransport(Struct, frozen=True):
    """The transport that NCCL takes between two GPUs. `transport` None: not known.

    `broken`: NVML denies P2P to GPUs that NVLink joins, which ends NCCL's start ("P2P is disabled between NVLINK
    connected GPUs") unless NCCL_IGNORE_DISABLED_P2P=1 lets it use another.
    """

    one: str
    other: str
    transport: Transport | None
    path: PathType | None
    why: str
    broken: bool = False


class Nvls(Struct, frozen=True):
    """Whether NCCL reduces inside the NVSwitches. None: not known."""

    available: bool | None
    why: str


def maker(cpus: Cpus, machine: str) -> Maker:
    """Return who made the processors, as far as NCCL cares; `machine` is uname's. Empty: none that NCCL knows."""
    if machine.startswith(("aarch64", "arm")):
        return "arm"
    if machine.startswith("ppc64"):
        return "power"
    model = cpus.model.lower()
    words: dict[str, Maker] = {"amd": "amd", "intel": "intel", "zhaoxin": "zhaoxin", "centaur": "zhaoxin"}
    return next((cpu_maker for word, cpu_maker in words.items() if word in model), "")


def p2p_level(settings: Settings, version: Version | None, cpu: Maker, gpus: int) -> Level:
    """Return NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, else PXB, and SYS between the two GPUs of a machine by AMD.

    Up to 2.22 the default was SYS for any number of GPUs, and PXB for processors of Intel, Zhaoxin and Arm's makers.
    """
    if read_setting(settings, "NCCL_P2P_DISABLE", 0, version) == 1:
        return Level(PathType.LOC, f"NCCL_P2P_DISABLE={settings.get('NCCL_P2P_DISABLE')}")
    asked = user_level(settings, "NCCL_P2P_LEVEL", version)
    if asked:
        return asked
    if reaches(version, _NEAR_BY_DEFAULT):
        return Level(PathType.SYS if cpu == "amd" and gpus <= 2 else PathType.PXB)
    return Level(PathType.PXB if cpu in ("arm", "intel", "zhaoxin") else PathType.SYS)


def peer_transports(
    topology: Topology,
    peers: PeerAccess | Absent,
    settings: Settings,
    level: Level,
    version: Version | None = None,
) -> tuple[PeerTransport, ...]:
    """Return the transport of every pair of GPUs, the lower number first."""
    return tuple(
        _peer_transport(topology, pair, peers, settings, level, version) for pair in combinations(topology.gpus, 2)
    )


def _peer_transport(
    topology: Topology,
    pair: tuple[str, str],
    peers: PeerAccess | Absent,
    settings: Settings,
    level: Level,
    version: Version | None,
) -> PeerTransport:
    path = topology.paths[pair]
    if path is None:
        return PeerTransport(*pair, None, None, "the PCI tree does not tell how far apart they are")
    if path > level.path:
        return PeerTransport(*pair, _otherwise(settings), path, f"{path.name}, {level}")
    ignore = read_setting(settings, "NCCL_IGNORE_DISABLED_P2P", 0, version)
    relayed = path is PathType.NVB  # NCCL then asks about each hop, over a GPU that is not known here
    if relayed or (ignore == 2 and reaches(version, _DISABLED_IS_REPORTED)):
        return PeerTransport(*pair, "P2P", path, f"{path.name}, within {level.path.name}")
    status = _status(peers, pair)
    if status is None:
        return PeerTransport(
            *pair, None, path, f"{path.name}, within {level.path.name}; NVML does not say whether P2P works"
        )
    if status == "OK":
        return PeerTransport(*pair, "P2P", path, f"{path.name}, within {level.path.name}")
    broken = path <= PathType.NVB and ignore == 0
    return PeerTransport(
        *pair, _otherwise(settings), path, f"{path.name}, but NVML says {status} of P2P between them", broken
    )


def _status(peers: PeerAccess | Absent, pair: tuple[str, str]) -> str | None:
    """Return NVML's word where it denies reads or writes, OK where it allows both, None where it does not say."""
    if isinstance(peers, Absent):
        return None
    one, other = (int(name.removeprefix("GPU")) for name in pair)
    answers = [table.get((one, other)) for table in (peers.read, peers.write)]
    denied = [word for word in answers if isinstance(word, str) and word != "OK"]
    if denied:
        return denied[0]
    return "OK" if all(word == "OK" for word in answers) else None


def _otherwise(settings: Settings) -> Transport:
    """Return the transport without P2P: shared memory, and without that the network."""
    return "NET" if read_setting(settings, "NCCL_SHM_DISABLE", 0) == 1 else "SHM"


def nvls(gpus: Gpus, links: NvLinks | Absent, settings: Settings, version: Version | None = None) -> Nvls:
    """Return whether NVLS can be used, and the first reason why not, for one rank per GPU.

    A plain "yes" is what the files and NVML can tell: NCCL also asks CUDA for multicast, which fails where the fabric
    manager is not well.
    """
    if not reaches(version, _NVLS):
        return Nvls(False, f"NCCL {'.'.join(map(str, version or ()))} has none: it came with 2.17")
    if read_setting(settings, "NCCL_NVLS_ENABLE", 2, version) == 0:
        return Nvls(False, f"NCCL_NVLS_ENABLE={settings.get('NCCL_NVLS_ENABLE')} turns it off")
    alive = [gpu for gpu in gpus.all if not gpu.lost]
    least = 2 if reaches(version, _NVLS_FOR_TWO) else 3
    if len(alive) < least:
        return Nvls(False, f"{len(alive)} GPU{'s' * (len(alive) != 1)}: it takes {least} of one node")
    if gpus.cuda < _MULTICAST_CUDA:
        return Nvls(False, f"the driver is for CUDA {gpus.cuda[0]}.{gpus.cuda[1]}: multicast came with 12.1")
    if any(gpu.mig is True for gpu in alive):
        return Nvls(False, "MIG is on")
    capabilities = [gpu.compute for gpu in alive if not isinstance(gpu.compute, Absent)]
    if any(capability < _HOPPER for capability in capabilities):
        return Nvls(False, f"compute capability {'.'.join(map(str, min(capabilities)))}: it takes 9.0")
    switched = _switched(links, [gpu.index for gpu in alive])
    if switched is False:
        return Nvls(False, "no NVSwitch joins the GPUs")
    if switched is None or len(capabilities) < len(alive):
        return Nvls(None, "NVML does not say which GPUs these are, or where their links lead")
    return _by_fabric([gpu.fabric for gpu in alive])


def _switched(links: NvLinks | Absent, gpus: Sequence[int]) -> bool | None:
    """Return whether every GPU has an active link to an NVSwitch; None where NVML does not say."""
    if isinstance(links, Absent):
        return None
    rows = [links.gpus[index] for index in gpus if index < len(links.gpus)]
    if any(isinstance(row, Absent) for row in rows):
        return None
    active = [[link for link in row if link.state == "active"] for row in rows if not isinstance(row, Absent)]
    return bool(active) and all(any(link.remote == "switch" for link in row) for row in active)


def _by_fabric(fabrics: Sequence[GpuFabric | Absent]) -> Nvls:
    """Return NVLS by the fabric: GPUs that have not joined it have no multicast."""
    for fabric in fabrics:
        if isinstance(fabric, GpuFabric) and fabric.state in ("not-started", "in-progress"):
            return Nvls(False, f"a GPU's registration with the NVLink fabric is {fabric.state}")
        if isinstance(fabric, GpuFabric) and fabric.state == "completed" and fabric.status:
            return Nvls(False, f"a GPU's registration with the NVLink fabric failed (NVML error {fabric.status})")
    return Nvls(True, "NVSwitches, compute capability 9.0 or more, and a driver with multicast")
