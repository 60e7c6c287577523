"""Versions: of NCCL, torch, CUDA, the driver, and of the NICs' firmware."""

from collections.abc import Callable, Iterator

from ncclprobe.checks import several
from ncclprobe.checks.env.fixtures import gpus, hcas, nccl
from ncclprobe.checks.sync import describe, named, several_with_gpus
from ncclprobe.errors import Unlearned
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.software import Software, Torch
from ncclprobe.model.findings import Finding, fail, seen, warn
from ncclprobe.model.nccl_selection import NOT_CHOSEN, Choices, NetworkChoice, NvlsChoice, Part
from ncclprobe.model.registry import check
from ncclprobe.model.snapshot import Absent, Every, vote
from ncclprobe.model.values import replace


def _network(name: str) -> NetworkChoice:
    return NetworkChoice(name, "", ("eth0",), None, "")


_SHOWN = 4  # nodes whose library is named as evidence

_NEW, _OLD = nccl(2, 29, 7), nccl(2, 27, 3)


@check(
    slows=True,
    bad=lambda: [(Every({"n0": _NEW, "n1": _NEW, "n2": _OLD}),)],
    good=lambda: [(Every({"n0": _NEW, "n1": _NEW}),)],
    required=True,
    applies=several_with_gpus,
)
def nccl_version(software: Every[Software]) -> Iterator[Finding]:
    """Nodes would load different versions of NCCL.

    Right: All nodes would load one version of NCCL.
    Why: NCCL compares the whole version of all ranks when it starts, and ends with "Mismatched NCCL version detected"
    (src/init.cc:1042); a patch release is enough. Releases that are further apart (2.23.4 and 2.28.9, played) end
    before, with "Message truncated" on the older ranks and a closed connection on the newer ones.
    Fix: run one image or environment on all nodes; look for another libnccl in LD_LIBRARY_PATH of those that differ.
    """
    said = {node: each.nccl[0] if each.nccl else None for node, each in software.items()}
    unread = [node for node, library in said.items() if library and library.version is None]
    versions = {node: library.version if library else None for node, library in said.items() if node not in unread}
    if not any(versions.values()):
        raise Unlearned("no libnccl with a known version was found on any node, in this interpreter's environment")
    ballot = vote(versions)
    if not ballot.agreed:
        outliers = ballot.outliers
        few = list(outliers or versions)[:_SHOWN]
        shown = [seen(f"libnccl of {node}", found.source if (found := said[node]) else "none") for node in few]
        message = describe(ballot, lambda version: ".".join(map(str, version)) if version else "no libnccl found")
        yield fail(named(outliers), message, blame="image", action="fix-image", nodes=outliers, evidence=shown)
    elif unread:
        raise Unlearned(f"the version of the libnccl of {named(unread)} is not known")


def _built(torch: str, cuda: str) -> Software:
    return Software({"torch": torch}, torch=Torch("/usr/lib/torch", cuda))


_TORCH = _built("2.7.0+cu128", "12.8")
_GPUS: Every[Gpus | Absent] = Every({"n0": gpus(8), "n1": gpus(8), "n2": gpus(8)})


@check(
    bad=lambda: [(Every({"n0": _TORCH, "n1": _TORCH, "n2": _built("2.6.0+cu128", "12.8")}), _GPUS)],
    good=lambda: [(Every({"n0": _TORCH, "n1": _TORCH}), _GPUS)],
    applies=several,
)
def torch_cuda(software: Every[Software], gpus: Every[Gpus | Absent]) -> Iterator[Finding]:
    """Nodes have different versions of torch, of the CUDA it was built for, or of the GPU driver.

    Right: All nodes have one version of torch, its CUDA and the GPU driver.
    Why: torch's process groups do not promise to talk to another version of themselves, and with another driver NCCL
    may choose other transports (cuMem, NVLS, DMA-BUF) on one node than on its peers.
    Fix: run one image on all nodes; finish the driver's upgrade on those that were left behind.
    """
    words: dict[str, Callable[[Software], str | Absent]] = {
        "torch": lambda each: each.packages.get("torch", "not installed"),
        "CUDA of torch": _cuda_of_torch,
    }
    for name, ask in words.items():
        yield from _unlike(name, {node: ask(each) for node, each in software.items()}, "installed distributions")
    drivers = {node: each.driver if isinstance(each, Gpus) else each for node, each in gpus.items()}
    yield from _unlike("driver", drivers, "nvmlSystemGetDriverVersion")


