"""All nodes: who is in which state, the kinds of node that differ, and each kind as a picture.

In a picture GPUs are the upper row and NICs the lower, between them the PCIe switch that they share (paths PIX and PXB)
or else the host bridge, around all the NUMA node, and what a finding names in colour and marked. Switches are told from
paths: no report lists them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from markupsafe import Markup

from ncclprobe.model.findings import Status
from ncclprobe.model.layout import shorten
from ncclprobe.model.nccl_selection import DeviceRow, NodeTopology
from ncclprobe.model.report import Report
from ncclprobe.model.values import Struct, grouped
from ncclprobe.report.digest import node_states
from ncclprobe.report.html.findings import Card
from ncclprobe.report.html.legible import folded, printable
from ncclprobe.report.html.tables import Row, device

COLUMN = 92
_GAP = 14
_PAD = 14
_LEAST = 190
"""Width of a NUMA node that holds its words."""

_SWITCHED = ("PIX", "PXB")
Paths = Mapping[str, Mapping[str, str | None]]


class _Placed(Struct, frozen=True):
    """A device with the middle of its column."""

    device: DeviceRow
    x: float


class _Cluster(Struct, frozen=True):
    """Devices that hang on one switch, from `left` to `right`; `word` is the nearest path among them."""

    gpus: tuple[_Placed, ...]
    nics: tuple[_Placed, ...]
    left: float
    right: float
    switch: bool
    word: str


class _Domain(Struct, frozen=True):
    """A NUMA node; `id` None: the devices' place is not known."""

    id: int | None
    cpus: str
    clusters: tuple[_Cluster, ...]
    left: float
    right: float


def place(topology: NodeTopology) -> tuple[_Domain, ...]:
    """Return the NUMA nodes that have devices, from left to right."""
    gpus, nics, paths = topology.gpus or (), topology.nics or (), topology.paths or {}
    by_numa = grouped((None if each.numa is None or each.numa < 0 else each.numa, each) for each in (*gpus, *nics))
    cpus = {row.id: row.cpus for row in topology.numa or ()}
    left, domains = 0.0, []
    for numa in sorted(by_numa, key=lambda each: (each is None, each or 0)):
        domain = _domain(numa, cpus.get(numa, "") if numa is not None else "", by_numa[numa], gpus, paths, left)
        domains.append(domain)
        left = domain.right + _GAP
    return tuple(domains)


def _domain(
    numa: int | None,
    cpus: str,
    devices: Sequence[DeviceRow],
    gpus: Sequence[DeviceRow],
    paths: Paths,
    left: float,
) -> _Domain:
    names = {each.name for each in gpus}
    x, clusters = left + _PAD, []
    for members, switch in _clusters(devices, paths):
        cluster = _cluster(members, names, switch, paths, x)
        clusters.append(cluster)
        x = cluster.right + _GAP
    return _Domain(numa, cpus, tuple(clusters), left, max(x - _GAP + _PAD, left + _LEAST))


def _clusters(devices: Sequence[DeviceRow], paths: Paths) -> list[tuple[list[DeviceRow], bool]]:
    """Return devices that share a switch, then all others of the NUMA node together."""
    groups: list[list[DeviceRow]] = []
    for each in devices:
        joined = [group for group in groups if any(_path(paths, each.name, o.name) in _SWITCHED for o in group)]
        groups = [group for group in groups if group not in joined]
        groups.append([*(device for group in joined for device in group), each])
    switched = [group for group in groups if len(group) > 1]
    alone = [device for group in groups if len(group) == 1 for device in group]
    order = {each.name: n for n, each in enumerate(devices)}
    switched.sort(key=lambda group: min(order[each.name] for each in group))
    return [(group, True) for group in switched] + ([(alone, False)] if alone else [])


def _cluster(members: Iterable[DeviceRow], gpu_names: set[str], switch: bool, paths: Paths, left: float) -> _Cluster:
    gpus = [each for each in members if each.name in gpu_names]
    nics = [each for each in members if each.name not in gpu_names]
    wide = max(len(gpus), len(nics), 1) * COLUMN
    words = [_path(paths, gpu.name, other.name) for gpu in gpus for other in (*nics, *gpus) if other is not gpu]
    known = [word for word in words if word and word != "NVL"]
    return _Cluster(
        _spread(gpus, left, wide), _spread(nics, left, wide), left, left + wide, switch, min(known, default="")
    )


