"""An unnamed machine described by its parts: ``8 x L40S, 2 sockets, 4 NICs x 200 Gb/s roce``.

Only the GPUs are required. Everything else defaults to what is usual for such a server, and `source` names each
default: boards of SXM GPUs are switched, those of V100 and GH200 wired, bridges are present if they are named, more
than four GPUs use two AMD sockets. A GPU without a slot is a machine by itself (GB10), so several are several nodes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast, get_args

from ncclprobe.expect.system import MOST_NICS, Network, NicPath, NodeSystem, NvlinkFabric, Processor
from ncclprobe.expect.tables import gpus, machines
from ncclprobe.expect.tables.gpus import GpuProduct
from ncclprobe.expect.tables.machines import MachineType
from ncclprobe.model.errors import UsageError
from ncclprobe.model.layout import first_of
from ncclprobe.model.values import replace

EXAMPLE = "8 x L40S, 2 sockets, no P2P, 4 NICs x 200 Gb/s roce"
_MORE = (
    "'NVLink bridges', 'bridges of 4', 'mesh', 'no NVLink', 'PCIe switches', 'CX8', '8 x NDR', '2 NICs per GPU x 200', "
    "'8 rails x 400', 'NICs at PXB', 'no GDR', 'amd', 'Turin', 'Sapphire Rapids'"
)
_GPUS = re.compile(r"(\d{1,3})\s*[x\N{MULTIPLICATION SIGN}]\s*(\S.*)", re.IGNORECASE)
_SOCKETS = re.compile(r"(?:over |on )?(\d|one|two|dual|four)[ -](?:sockets?|cpus?)", re.IGNORECASE)
_PER_SOCKET = re.compile(r"(\d) (?:gpus )?per (?:socket|cpu)")
_COUNTS = {"one": 1, "two": 2, "dual": 2, "four": 4}
_NICS = re.compile(
    r"(\d{1,2}) ?(?:(?:nics?|rails?) ?)?(per gpu )?x ?(?:c(?:onnect)?x-?\d )?(\d{1,4}|[ehnx]dr)"
    r"(?: ?(?:gbe|gb/s|gbps|gb|g))?(?: ([a-z]+))?"
)
_BYTES = re.compile(r"GB(?![eE])")
"""A rate in bytes, as typed: GB/s is eight times Gb/s, but GbE, also GBE, is Ethernet."""
_RATES = {"edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}
"""Rates of InfiniBand's generations with four lanes, in Gb/s."""
_BRIDGES = re.compile(r"(?:nvlink )?bridge[ds]?(?: of ([24]))?|nvl([24])|([24])-way(?: nvlink)?(?: bridges?)?")
_SWITCH = r"(?:\d |two |four )?(?:(?:cx|connectx)-?8s?|(?:pcie ?[345]? |plx )?switch(?:es)?)"
_SWITCHES = re.compile(rf"(?:behind |below |under )?{_SWITCH}")
_BEHIND = re.compile(
    r" (?:with |on |over )?((?:nvlink )?bridge[ds]?(?: of [24])?|nvl[24]|[24]-way(?: nvlink)?(?: bridges?)?|mesh|"
    rf"no nvlink|no p2p|(?:behind|below|under) {_SWITCH}|(?:\d|one|two|dual|four)[ -](?:sockets?|cpus?))$",
    re.IGNORECASE,
)
"""Parts that follow the GPUs' name without a comma: ``2 x RTX 3090 NVLink bridge``."""
_OWN_SWITCH = "x-?8"
"""NICs that are also PCIe switches (CX8): their GPUs' outgoing traffic uses them, not the link between sockets."""
_CALLED: Mapping[str, Processor] = {
    **dict.fromkeys(("rome", "milan", "genoa", "bergamo", "turin", "epyc", "threadripper"), "amd"),
    **dict.fromkeys(("skylake", "cascade lake", "ice lake"), "skl"),
    **dict.fromkeys(("sapphire rapids", "granite rapids"), "spr"),
    "broadwell": "bdw",
    "emerald rapids": "emr",
    "grace": "arm",
}
"""Common names of processors; Intel's follow NCCL's model numbers, and Ice Lake counts as Skylake."""
_PATH = re.compile(r"nics at (pix|pxb|phb|node|sys)")
_ONE_SOCKET = 4
_DGX_1, _MESH = 8, 4
"""Boards differ by number of GPUs: eight are wired as in a DGX-1, up to four each to each."""
_MOST_GPUS, _MOST_TEXT = 16, 400


