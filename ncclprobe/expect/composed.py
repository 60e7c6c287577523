"""A machine that has no name, of its parts (``8 x L40S, 2 sockets, 4 NICs x 200 Gb/s roce``) or of a topology text.

Of parts only the GPUs must be said. The rest is what is usual of such a box, and `source` names each part that was not
said: boards of SXM GPUs are switched, those of V100 and GH200 wired, bridges are there where they are said, more than
four GPUs sit on two sockets, of AMD. A GPU that has no slot is a machine by itself (GB10), and several are nodes.

A topology text is NCCL's XML (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE) or ``nvidia-smi topo -m``. It becomes the facts that
a machine itself would have given, and these the links. NCCL's own reading of the XML holds (src/graph/topo.cc, v2.30.7:
ncclTopoAddCpu, ncclTopoAddPci, ncclTopoAddNet): a slot without a speed is Gen3, one without a width has 16 lanes, each
NUMA node with GPUs is a processor, Intel's generations go by model number.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast, get_args
from xml.etree.ElementTree import Element

from ncclprobe import bounds
from ncclprobe.errors import ParseError, UsageError
from ncclprobe.expect.recognise import Facts, nvlink_fabric, system_of
from ncclprobe.expect.system import Network, NicPath, NodeSystem, NvlinkFabric, Processor
from ncclprobe.expect.tables import gpus, machines
from ncclprobe.expect.tables.gpus import GpuProduct, products
from ncclprobe.expect.tables.machines import MachineType
from ncclprobe.expect.tuner.dumps import xml_root
from ncclprobe.facts import topo_matrix
from ncclprobe.facts.cpu import Cpus
from ncclprobe.facts.driver import GpuDirect
from ncclprobe.facts.infiniband import Fabric, Port, Rate, RdmaDevice
from ncclprobe.facts.interfaces import Interfaces
from ncclprobe.facts.nvlink import NvLink, NvLinks, Remote
from ncclprobe.facts.nvml import Gpu, Gpus, PeerAccess
from ncclprobe.facts.pci import Device, Identity, Pci, PcieLink, PciPosition, normal
from ncclprobe.layout import first_of
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.topology import from_matrix

EXAMPLE = "8 x L40S, 2 sockets, no P2P, 4 NICs x 200 Gb/s roce"
_MORE = "'NVLink bridges', 'bridges of 4', 'mesh', 'no NVLink', '8 x NDR', '2 NICs per GPU x 200', 'NICs at PXB', 'amd'"
_GPUS = re.compile(r"(\d{1,3})\s*[x\N{MULTIPLICATION SIGN}]\s*(\S.*)", re.IGNORECASE)
_SOCKETS = re.compile(r"(?:over |on )?(\d|one|two|dual|four)[ -](?:sockets?|cpus?)", re.IGNORECASE)
_PER_SOCKET = re.compile(r"(\d) (?:gpus )?per (?:socket|cpu)")
_COUNTS = {"one": 1, "two": 2, "dual": 2, "four": 4}
_NICS = re.compile(
    r"(\d{1,2}) ?(?:nics? ?)?(per gpu )?x ?(?:c(?:onnect)?x-?\d )?(\d{1,4}|[ehnx]dr)(?: ?(?:gbe|gb/s|gbps|gb|g))?"
    r"(?: ([a-z]+))?"
)
_RATES = {"edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}
"""Of InfiniBand's generations, four lanes, in Gb/s."""
_BRIDGES = re.compile(r"(?:nvlink )?bridge[ds]?(?: of ([24]))?|nvl([24])|([24])-way(?: nvlink)?(?: bridges?)?")
_BEHIND = re.compile(
    r" (?:with |on |over )?((?:nvlink )?bridge[ds]?(?: of [24])?|nvl[24]|[24]-way(?: nvlink)?(?: bridges?)?|mesh|"
    r"no nvlink|no p2p|(?:\d|one|two|dual|four)[ -](?:sockets?|cpus?))$",
    re.IGNORECASE,
)
"""Parts that are said behind the GPUs' name without a comma: ``2 x RTX 3090 NVLink bridge``."""
_PATH = re.compile(r"nics at (pix|pxb|phb|node|sys)")
_ONE_SOCKET = 4
_DGX_1, _MESH = 8, 4
"""GPUs whose boards differ: eight are wired as a DGX-1's, up to four each to each."""
_MOST_GPUS = 16