def _spread(devices: Sequence[DeviceRow], left: float, wide: float) -> tuple[_Placed, ...]:
    """Return `devices` evenly over `wide`."""
    step = wide / max(1, len(devices))
    return tuple(_Placed(each, left + step * (n + 0.5)) for n, each in enumerate(devices))


def _path(paths: Paths, one: str, other: str) -> str | None:
    return paths.get(one, {}).get(other) or paths.get(other, {}).get(one)


def nvlinked(topology: NodeTopology) -> list[tuple[str, str]]:
    """Return pairs of GPUs that NVLinks join."""
    names = [each.name for each in topology.gpus or ()]
    paths = topology.paths or {}
    return [(a, b) for n, a in enumerate(names) for b in names[n + 1 :] if _path(paths, a, b) == "NVL"]


def all_to_all(pairs: Sequence[tuple[str, str]]) -> bool:
    """Return whether `pairs` join each of at least three GPUs with each other, as NVSwitches do."""
    ends = {end for pair in pairs for end in pair}
    return len(ends) > 2 and len(pairs) == len(ends) * (len(ends) - 1) // 2


MOST_DEVICES = 72
"""Beyond that a picture tells less than the list."""

_TOP, _GPU, _SWITCH, _NIC, _FOOT = 8, 62, 138, 186, 272
"""Heights at which the rows begin: NVLink, GPUs, switches, NICs, and where NUMA nodes end."""
_BOX, _LONGEST_BAR = 78, 60


class _Mark(Struct, frozen=True):
    """What a finding of the check `id` says of a device: `kind` is fail or warn, `part` what of it is meant, `text` the
    finding, `anchor` its place in the page.
    """

    kind: str
    part: str
    text: str
    id: str
    anchor: str


Marks = Mapping[str, tuple[_Mark, ...]]

_PARTS = {"nvl": "nvlink", "pci": "pci", "ib": "port", "roce": "port"}


def part_of(check: str) -> str:
    """Return which part of a device a check speaks of: its NVLinks, PCIe link, port to the network, or itself."""
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


def _shapes(topology: NodeTopology, domains: tuple[_Domain, ...], marks: Marks, foot: float) -> Iterator[Markup]:
    for left, right in pairwise(domains):
        yield _line(left.right, _SWITCH + 9, right.left, _SWITCH + 9, "bus")
    yield from (_numa(each, foot) for each in domains)
    spots = {each.device.name: each.x for domain in domains for c in domain.clusters for each in c.gpus}
    yield from _nvlinks(topology, spots, marks)
    for domain in domains:
        for cluster in domain.clusters:
            yield from _drawn(cluster, marks)


def _numa(domain: _Domain, foot: float) -> Markup:
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


def _drawn(cluster: _Cluster, marks: Marks) -> Iterator[Markup]:
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


def _device(placed: _Placed, sort: str, top: int, high: int, marks: Marks) -> Markup:
    """Return a box with name and model; what is said of the device is its tooltip, and a badge shows that."""
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
    """Return a model in a word or two: ``H100 80GB`` of ``NVIDIA H100 80GB HBM3``, ``MT4129`` of its long id."""
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


MOST_TILES = 4096
NAMED_TILES = 64
"""Up to that many nodes have their name in their tile."""
MOST_KINDS = 4
MOST_GROUPS = 40
_LONGEST = 160
Anchors = Mapping[tuple[str, str, str, str], str]
ORDER = ("fail", "missing", "unknown", "warn", "pass", "skip")
_SIGN = {"fail": "×", "missing": "–", "unknown": "?", "warn": "!"}


class _Tile(Struct, frozen=True):
    """One node in the picture of the fleet; `sign` says the state to those who see no colours."""

    name: str
    state: str
    sign: str


class _Kind(Struct, frozen=True):
    """Nodes that look the same: same devices, same paths, same marks."""

    nodes: str
    number: int
    topology: NodeTopology
    drawing: Markup | None
    said: tuple[tuple[str, _Mark], ...]

    @property
    def others(self) -> list[str]:
        """Return names of GPUs and NICs: the columns of the table of paths."""
        return [each.name for each in (*(self.topology.gpus or ()), *(self.topology.nics or ()))]


def tiles(report: Report) -> tuple[list[_Tile], int]:
    """Return the nodes in the report's order, and how many are not shown. Where not all fit: the loudest first."""
    states = list(node_states(report).items())
    if len(states) > MOST_TILES:
        states.sort(key=lambda each: ORDER.index(each[1]))
    return [_Tile(name, state, _SIGN.get(state, "")) for name, state in states[:MOST_TILES]], max(
        0, len(states) - MOST_TILES
    )