def _cuda_of_torch(software: Software) -> str | Absent:
    if isinstance(software.torch, Torch):
        cuda = software.torch.cuda
        return cuda if isinstance(cuda, Absent) else cuda or "built without CUDA"
    return software.torch or Absent("torch is not installed")


def _unlike(what: str, said: dict[str, str | Absent], evidence: str) -> Iterator[Finding]:
    ballot = vote({node: version for node, version in said.items() if isinstance(version, str)})
    if not ballot.agreed:
        outliers = ballot.outliers
        yield warn(what, describe(ballot), blame="image", action="fix-image", nodes=outliers, evidence=evidence)


def _flashed(version: str) -> Fabric:
    devices = hcas(2).devices
    return Fabric(tuple(replace(each, board="MT_0000000838", firmware=version) for each in devices))


_FW = _flashed("28.39.1002")


@check(
    slows=True,
    bad=lambda: [(Every({"n0": _FW, "n1": _FW, "n2": _flashed("28.36.1010")}),)],
    good=lambda: [(Every({"n0": _FW, "n1": _FW}),)],
    applies=several_with_gpus,
)
def nic_fw(fabrics: Every[Fabric]) -> Iterator[Finding]:
    """NICs of one model have different firmware on different nodes.

    Right: NICs of one model have the same firmware on all nodes.
    Why: firmware decides on congestion control, adaptive routing and which errors are retried; a node left behind by an
    upgrade is slow or drops connections in ways that no counter explains.
    Fix: bring the NICs named to the firmware of the others (mlxfwmanager, or the vendor's tool), and reboot.
    """
    boards: dict[str, dict[str, frozenset[str]]] = {}
    for node, fabric in fabrics.items():
        for board in {device.board for device in fabric.devices if isinstance(device.board, str) and device.board}:
            every = (d.firmware for d in fabric.devices if d.board == board)
            if versions := frozenset(text for text in every if isinstance(text, str) and text):
                boards.setdefault(board, {})[node] = versions
    for board, said in boards.items():
        ballot = vote(said)
        if not ballot.agreed:
            outliers = ballot.outliers
            message = describe(ballot, lambda versions: " and ".join(sorted(versions)))
            seen = "/sys/class/infiniband/*/fw_ver"
            yield warn(board, message, blame="image", action="fix-image", nodes=outliers, evidence=seen)


_PARTS = ("bootstrap", "sockets", "hcas", "hcas_left_out", "gids", "gpudirect", "p2p")
_BLANK = Choices(nccl=None, nvls=NvlsChoice(None, ""), **dict.fromkeys(_PARTS, NOT_CHOSEN))
_ON_IB = replace(_BLANK, network=Part((_network("IB"),), "every active port"))
_ON_TCP = replace(_ON_IB, network=Part((_network("Socket"),), "the loader finds no libnccl-net.so"))


@check(
    slows=True,
    bad=lambda: [(Every({"n0": _ON_IB, "n1": _ON_IB, "n2": _ON_TCP}),)],
    good=lambda: [(Every({"n0": _ON_IB, "n1": _ON_IB}),)],
    applies=several_with_gpus,
)
def transport(choices: Every[Choices]) -> Iterator[Finding]:
    """Nodes get different networks from NCCL.

    Right: All nodes get the same network from NCCL.
    Why: every rank takes the network of its own node, and two that differ cannot connect: the handle of an InfiniBand
    port means nothing to a socket, and the job fails or hangs at its first connection (nccl#2428).
    Fix: look at the choice of network of the nodes that differ (`ncclprobe doctor -v`): a plugin that the loader does
    not find, /dev/infiniband that is not given, ports that are down, a setting of this node alone.
    """
    known = {node: each.network.chosen[0].name for node, each in choices.items() if each.network.chosen}
    ballot = vote(known)
    if not ballot.agreed:
        outliers = ballot.outliers
        shown = [seen(f"network of {n}", choices.by_node[n].network.why) for n in list(outliers or known)[:_SHOWN]]
        message = describe(ballot, str)
        yield fail(named(outliers), message, blame="image", action="fix-image", nodes=outliers, evidence=shown)
        return
    unread = [node for node, each in choices.items() if node not in known and not each.network.refused]
    if unread and (known or len({choices.by_node[node].network.why for node in unread}) > 1):
        raise Unlearned(f"the network of {named(unread)} is not known: {choices.by_node[unread[0]].network.why}")