_ON_XEON = ("NVIDIA H200 NVL", "NVIDIA RTX PRO 6000 Blackwell Server Edition")
"""GPUs of NVIDIA's reference servers with two Xeons of the fifth or sixth generation, across which H200 NVL reach
50 GB/s (https://kubernetes.recipes/recipes/ai/h200-nvl4-topology-bandwidth-tiers-kubernetes/)."""


def is_composed(name: str) -> bool:
    """Return whether `name` lists parts rather than naming a machine type."""
    return _GPUS.match(_count_first(name)) is not None


def _count_first(text: str) -> str:
    """Rewrite ``L40S x8, …`` as ``8 x L40S, …``; leave a machine type's name alone."""
    first, comma, rest = text.partition(",")
    words = [] if machines.named(text) or _GPUS.match(text) else first.replace("\N{MULTIPLICATION SIGN}", "x").split()
    for at, word in enumerate(words[1:], 1):
        behind = words[at + 1 :] if word.lower() == "x" else [word[1:], *words[at + 1 :]]
        if word[:1].lower() == "x" and behind and behind[0].isascii() and behind[0].isdigit():
            return f"{behind[0]} x {' '.join([*words[:at], *behind[1:]])}{comma}{rest}"
    return text


def composed(text: str) -> NodeSystem:
    """Parse a description into a machine; parts may come in any order.

    Raises UsageError for an unknown part or GPU, and for parts that contradict each other.
    """
    _refuse_long(text)
    first, *parts = (part.strip() for part in _count_first(text).replace("(", ",").replace(")", "").split(","))
    found = _GPUS.fullmatch(first)
    if found is None or not 0 < int(found[1]) <= _MOST_GPUS:
        raise UsageError(f"{text[:80]!r}: begin with 1 to {_MOST_GPUS} GPUs, as in '{EXAMPLE}'")
    name, behind, count = *_split_parts(found[2]), int(found[1])
    parts = [*behind, *parts]
    _refuse_machines(name, count)
    product = product_called(name)
    system = with_links(_box(product, count), product)
    said: dict[str, str] = {}
    for part in sorted(parts, key=lambda part: _kind(part) != "NICs"):  # with them comes what 'no GDR' takes away
        changed = _add_part(system, part, product)
        before = said.setdefault(_kind(part), part)
        if before != part and changed != system:
            raise UsageError(f"--machine: {before[:40]!r} and {part[:40]!r}: give one of the two")
        system = changed
    if _has_switches(parts):  # over two sockets as fast: 40 to 50 GB/s with eight RTX PRO 6000 and CX8
        system = replace(system, sockets=1)
    if "processor" not in said and system.sockets > 1 and product.name in _ON_XEON:
        system = replace(system, processor="emr")
    guessed = ", ".join(_assumed(parts, product, system))
    return replace(system, source="the parts that were given" + (f"; assumed: {guessed}" if guessed else ""))


def _kind(part: str) -> str:
    """Return a part's kind; each kind may be given once. An unknown part is its own kind."""
    words = part.lower()
    if words in get_args(Processor) or words in _CALLED:
        return "processor"
    return next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(words)), words)


_KINDS = {
    "P2P": re.compile("(no )?p2p"),
    "GPUDirect": re.compile("(no )?gdr"),
    "NVLink": re.compile(rf"{_BRIDGES.pattern}|mesh|no nvlink"),
    "NICs at": _PATH,
    "sockets": re.compile(rf"{_SOCKETS.pattern}|{_PER_SOCKET.pattern}"),
    "NICs": _NICS,
}


def _refuse_long(text: str) -> None:
    if len(text) > _MOST_TEXT:
        raise UsageError(
            f"--machine: {text[:40]!r}… is too long: describe a machine in at most {_MOST_TEXT} characters"
        )


def _split_parts(name: str) -> tuple[str, list[str]]:
    """Split a GPU's name from the parts after it; ``H200 NVL4`` is H200 NVL with bridges of four."""
    parts: list[str] = []
    while joined := _BEHIND.search(name):
        name, parts = name[: joined.start()], [joined[1], *parts]
        if joined[1].lower().startswith("nvl") and _called(f"{name} NVL"):
            name += " NVL"
    return name, parts