def is_composed(name: str) -> bool:
    """Whether `name` says parts, not a machine type."""
    return _GPUS.match(_count_first(name)) is not None


def _count_first(text: str) -> str:
    """``8 x L40S, …`` of ``L40S x8, …``; a name of a machine type stays as it is."""
    first, comma, rest = text.partition(",")
    words = [] if machines.named(text) or _GPUS.match(text) else first.replace("\N{MULTIPLICATION SIGN}", "x").split()
    for at, word in enumerate(words[1:], 1):
        behind = words[at + 1 :] if word.lower() == "x" else [word[1:], *words[at + 1 :]]
        if word[:1].lower() == "x" and behind and behind[0].isascii() and behind[0].isdigit():
            return f"{behind[0]} x {' '.join([*words[:at], *behind[1:]])}{comma}{rest}"
    return text


def composed(text: str) -> NodeSystem:
    """The machine that `text` describes. Raises UsageError for a part or a GPU that is not understood."""
    first, *parts = (part.strip() for part in _count_first(text).replace("(", ",").replace(")", "").split(","))
    found = _GPUS.fullmatch(first)
    if found is None or not 0 < int(found[1]) <= _MOST_GPUS:
        raise UsageError(f"{text[:80]!r}: begin with 1 to {_MOST_GPUS} GPUs, as in '{EXAMPLE}'")
    name, behind, count = *_parted(found[2]), int(found[1])
    parts = [*behind, *parts]
    _refuse_machines(name, count)
    product = product_called(name)
    system = with_links(_box(product, count), product)
    for part in parts:
        system = _with(system, part, product)
    guessed = ", ".join(_assumed(parts, product, count))
    return replace(system, source="its parts as they were said" + (f"; assumed: {guessed}" if guessed else ""))


def _parted(name: str) -> tuple[str, list[str]]:
    """The GPU's name and the parts behind it; ``H200 NVL4`` is H200 NVL with bridges of four."""
    parts: list[str] = []
    while joined := _BEHIND.search(name):
        name, parts = name[: joined.start()], [joined[1], *parts]
        if joined[1].lower().startswith("nvl") and _called(f"{name} NVL"):
            name += " NVL"
    return name, parts


def _refuse_machines(name: str, count: int) -> None:
    """Several machines are nodes, be they called by their name or by a GPU that is one. Raises UsageError."""
    machine = machines.named(name)
    if machine is None and count > 1 and (found := _called(name)) and found[0].alone:
        machine = next((each for each in machines.table().values() if each.gpu == found[0].name), None)
    if machine:
        nodes = f" --nodes {count}" if count > 1 else ""
        raise UsageError(f"--machine: {name[:40]!r} is a whole machine: give --machine {machine.name!r}{nodes}")


def _box(product: GpuProduct, count: int) -> NodeSystem:
    return NodeSystem(
        name=f"{count} x {product.name.removeprefix('NVIDIA ')}",
        gpu=product.name,
        compute_capability=product.compute_capability,
        gpus=count,
        pcie_GBps=product.c2c_GBps or product.nccl_pcie_GBps or gpus.nccl_pcie_GBps(3, 16),
        p2p=product.p2p is not False or product.c2c_GBps is not None,
        processor="arm" if product.c2c_GBps or product.alone else "amd",
        sockets=count if _own_processor(product) else 1 if count <= _ONE_SOCKET else 2,
        source="",
    )


def _own_processor(product: GpuProduct) -> bool:
    """Whether each GPU has a processor of its own, as GH200's have; two GB200 share one."""
    return product.c2c_GBps is not None and product.wiring == "system"


def with_links(system: NodeSystem, product: GpuProduct) -> NodeSystem:
    """Add the NVLinks of a board; bridges are there only where they are said."""
    if not product.nvlinks or system.gpus < 2:
        return system
    if product.wiring in ("board", "rack"):
        return _laid(system, product, "nvswitch", system.gpus, nvls=product.nvls)
    if product.wiring == "system" and system.gpus == _DGX_1:
        return _laid(system, product, "cube-mesh", system.gpus)
    if product.wiring == "system" and system.gpus <= _MESH:
        return _laid(system, product, "mesh", system.gpus)
    return system