class _Group(Struct, frozen=True):
    """Nodes in one state for the same reasons: `why` has an anchor and words for each."""

    state: str
    nodes: str
    number: int
    why: tuple[tuple[str, str], ...]


def groups(report: Report, cards: Sequence[Card]) -> tuple[list[_Group], int]:
    """Return which nodes are in which state and why, the loudest first, and of these in the order of their
    findings; and how many nodes are left out.

    Nodes of a state without a finding of their own come together.
    """
    ailing = grouped((name, card) for card in cards for name in card.names)
    found = grouped(((state, tuple(ailing.get(name, ()))), name) for name, state in node_states(report).items())
    order = {card.anchor: number for number, card in enumerate(cards)}
    ranked = sorted(
        found.items(),
        key=lambda each: (
            ORDER.index(each[0][0]),
            min((order[card.anchor] for card in each[0][1]), default=len(order)),
            -len(each[1]),
        ),
    )
    blind = _blind(report)
    shown = [_group(state, why, names, blind) for (state, why), names in ranked[:MOST_GROUPS]]
    return shown, sum(len(names) for _, names in ranked[MOST_GROUPS:])


def _blind(report: Report) -> dict[str, tuple[str, ...]]:
    """Return the ids of the required checks that could not look, by node."""
    blind = [each for each in report.checks if each.required and each.status is Status.UNKNOWN and each.node]
    return {name: tuple(ids) for name, ids in grouped((each.node or "", each.id) for each in blind).items()}


def _sentence(card: Card) -> str:
    """Return what a finding says itself; where a card has several, what their check is about."""
    if card.alone is None:
        return card.title
    return shorten(f"{card.alone.subject}: {card.alone.message}", _LONGEST)


def _group(state: str, cards: Sequence[Card], names: Sequence[str], blind: Mapping[str, tuple[str, ...]]) -> _Group:
    why = [(card.anchor, _sentence(card)) for card in cards]
    unseen = dict.fromkeys(each for name in names for each in blind.get(name, ()))
    why += (
        [("blind", f"not looked at: {', '.join(list(unseen)[:4])}{' …' if len(unseen) > 4 else ''}")] if unseen else []
    )
    why += [("blind", "did not report to the run")] if state == "missing" else []
    return _Group(state, folded(names, 160 if state == "pass" else 400), len(names), tuple(why))


def kinds(report: Report, found: Sequence[Row], anchors: Anchors) -> tuple[list[_Kind], int, int]:
    """Return the kinds of node, what ails first; how many kinds are not shown, and how many nodes these are."""
    marks = _marks(report, found, anchors)
    groups = grouped(
        ((repr(topology), tuple(sorted(marks.get(name, {}).items()))), name)
        for name, topology in report.topology.items()
    )
    ranked = sorted(groups.items(), key=lambda each: (not each[0][1], -len(each[1])))
    chosen = ranked[:MOST_KINDS]
    healthy = next((each for each in ranked[MOST_KINDS:] if not each[0][1]), None)
    if healthy and MOST_KINDS:  # of those without a fault always one, to compare with
        chosen = [*chosen[:-1], healthy]
    drawn = [_kind(report, names, dict(key[1])) for key, names in chosen]
    return drawn, len(ranked) - len(drawn), len(report.topology) - sum(each.number for each in drawn)


def _kind(report: Report, names: Sequence[str], marks: Marks) -> _Kind:
    topology = report.topology[names[0]]
    said = tuple((name, mark) for name, each in marks.items() for mark in each)
    return _Kind(folded(names, 80), len(names), topology, picture(topology, marks), said)


def _marks(report: Report, found: Sequence[Row], anchors: Anchors) -> dict[str, dict[str, tuple[_Mark, ...]]]:
    """By node and device, what failures and warnings say of a device that the node has."""
    devices = {name: _names(topology) for name, topology in report.topology.items()}
    marks: dict[str, dict[str, tuple[_Mark, ...]]] = defaultdict(dict)
    for row in found:
        if row.kind not in ("fail", "warn"):
            continue
        words = f"{row.id}: {row.subject} {row.message}"
        mark = _Mark(row.kind, part_of(row.id), words, row.id, anchors.get(row.key, "checks"))
        for node in row.nodes:
            for name in set(device(row.subject)) & devices.get(node, frozenset()):
                marks[node][name] = (*marks[node].get(name, ()), mark)
    return marks


def _names(topology: NodeTopology) -> frozenset[str]:
    return frozenset(each.name for each in (*(topology.gpus or ()), *(topology.nics or ())))