def _refuse_machines(name: str, count: int) -> None:
    """Raise UsageError for several machines, named as such or by a GPU that is a whole machine: those are nodes."""
    machine = machines.named(name)
    if machine is None and count > 1 and (found := _called(name)) and found[0].alone:
        machine = next((each for each in machines.table().values() if each.gpu == found[0].name), None)
    if machine:
        nodes = f" --nodes {count}" if count > 1 else ""
        raise UsageError(f"--machine: {name[:40]!r} is a complete machine; give --machine {machine.name!r}{nodes}")


def _box(product: GpuProduct, count: int) -> NodeSystem:
    return NodeSystem(
        name=f"{count} x {product.name.removeprefix('NVIDIA ')}",
        gpu=product.name,
        compute_capability=product.compute_capability,
        gpus=count,
        pcie_GBps=product.c2c_GBps or product.nccl_pcie_GBps or gpus.nccl_pcie_GBps(3, 16),
        p2p=product.p2p is not False or product.c2c_GBps is not None,
        processor="arm" if product.c2c_GBps or product.alone else "amd",
        sockets=count if _has_own_processor(product) else 1 if count <= _ONE_SOCKET else 2,
        source="",
    )


def _has_own_processor(product: GpuProduct) -> bool:
    """Return whether each GPU has its own processor, as in GH200; two GPUs of GB200 share one."""
    return product.c2c_GBps is not None and product.wiring == "system"


def with_links(system: NodeSystem, product: GpuProduct) -> NodeSystem:
    """Add the NVLinks of a board; bridges are added only if they are given."""
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