def _laid(
    system: NodeSystem, product: GpuProduct, fabric: NvlinkFabric, together: int, *, nvls: bool = False
) -> NodeSystem:
    return replace(
        system,
        nvlinks=product.nvlinks,
        nvlink_GBps=product.nccl_nvlink_GBps,
        fabric=fabric,
        domain_gpus=together,
        nvls=nvls,
    )


def _with(system: NodeSystem, part: str, product: GpuProduct) -> NodeSystem:
    """`system` with one more part. Raises UsageError."""
    words = part.lower()
    if words in ("p2p", "no p2p"):
        return replace(system, p2p=words == "p2p")
    if words in ("gdr", "no gdr"):
        return replace(system, gdr=words == "gdr")
    if bridges := _BRIDGES.fullmatch(words):
        return _bridged(system, product, int(bridges[1] or bridges[2] or bridges[3] or 2))
    if words == "mesh":
        return _meshed(system, product)
    if words == "no nvlink":
        return replace(system, nvlinks=0, nvlink_GBps=0.0, fabric="none", domain_gpus=0, nvls=False)
    if path := _PATH.fullmatch(words):
        return replace(system, nic_path=cast(NicPath, path[1].upper()))
    if words in get_args(Processor):
        return replace(system, processor=cast(Processor, words))
    if sockets := _SOCKETS.fullmatch(words):
        return replace(system, sockets=max(1, _COUNTS.get(sockets[1]) or int(sockets[1])))
    if (few := _PER_SOCKET.fullmatch(words)) and int(few[1]) and system.gpus % int(few[1]) == 0:
        return replace(system, sockets=system.gpus // int(few[1]))
    if (nics := _NICS.fullmatch(words)) and (wired := _with_nics(system, nics)):
        return wired
    raise UsageError(f"--machine: {part[:60]!r} is no part of a box; as in '{EXAMPLE}', or {_MORE}")


def _with_nics(system: NodeSystem, nics: re.Match[str]) -> NodeSystem | None:
    """`system` with NICs, of InfiniBand where nothing is said but a rate, of RoCE where that is one of Ethernet."""
    count = int(nics[1]) * (system.gpus if nics[2] else 1)
    gbps = _RATES.get(nics[3]) or (int(nics[3]) if nics[3].isdigit() else 0)
    network = {None: "roce" if "gbe" in nics[0] else "ib", "infiniband": "ib"}.get(nics[4], nics[4])
    if network not in get_args(Network) or not count or not gbps:
        return None
    rdma = network not in ("sockets", "tcpx", "tcpxo")
    return replace(system, nics=count, nic_gbps=float(gbps), network=cast(Network, network), gdr=rdma)


def _meshed(system: NodeSystem, product: GpuProduct) -> NodeSystem:
    """`system` with links from each GPU to each, as on boards of up to four. Raises UsageError."""
    if not product.nvlinks or product.wiring == "bridge" or not 1 < system.gpus <= _MESH:
        raise UsageError(f"--machine: {system.gpus} x {product.name} are no mesh: 'NVLink bridges' may be meant")
    return _laid(system, product, "mesh", system.gpus)


def _bridged(system: NodeSystem, product: GpuProduct, together: int) -> NodeSystem:
    """`system` with a bridge over every two GPUs, or over every four. Raises UsageError."""
    if not product.nvlinks or product.wiring != "bridge" or product.nvlinks % (together - 1):
        raise UsageError(f"--machine: no NVLink bridge fits {together} GPUs of {product.name}")
    if system.gpus % together:
        raise UsageError(f"--machine: {system.gpus} GPUs do not divide into bridges of {together}")
    return _laid(system, product, "pairs" if together == 2 else "mesh", together)


def _assumed(parts: Sequence[str], product: GpuProduct, count: int) -> Iterator[str]:
    """What was not said, and is taken to be usual."""
    said = " ".join(parts).lower()
    if not any(_SOCKETS.fullmatch(part.lower()) or _PER_SOCKET.fullmatch(part.lower()) for part in parts):
        yield "a processor of each GPU" if _own_processor(product) else _usual_sockets(product, count)
    if count > _ONE_SOCKET and not set(said.split()) & set(get_args(Processor)) and not product.c2c_GBps:
        yield "processors of AMD"
    if count > 1 and product.nvlinks and not any(word in said for word in ("nvl", "bridge", "-way", "mesh")):
        yield from _assumed_links(product, count)
    if nics := next((found for part in parts if (found := _NICS.fullmatch(part.lower()))), None):
        if not nics[4] and nics[3] not in _RATES:
            yield "RoCE" if "gbe" in nics[0] else "InfiniBand"
        if "nics at" not in said and not product.alone:
            yield "NICs below the GPUs' PCIe switches"
    if "p2p" not in said and not product.c2c_GBps and count > 1:
        known = {True: "P2P", False: "no P2P, as the stock driver has it", None: "P2P"}
        yield known[product.p2p]


def _usual_sockets(product: GpuProduct, count: int) -> str:
    """Between GPUs they decide: 22 GB/s over two EPYC, 40 to 46 below the switches of one (voipmonitor/rtx6kpro)."""
    if count <= _ONE_SOCKET:
        return "one socket"
    decide = product.wiring in (None, "bridge") and product.p2p is not False
    return "two sockets ('1 socket' is faster)" if decide else "two sockets"


def _assumed_links(product: GpuProduct, count: int) -> Iterator[str]:
    if product.wiring == "system" and (count <= _MESH or count == _DGX_1):
        yield "NVLinks as on a DGX-1" if count == _DGX_1 else "NVLinks from each GPU to each"
    elif product.wiring == "board" and count <= _MESH:
        yield "NVLinks to switches"
    elif product.wiring not in ("board", "rack"):
        yield "no NVLink bridges" if product.wiring == "bridge" else "no NVLinks"


def product_called(text: str, flag: str = "--machine") -> GpuProduct:
    """The GPU that is meant, by the words of its name or of an alias. Raises UsageError with those that may be."""
    found = _called(text)
    if not found:
        _refuse_others(text, flag)
        raise UsageError(f"{flag}: no GPU is called {text[:40]!r}; give the name that nvidia-smi -L prints")
    if len({_links(gpu) for gpu in found}) > 1:
        raise UsageError(f"{flag}: {text[:40]!r} may be {' or '.join(sorted(gpu.name for gpu in found)[:6])}")
    return found[0]


_OTHERS = re.compile(r"amd|instinct|radeon|mi\d{2,3}[a-z]?|gaudi\d?")


def _refuse_others(name: str, flag: str = "--machine") -> None:
    """Raises UsageError for a GPU that NCCL does not run on."""
    if _OTHERS.fullmatch(next(iter(_words(name)), "")):
        raise UsageError(f"{flag}: {name[:40]!r} is not of NVIDIA: NCCL alone is judged here, RCCL and others are not")


def same_gpu(said: str, gpu: str) -> bool:
    """Whether what calls itself `said` may be a `gpu`: of the same model (``h100``) and, if known, the same links."""
    models = {next((word for word in _words(name) if not word.isalpha()), "") for name in (said, gpu)}
    if "" not in models and len(models) > 1:
        return False
    own, known = gpus.table().get(gpu), _called(said)
    return own is None or not known or any(_links(each) == _links(own) for each in known)


def capability_of(said: str) -> int | None:
    """The compute capability of a GPU that calls itself `said`; None where it is not known."""
    return next((gpu.compute_capability for gpu in _called(said)), None)


def _called(text: str) -> Sequence[GpuProduct]:
    wanted = _words(text)
    found = [gpu for gpu in gpus.products() if _words(gpu.name, "") == _words(text, "") and not _several(gpu)]
    if wanted and not found:
        found = [gpu for gpu in gpus.products() if any(_has(name, wanted) for name in (gpu.name, *gpu.aliases))]
    return found


def machine_called(name: str) -> MachineType:
    """The machine type of this name, or the one whose only GPU has it. Raises UsageError, for GPUs with what to say."""
    found = [] if machines.named(name) else _called(name)
    alone, parts = _parted(name)
    if not found and parts and _called(alone) and not machines.named(name):
        box = ", ".join([f"8 x {product_called(alone).name}", *parts])
        raise UsageError(f"--machine: {name[:40]!r} does not say how many GPUs: as in {box!r}")
    if not found:
        _refuse_others(name)
        if "," in name and (whole := machines.named(name.partition(",")[0].strip())):
            nodes = re.search(r"\b(\d{1,4}) (?:trays?|nodes?|hosts?)\b", name.partition(",")[2])
            raise UsageError(
                f"--machine: {name[:40]!r} says more than a machine type: give --machine {whole.name!r} "
                f"--nodes {nodes[1] if nodes else 'N'}"
            )
        return machines.find(name)
    product = product_called(name)
    has = [each for each in machines.table().values() if each.gpu == product.name]
    if product.alone and len(has) == 1:
        return has[0]
    raise UsageError(
        f"--machine: {name[:40]!r} is a GPU: say how many, as in '8 x {product.name}'"
        + (f"; it is in {first_of([each.name for each in has], 6)}" if has else "")
    )


def _several(gpu: GpuProduct) -> bool:
    """Whether NVML gives this name to several products, with NVLink and without: NVIDIA H100."""
    return not gpu.wiring and any(each.name.startswith(f"{gpu.name} ") and each.nvlinks for each in gpus.products())


def _links(gpu: GpuProduct) -> tuple[object, ...]:
    """All that a machine takes from its GPUs: where products differ in memory alone, either is meant."""
    slot = gpu.nccl_pcie_GBps, gpu.c2c_GBps, gpu.p2p
    return gpu.compute_capability, gpu.nvlinks, gpu.nccl_nvlink_GBps, gpu.wiring, gpu.nvls, *slot


def _has(name: str, wanted: Sequence[str]) -> bool:
    words = _words(name)
    return all(each in words or (each.isalpha() and any(w.startswith(each) for w in words)) for each in wanted)


def _words(name: str, between: str = " ") -> Sequence[str]:
    """The words of a name without what every name has: rtx, 4090 of NVIDIA GeForce RTX 4090."""
    return re.sub(r"[^a-z0-9]+", between, re.sub(r"nvidia|geforce|tesla", "", name.lower())).split()


_UNSAID = Absent("the file does not say")
_GENERATIONS = {
    "2.5": 1,
    "5": 2,
    "5.0": 2,
    "8": 3,
    "8.0": 3,
    "16": 4,
    "16.0": 4,
    "32": 5,
    "32.0": 5,
    "64": 6,
    "64.0": 6,
}
_INTEL: tuple[tuple[int, Processor], ...] = ((0xCF, "emr"), (0x8F, "spr"), (0x55, "skl"), (0, "bdw"))
_INTERFACE = re.compile(r"eth|en|bond|ib\d|lo")
"""How the kernel's interfaces begin, which are the devices of NCCL's sockets."""
_DEEPEST = 32
_LIMITS = {"sm": (30, 199), "link_width": (0, 32), "count": (1, 64), "bw": (1, 10**7), "speed": (-1, 10**7)}
"""Of numbers: compute capability, lanes, links, MB/s of one C2C link, Mb/s of a NIC (-1: the driver does not know)."""
CAPABILITY = "GPUs of compute capability"
ASSUMED = "assumed: slots and P2P as the GPU has them"


def system_in(text: str, path: str, gpu: str | None, nic_gbps: float | None, *, network: bool) -> NodeSystem:
    """Return the machine in `text`. `gpu`: which product it has, `nic_gbps`: how fast a NIC is, where it does not say.

    Raises UsageError naming `path` and what is wrong, or what a job over the `network` needs and nothing says.
    """
    given = product_called(gpu, "--gpu") if gpu else None
    xml = _Xml(text, path) if text.lstrip().startswith("<") else None
    known = xml.facts() if xml else _of_matrix(text, path)
    product = given or _product(known, xml.pci_ids if xml else set(), path)
    known[Gpus] = Gpus(tuple(_named(each, product, path, by_name=xml is None) for each in known[Gpus].all), "", (0, 0))
    facts = _facts(known)
    system = system_of(facts, path)
    if isinstance(system, Absent):
        raise UsageError(f"{path}: {system.why}")
    homes = {device.numa_node for device in known[Pci].of("gpu")}
    major, minor = divmod(system.compute_capability, 10)
    name = product.name if product else f"{CAPABILITY} {major}.{minor}"
    system = replace(system, gpu=name, sockets=len(homes))
    system = xml.refined(system, product) if xml else _supposed(system, known[Fabric], path, network=network)
    if product and product.wiring == "board" and (system.fabric, system.nvlinks) == ("pairs", product.nvlinks):
        system = with_links(system, product)  # two of a board's GPUs: all of their links go to its switches
    if nic_gbps and not system.nic_gbps:
        system = replace(system, nic_gbps=nic_gbps)
    if network and not (system.nics and system.nic_gbps):
        lacks = "does not say how fast the NICs are: give --nic-rate GBPS" if system.nics else "shows no NIC"
        raise UsageError(f"{path}: {lacks}")
    return system


def _named(gpu: Gpu, product: GpuProduct | None, path: str, *, by_name: bool) -> Gpu:
    """`gpu` with what only its product tells: all of it where a matrix is read, the capability where no <gpu> is."""
    if product is None:
        return gpu
    capability = divmod(product.compute_capability, 10)
    if isinstance(gpu.compute, tuple) and gpu.compute != capability:
        said, own = (".".join(map(str, each)) for each in (gpu.compute, capability))
        raise UsageError(f"{path}: has GPUs of compute capability {said}; {product.name} has {own}")
    return replace(gpu, name=product.name if by_name else "", compute=capability)


def _facts(known: Mapping[type, Any]) -> Facts:
    kinds = Gpus, NvLinks, Pci, Fabric, Interfaces, Cpus, PeerAccess, GpuDirect
    return Facts(*(known.get(kind, _UNSAID) for kind in kinds))


def _of_matrix(text: str, path: str) -> dict[type, Any]:
    """The facts of the first matrix. Raises UsageError for none, and for one that hides the NVLinks."""
    try:
        matrix = topo_matrix.parse(text)[0]
    except ParseError as error:
        raise UsageError(f"{path}: neither NCCL's XML nor the output of `nvidia-smi topo -m`: {error}") from None
    known = from_matrix.facts_of(matrix)
    lacking = next((fact for kind in (NvLinks, Pci) if isinstance(fact := known[kind], Absent)), None)
    if lacking or matrix.incomplete:
        raise UsageError(f"{path}: {lacking.why if lacking else matrix.incomplete[0]}")
    return known


def _supposed(system: NodeSystem, fabric: Fabric, path: str, *, network: bool) -> NodeSystem:
    """`system` of a matrix with what is usual and no matrix tells. What the NICs' names tell is not supposed."""
    amd = system.processor == "unknown"
    told = all(from_matrix.told_by_name(device.name) for device in fabric.devices)
    words = [*(["processors of AMD"] if amd else []), *(["GPUDirect RDMA"] if network else [])]
    words += ["InfiniBand"] if network and not told else []
    processor: Processor = "amd" if amd else system.processor
    return replace(system, nic_gbps=0.0, processor=processor, source=f"{path}; {', '.join([ASSUMED, *words])}")


def _product(known: Mapping[type, Any], pci_ids: set[str], path: str) -> GpuProduct | None:
    """The GPU that the file means; None where several may be meant that do not differ in what counts.

    What counts and no topology tells: whether GPUs that NVLink does not join reach each other over PCIe. Raises
    UsageError asking for the product.
    """
    computes = {gpu.compute for gpu in known[Gpus].all}
    may_be = [gpu for gpu in products() if divmod(gpu.compute_capability, 10) in computes]
    may_be = [gpu for gpu in may_be if pci_ids & set(gpu.pci_ids)] or may_be
    if not may_be:
        raise UsageError(f"{path}: does not say which GPUs these are: give --gpu NAME, as nvidia-smi -L prints it")
    joined = nvlink_fabric(_facts(known))[2] >= len(known[Gpus].all)
    if not joined and len(known[Gpus].all) > 1 and len({gpu.p2p is not False for gpu in may_be}) > 1:
        names = " or ".join(gpu.name for gpu in may_be[:4])
        raise UsageError(f"{path}: the GPUs may be {names} or others, of which not all have P2P: give --gpu NAME")
    return may_be[0] if len(may_be) == 1 else None


class _Xml:
    """The elements of one host: of several that share an NVLink fabric the first, which speaks for all."""

    def __init__(self, text: str, path: str) -> None:
        self.path = path
        root = xml_root(text, path, bounds.TOPO_BYTES, "write it again with NCCL_TOPO_DUMP_FILE")
        cpus = [each for each in root if each.tag == "cpu"]
        if root.tag != "system" or not cpus:
            raise UsageError(
                f"{path}: its XML is <{root.tag[:40]}>, no <system> with <cpu> as NCCL_TOPO_DUMP_FILE writes"
            )
        self.cpus = [cpu for cpu in cpus if cpu.get("host_hash") == cpus[0].get("host_hash")]
        self.hosts = len({cpu.get("host_hash") for cpu in cpus})
        self.slots: list[tuple[Element, Device]] = []
        for node, cpu in enumerate(self.cpus):
            for number, child in enumerate(cpu):
                self.slots += self._below(child, (), self._number(cpu, "numaid", node), number)
        self.gpus = [(slot, device) for slot, device in self.slots if device.identity.kind == "gpu"]
        if not 0 < len(self.gpus) <= bounds.TOPO_DEVICES:
            raise UsageError(f"{path}: shows {len(self.gpus)} GPUs; a machine has 1 to {bounds.TOPO_DEVICES}")
        self.pci_ids = {_pci_id(slot) for slot, _ in self.gpus}

    def _number(self, element: Element, name: str, usual: int) -> int:
        text = element.get(name) or str(usual)
        number = int(text, 0) if re.fullmatch(r"-?(0|[1-9]\d{0,8}|0x[0-9a-fA-F]{1,8})", text) else None
        least, most = _LIMITS.get(name, (-1, 1 << 32))
        if number is None or not (least <= number <= most or number == usual):
            raise UsageError(f'{self.path}: {name}="{text[:40]}" of <{element.tag[:20]}> is none that NCCL writes')
        return number

    def _below(self, slot: Element, above: tuple[str, ...], node: int, number: int) -> Iterator[tuple[Element, Device]]:
        """Every GPU and NIC under a slot of NUMA node `node`; a <nic> of no slot hangs at the processor itself."""
        if slot.tag not in ("pci", "nic") or len(above) > 2 * _DEEPEST:
            return
        busid = slot.get("busid", "") if slot.tag == "pci" else f"fffe:{node & 255:02x}:{number & 31:02x}.0"
        address = self._address("busid", busid)
        below = [child for child in slot if child.tag == "pci"]
        root = PciPosition(f"root {address}" if not above else above[0], above or (f"root {address}",))
        identity = self._identity(slot)
        if identity.kind in ("gpu", "nic") and not below:
            yield slot, Device(address, identity, root, PcieLink(None, None, None, None), node)
        for child in below:
            yield from self._below(child, (*root.bridges, address, f"{address} down"), node, number)

    def _address(self, name: str, text: str) -> str:
        try:
            return normal(text)
        except ParseError:
            raise UsageError(f'{self.path}: {name}="{text[:40]}" is no PCI address') from None

    def _identity(self, slot: Element) -> Identity:
        if slot.tag == "nic":
            return Identity(0x020000, 0, 0)
        ids = [self._number(slot, name, 0) for name in ("class", "vendor", "device")]
        return Identity(ids[0], 0x10DE if ids[0] >> 16 == 0x03 else ids[1], ids[2])

    def facts(self) -> dict[type, Any]:
        """What a machine of these elements would say."""
        links = NvLinks(tuple(tuple(self._links(slot)) for slot, _ in self.gpus))
        nets = [(net, device) for slot, device in self.slots for net in self._nets(slot)]
        nics = [self._nic(number, *each) for number, each in enumerate(nets)]
        return {
            Gpus: Gpus(tuple(self._gpu(n, slot, device) for n, (slot, device) in enumerate(self.gpus)), "", (0, 0)),
            NvLinks: links,
            Pci: Pci({device.address: device for _, device in self.slots}),
            Fabric: Fabric(tuple(nics)),
        }

    def _gpu(self, index: int, slot: Element, device: Device) -> Gpu:
        gpu = slot.find("gpu")
        sm = self._number(gpu, "sm", 0) if gpu is not None else 0
        generation = _GENERATIONS.get((slot.get("link_speed") or "").split(" ")[0], 3)
        return Gpu(
            index,
            pci=device.address,
            compute=divmod(sm, 10) if sm else _UNSAID,
            pcie_max_generation=generation,
            pcie_width=self._number(slot, "link_width", 16) or 16,
        )

    def _links(self, slot: Element) -> Iterator[NvLink]:
        for link in slot.iterfind("gpu/nvlink"):
            kind = link.get("tclass", "")
            remote: Remote = "gpu" if kind.startswith("0x03") else "ibm-npu" if kind == "0x068001" else "switch"
            end = self._address("target", link.get("target", "")) if remote == "gpu" else ""
            if end and end == self._address("busid", slot.get("busid", "")):  # Azure's ncv4-topo.xml: leads nowhere
                continue
            for _ in range(self._number(link, "count", 1)):
                yield NvLink(0, "active", remote=remote, remote_pci=end)

    def _nets(self, slot: Element) -> list[Element]:
        """The NICs of a slot: those that NCCL found there, else one that no <net> speaks of."""
        nic = slot if slot.tag == "nic" else slot.find("nic")
        nets = [] if nic is None else nic.findall("net")
        bare = slot.tag == "pci" and self._identity(slot).kind == "nic" and not any(True for _ in self._all_nets())
        return nets or ([slot] if bare else [])

    def _all_nets(self) -> Iterator[Element]:
        return (net for cpu in self.cpus for net in cpu.iter("net"))

    def _nic(self, number: int, net: Element, device: Device) -> RdmaDevice:
        speed = self._number(net, "speed", 0)
        rate = Rate(speed / 1000, 1) if speed > 0 else Rate(10.0, 1)
        layer = "InfiniBand" if device.identity.class_code >> 8 == 0x0207 else "Ethernet"
        name = f"{net.get('name', '')}#{number}"
        return RdmaDevice(name, (Port(name, 1, "ACTIVE", "LinkUp", rate, layer),), device.address)

    def refined(self, system: NodeSystem, product: GpuProduct | None) -> NodeSystem:
        """`system` with what NCCL itself reads from the XML, and the boards' NVLinks where it has no <gpu>."""
        nets = list(self._all_nets())
        if product and all(slot.find("gpu") is None for slot, _ in self.gpus):
            system = with_links(system, product)
        c2c = next((link for slot, _ in self.gpus for link in slot.iterfind("gpu/c2c")), None)
        if c2c is not None and system.nic_path not in ("PIX", "PXB"):  # NCCL's P2C
            speed = self._number(c2c, "bw", 0) * self._number(c2c, "count", 1) / 1000
            system = replace(system, nic_path="PXB", pcie_GBps=max(system.pcie_GBps, speed))
        sockets = any(_INTERFACE.match(net.get("name", "")) for net in nets)
        network: Network | None = "sockets" if sockets else system.network
        return replace(
            system,
            p2p=product is None or product.p2p is not False or c2c is not None,
            processor=self._processor(),
            domain_gpus=system.domain_gpus * self.hosts,
            nic_gbps=system.nic_gbps if nets else 0.0,
            network=network,
            gdr=not sockets and bool(system.nics) and all(net.get("gdr", "1") == "1" for net in nets),
            source=self.path,
        )

    def _processor(self) -> Processor:
        cpu = self.cpus[0]
        arch, vendor = cpu.get("arch", ""), cpu.get("vendor", "").strip()
        if arch != "x86_64":
            return "arm" if arch == "arm64" else "power9" if arch == "ppc64" else "unknown"
        family, model = self._number(cpu, "familyid", 0), self._number(cpu, "modelid", 0)
        if vendor == "GenuineIntel":
            return next((name for least, name in _INTEL if family == 6 and model >= least), "bdw")
        if vendor in ("CentaurHauls", "Shanghai"):
            return "yongfeng" if (family, model) == (7, 0x5B) else "zhaoxin"
        return "amd" if vendor == "AuthenticAMD" else "unknown"


def _pci_id(slot: Element) -> str:
    return slot.get("device", "").removeprefix("0x").upper()
