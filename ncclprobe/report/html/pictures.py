"""A node as an SVG: GPUs, switches, NICs and NUMA nodes, with what a finding names in colour and marked."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

from markupsafe import Markup

from ncclprobe.model.nccl_selection import NodeTopology
from ncclprobe.model.values import Struct
from ncclprobe.report.html.legible import printable
from ncclprobe.report.html.placing import Cluster, Domain, Placed, all_to_all, nvlinked, place

MOST_DEVICES = 72
"""Beyond that a picture tells less than the list."""

_TOP, _GPU, _SWITCH, _NIC, _FOOT = 8, 62, 138, 186, 272
"""Heights at which the rows begin: NVLink, GPUs, switches, NICs, and where NUMA nodes end."""
_BOX, _LONGEST_BAR = 78, 60


class Mark(Struct, frozen=True):
    """What a finding of the check `id` says of a device: `kind` is fail or warn, `part` what of it is meant, `text` the
    finding, `anchor` its place in the page.
    """

    kind: str
    part: str
    text: str
    id: str
    anchor: str


Marks = Mapping[str, tuple[Mark, ...]]

_PARTS = {"nvl": "nvlink", "pci": "pci", "ib": "port", "roce": "port"}


def part_of(check: str) -> str:
    """Return which part of a device a check speaks of: its NVLinks, its PCIe link, its port to the network, or
    itself.
    """
    return _PARTS.get(check.partition(".")[0], "device")


def picture(topology: NodeTopology, marks: Marks) -> Markup | None:
    """Return the picture, or None where no device is known or there are too many to draw."""
    number = len(topology.gpus or ()) + len(topology.nics or ())
    if not 0 < number <= MOST_DEVICES:
        return None
    domains = place(topology)
    wide = domains[-1].right
    foot = _FOOT if topology.nics else _FOOT - _NIC + _SWITCH
    top = 0 if nvlinked(topology) else _GPU - 20
    shapes = Markup("").join(_shapes(topology, domains, marks, foot))
    return Markup(
        '<svg class="machine" viewBox="-2 {} {:.0f} {}" style="--w:{:.0f}px" role="img" aria-label="{}">{}</svg>'
    ).format(top, wide + 4, foot + 6 - top, wide + 4, _spoken(topology), shapes)


def _spoken(topology: NodeTopology) -> str:
    gpus, nics = len(topology.gpus or ()), len(topology.nics or ())
    return f"{gpus} GPUs and {nics} NICs on {len(topology.numa or ())} NUMA nodes; the table next to it has the paths"


def _shapes(topology: NodeTopology, domains: tuple[Domain, ...], marks: Marks, foot: float) -> Iterator[Markup]:
    for left, right in pairwise(domains):
        yield _line(left.right, _SWITCH + 9, right.left, _SWITCH + 9, "bus")
    yield from (_numa(each, foot) for each in domains)
    spots = {each.device.name: each.x for domain in domains for c in domain.clusters for each in c.gpus}
    yield from _nvlinks(topology, spots, marks)
    for domain in domains:
        for cluster in domain.clusters:
            yield from _drawn(cluster, marks)


def _numa(domain: Domain, foot: float) -> Markup:
    name = "NUMA node not told" if domain.id is None else f"NUMA {domain.id}"
    cpus = f" · CPUs {domain.cpus}" if domain.cpus else ""
    room = int((domain.right - domain.left) / 6.6)
    words = printable(name + cpus).replace("\n", " ")
    return Markup(
        '<rect class="numa" x="{:.0f}" y="{}" width="{:.0f}" height="{}" rx="8"/>'
        '<text class="numa-name" x="{:.0f}" y="{}">{}</text>'
    ).format(
        domain.left, _GPU - 14, domain.right - domain.left, foot - _GPU + 14, domain.left + 12, foot - 9,
        words if len(words) <= room else words[: room - 1] + "…",
    )  # fmt: skip


def _nvlinks(topology: NodeTopology, spots: Mapping[str, float], marks: Marks) -> Iterator[Markup]:
    """Yield a bar for all to all, as NVSwitches give it; else an arc for each pair."""
    pairs = nvlinked(topology)
    if all_to_all(pairs):
        ends = sorted({end for pair in pairs for end in pair}, key=spots.__getitem__)
        left, right = spots[ends[0]] - 30, spots[ends[-1]] + 30
        yield _bar(left, right, _TOP, "nvswitch", "NVLink, all to all")
        for end in ends:
            yield _line(spots[end], _TOP + 18, spots[end], _GPU, "nvlink " + _worst(marks, end, "nvlink"))
        return
    for a, b in pairs:
        low, high = sorted((spots[a], spots[b]))
        kind = _worst(marks, a, "nvlink") or _worst(marks, b, "nvlink")
        lift = min(_GPU - _TOP, 14 + (high - low) / 12)
        yield Markup('<path class="nvlink {}" d="M{:.0f} {} C{:.0f} {:.0f} {:.0f} {:.0f} {:.0f} {}"/>').format(
            kind, low, _GPU, low + 10, _GPU - lift * 1.3, high - 10, _GPU - lift * 1.3, high, _GPU
        )


def _drawn(cluster: Cluster, marks: Marks) -> Iterator[Markup]:
    """Yield one switch with what hangs on it."""
    several = len(cluster.gpus) + len(cluster.nics) > 1
    for each in cluster.gpus if several else ():
        yield _line(each.x, _GPU + 46, each.x, _SWITCH, "pci " + _worst(marks, each.device.name, "pci"))
    for each in cluster.nics if several else ():
        yield _line(each.x, _SWITCH + 18, each.x, _NIC, "pci " + _worst(marks, each.device.name, "pci"))
    if several:
        word = f" ({cluster.word})" if cluster.word and cluster.right - cluster.left > 120 else ""
        name = ("PCIe switch" if cluster.switch else "host bridge") + word
        yield _bar(cluster.left + 7, cluster.right - 7, _SWITCH, "switch" if cluster.switch else "bridge", name)
    for each in cluster.nics:
        yield _port(each.x, "port " + _worst(marks, each.device.name, "port"))
    yield from (_device(each, "gpu", _GPU, 46, marks) for each in cluster.gpus)
    yield from (_device(each, "nic", _NIC, 38, marks) for each in cluster.nics)


def _device(placed: Placed, sort: str, top: int, high: int, marks: Marks) -> Markup:
    """Return a box with name and model; what is said of the device is its tooltip, and a badge shows that there is
    any.
    """
    device, said = placed.device, marks.get(placed.device.name, ())
    kind = _worst(marks, device.name)
    words = "\n".join([f"{device.name}: {device.model}", f"PCI {device.pci or 'unknown'}", *(m.text for m in said)])
    badge = Markup('<circle class="badge {}" cx="{:.0f}" cy="{}" r="8"/><text class="badge" x="{:.0f}" y="{}">!</text>')
    return Markup(
        '<g class="device {} {}"><title>{}</title><rect x="{:.0f}" y="{}" width="{}" height="{}" rx="5"/>'
        '<text class="name" x="{:.0f}" y="{}">{}</text><text class="model" x="{:.0f}" y="{}">{}</text>{}</g>'
    ).format(
        sort, kind, printable(words), placed.x - _BOX / 2, top, _BOX, high, placed.x, top + high / 2 - 2,
        _short(device.name, 11), placed.x, top + high / 2 + 13, _short(_model(device.model), 13),
        badge.format(kind, placed.x + _BOX / 2 - 2, top + 2, placed.x + _BOX / 2 - 2, top + 6) if kind else "",
    )  # fmt: skip


def _model(text: str) -> str:
    """Return what tells a model in a word or two: ``H100 80GB`` of ``NVIDIA H100 80GB HBM3``, ``MT4129`` of its long
    id.
    """
    words = [word for word in text.replace("-", " ").split() if word not in ("NVIDIA", "Tesla", "Fake")]
    return " ".join(words[:2]) if sum(map(len, words[:2])) < 12 else "".join(words[:1])


def _short(text: str, most: int) -> str:
    text = printable(text).replace("\n", " ")
    return text if len(text) <= most else text[: most - 1] + "…"


def _worst(marks: Marks, name: str, part: str = "") -> str:
    """fail, warn or nothing: the worst that is said of a device, or of one part of it."""
    kinds = {mark.kind for mark in marks.get(name, ()) if part in ("", mark.part)}
    return "fail" if "fail" in kinds else "warn" if kinds else ""


def _line(x0: float, y0: float, x1: float, y1: float, sort: str) -> Markup:
    line = Markup('<line class="{}" x1="{:.0f}" y1="{:.0f}" x2="{:.0f}" y2="{:.0f}"/>')
    return line.format(sort.strip(), x0, y0, x1, y1)


def _port(x: float, sort: str) -> Markup:
    """Return a NIC's way out to the network."""
    end = Markup('<circle class="{}" cx="{:.0f}" cy="{}" r="4"/>').format(sort.strip(), x, _NIC + 60)
    return _line(x, _NIC + 38, x, _NIC + 58, sort) + end


def _bar(left: float, right: float, top: float, sort: str, words: str) -> Markup:
    return Markup(
        '<rect class="bar {}" x="{:.0f}" y="{}" width="{:.0f}" height="18" rx="4"/>'
        '<text class="bar" x="{:.0f}" y="{}">{}</text>'
    ).format(sort, left, top, right - left, (left + right) / 2, top + 13, _short(words, _LONGEST_BAR))