def _add_part(system: NodeSystem, part: str, product: GpuProduct) -> NodeSystem:
    """Add one part to `system`. Raises UsageError."""
    words = part.lower()
    if words in ("p2p", "no p2p"):
        return replace(system, p2p=words == "p2p")
    if words in ("gdr", "no gdr"):
        return replace(system, gdr=words == "gdr")
    if bridges := _BRIDGES.fullmatch(words):
        return _add_bridges(system, product, int(bridges[1] or bridges[2] or bridges[3] or 2))
    if words == "mesh":
        return _add_mesh(system, product)
    if words == "no nvlink":
        return replace(system, nvlinks=0, nvlink_GBps=0.0, fabric="none", domain_gpus=0, nvls=False)
    if path := _PATH.fullmatch(words):
        return replace(system, nic_path=cast(NicPath, path[1].upper()))
    if words in get_args(Processor) or words in _CALLED:
        return replace(system, processor=_CALLED.get(words) or cast(Processor, words))
    if words == "intel":
        raise UsageError("--machine: 'intel' is ambiguous; write 'Ice Lake', 'Sapphire Rapids' or 'Emerald Rapids'")
    if _SWITCHES.fullmatch(words):
        return system  # of all parts together: _by_switches
    if (sockets := _SOCKETS.fullmatch(words)) and (number := _COUNTS.get(sockets[1]) or int(sockets[1])):
        return replace(system, sockets=number)
    if (few := _PER_SOCKET.fullmatch(words)) and int(few[1]) and system.gpus % int(few[1]) == 0:
        return replace(system, sockets=system.gpus // int(few[1]))
    if (nics := _NICS.fullmatch(words)) and _BYTES.search(part):
        raise UsageError(f"--machine: {part[:60]!r}: write the rate of NICs in bits, as in '4 NICs x 200 Gb/s'")
    if nics and (wired := _add_nics(system, nics)):
        return wired
    raise UsageError(f"--machine: {part[:60]!r} is an unknown part; write it as in '{EXAMPLE}', or {_MORE}")


def _has_switches(parts: Sequence[str]) -> bool:
    switches = [part for part in map(str.lower, parts) if _SWITCHES.fullmatch(part)]
    return any(re.search(_OWN_SWITCH, part) for part in switches) or (bool(switches) and not _say_sockets(parts))


def _say_sockets(parts: Sequence[str]) -> bool:
    return any(_SOCKETS.fullmatch(part) or _PER_SOCKET.fullmatch(part) for part in map(str.lower, parts))


def _add_nics(system: NodeSystem, nics: re.Match[str]) -> NodeSystem | None:
    """Add NICs: InfiniBand if only a rate is given, RoCE if the rate is Ethernet's. None if it is not a valid NIC.

    Raises UsageError for more than a node has.
    """
    count = int(nics[1]) * (system.gpus if nics[2] else 1)
    gbps = _RATES.get(nics[3]) or (int(nics[3]) if nics[3].isdigit() else 0)
    network = {None: "roce" if "gbe" in nics[0] else "ib", "infiniband": "ib"}.get(nics[4], nics[4])
    if network not in get_args(Network) or not count or not gbps:
        return None
    if count > MOST_NICS:
        raise UsageError(f"--machine: {nics[0][:60]!r} are {count} NICs: a node has 1 to {MOST_NICS}")
    rdma = network not in ("sockets", "tcpx", "tcpxo")
    return replace(system, nics=count, nic_gbps=float(gbps), network=cast(Network, network), gdr=rdma)


def _add_mesh(system: NodeSystem, product: GpuProduct) -> NodeSystem:
    """Add links from each GPU to every other, as on boards of up to four. Raises UsageError."""
    if not product.nvlinks or product.wiring == "bridge" or not 1 < system.gpus <= _MESH:
        raise UsageError(
            f"--machine: {system.gpus} x {product.name} do not form a mesh; did you mean 'NVLink bridges'?"
        )
    return _laid(system, product, "mesh", system.gpus)


def _add_bridges(system: NodeSystem, product: GpuProduct, together: int) -> NodeSystem:
    """Add a bridge over every two GPUs, or over every four. Raises UsageError."""
    if not product.nvlinks or product.wiring != "bridge" or product.nvlinks % (together - 1):
        raise UsageError(f"--machine: no NVLink bridge fits {together} GPUs of {product.name}")
    if system.gpus % together:
        raise UsageError(f"--machine: {system.gpus} GPUs do not divide into bridges of {together}")
    return _laid(system, product, "pairs" if together == 2 else "mesh", together)


def _assumed(parts: Sequence[str], product: GpuProduct, system: NodeSystem) -> Iterator[str]:
    """Yield the parts that were not given and are assumed to be usual."""
    said, count = " ".join(parts).lower(), system.gpus
    if _has_switches(parts):
        yield "GPUs that reach each other below switches, not between sockets"
    elif not _say_sockets(parts):
        yield "a processor of each GPU" if _has_own_processor(product) else _usual_sockets(product, count)
    if (
        count > _ONE_SOCKET
        and not any(word in said for word in (*get_args(Processor), *_CALLED))
        and not product.c2c_GBps
    ):
        yield "Emerald Rapids" if system.processor == "emr" else "AMD CPUs"
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
    """Describe the assumed sockets. They decide between GPUs: 22 GB/s over two EPYC, 40 to 46 below the switches of one
    (voipmonitor/rtx6kpro).
    """
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
    """Find the GPU by the words of its name or of an alias. Raises UsageError with the candidates."""
    found = _find_gpus(text)
    if not found:
        _refuse_others(text, flag)
        raise UsageError(f"{flag}: unknown GPU {text[:40]!r}; give its name as nvidia-smi -L prints it")
    if len({_links(gpu) for gpu in found}) > 1:
        raise UsageError(f"{flag}: {text[:40]!r} may be {' or '.join(sorted(gpu.name for gpu in found)[:6])}")
    return found[0]


_MOBILE = frozenset(("laptop", "mobile", "notebook", "max", "maxq"))
_OTHERS = re.compile(r"amd|instinct|radeon|mi\d{2,3}[a-z]?|gaudi\d?|intel|arc|max|ponte")


def _refuse_others(name: str, flag: str = "--machine") -> None:
    """Raise UsageError for a GPU that NCCL does not support."""
    if _OTHERS.fullmatch(next(iter(_words(name)), "")):
        raise UsageError(f"{flag}: {name[:40]!r} is not an NVIDIA GPU; only NCCL is judged, not RCCL or others")


def same_gpu(said: str, gpu: str) -> bool:
    """Return whether a product called `said` may be a `gpu`: the same model (``h100``) and, if known, the
    same links.
    """
    models = {next((word for word in _words(name) if not word.isalpha()), "") for name in (said, gpu)}
    if "" not in models and len(models) > 1:
        return False
    own, known = gpus.table().get(gpu), _find_gpus(said)
    return own is None or not known or any(_links(each) == _links(own) for each in known)


def capability_of(said: str) -> int | None:
    """Return the compute capability of a GPU called `said`; None if unknown."""
    return next((gpu.compute_capability for gpu in _find_gpus(said)), None)


def _called(text: str) -> Sequence[GpuProduct]:
    wanted = _words(text)
    found = [gpu for gpu in gpus.products() if _words(gpu.name, "") == _words(text, "") and not _is_ambiguous(gpu)]
    if wanted and not found:
        found = [gpu for gpu in gpus.products() if any(_has(name, wanted) for name in (gpu.name, *gpu.aliases))]
    return found


def _find_gpus(text: str) -> Sequence[GpuProduct]:
    """Find the GPUs of this name, or of the longest part of it that names a known model."""
    tried = [_called(text)]
    words = _words(text)
    while not _are_alike(tried[-1]) and (words := _drop_variant(words)):
        tried.append(_called(" ".join(words)))
    return next((found for found in tried if _are_alike(found)), next(filter(None, tried), ()))


def _are_alike(found: Sequence[GpuProduct]) -> bool:
    """Return whether all GPUs found have the same links."""
    return len({_links(gpu) for gpu in found}) == 1


def _drop_variant(words: Sequence[str]) -> Sequence[str]:
    """Drop the last word of a name if it is a variant: 3e of H20-3e, LC of A100 80GB PCIe LC; otherwise return empty.

    The model number stays. A mobile GPU is not a variant of the card of the same name.
    """
    model = next((at for at, word in enumerate(words) if not word.isalpha()), len(words))
    return words[:-1] if model < len(words) - 1 and not _MOBILE & set(words) else ()


def machine_called(name: str) -> MachineType:
    """Find the machine type by name, or the one whose only GPU has this name. Raises UsageError with a
    hint for GPUs.
    """
    _refuse_long(name)
    found = [] if machines.named(name) else _called(name)
    alone, parts = _split_parts(name)
    if not found and parts and _called(alone) and not machines.named(name):
        box = ", ".join([f"8 x {product_called(alone).name}", *parts])
        raise UsageError(f"--machine: {name[:40]!r} has no number of GPUs; write it as in {box!r}")
    if not found:
        _refuse_others(name)
        if "," in name and (whole := machines.named(name.partition(",")[0].strip())):
            nodes = re.search(r"\b(\d{1,4}) (?:trays?|nodes?|hosts?)\b", name.partition(",")[2])
            raise UsageError(
                f"--machine: {name[:40]!r} contains more than a machine type; give --machine {whole.name!r} "
                f"--nodes {nodes[1] if nodes else 'N'}"
            )
        return machines.find(name)
    product = product_called(name)
    has = [each for each in machines.table().values() if each.gpu == product.name]
    if product.alone and len(has) == 1:
        return has[0]
    raise UsageError(
        f"--machine: {name[:40]!r} is a GPU; add the number of GPUs, as in '8 x {product.name}'"
        + (f"; it is in {first_of([each.name for each in has], 6)}" if has else "")
    )


def _is_ambiguous(gpu: GpuProduct) -> bool:
    """Return whether NVML uses this name for several products, with and without NVLink: NVIDIA H100."""
    return not gpu.wiring and any(each.name.startswith(f"{gpu.name} ") and each.nvlinks for each in gpus.products())


def _links(gpu: GpuProduct) -> tuple[object, ...]:
    """Return all properties that a machine takes from its GPUs: products that differ only in memory are equivalent."""
    slot = gpu.nccl_pcie_GBps, gpu.c2c_GBps, gpu.p2p
    return gpu.compute_capability, gpu.nvlinks, gpu.nccl_nvlink_GBps, gpu.wiring, gpu.nvls, *slot


def _has(name: str, wanted: Sequence[str]) -> bool:
    words = _words(name)
    return all(each in words or (each.isalpha() and any(w.startswith(each) for w in words)) for each in wanted)


def _words(name: str, between: str = " ") -> Sequence[str]:
    """Split a name, or a line of nvidia-smi -L, into its distinctive words: rtx, 4090 for GeForce RTX 4090."""
    bare = re.sub(r"^gpu \d{1,3}: |\(uuid: [\w-]{1,60}\)", "", name.strip().lower())
    return re.sub(r"[^a-z0-9]+", between, re.sub(r"nvidia|geforce|tesla", "", bare)).split()
