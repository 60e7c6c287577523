"""How well rails carry data that does arrive: rate, latency, whole bytes, and GPUDirect against host memory."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from ncclprobe.checks import NODE
from ncclprobe.checks.rail import asked, both_ends, name, named
from ncclprobe.checks.rail.fixtures import World, only, rails_of
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.reach import Rails
from ncclprobe.localise.pairs.samples import End
from ncclprobe.localise.rails import EndView, Tried, Way, by_rail, own_failures, results, tests
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Blame, Certainty, Finding, fail, note, seen, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every
from ncclprobe.model.stats import median, median_low
from ncclprobe.model.units import certain, plural

if TYPE_CHECKING:  # imported where rails were tried: localisation is a dozen modules, and most doctors try none
    from ncclprobe.localise.pairs.suspects import Localisation, Suspect

BAD = End("n1", 1)
NO_FABRIC: Every[Fabric | Absent] = Every({})
NO_PCI: Every[Pci | Absent] = Every({})
FOUR = ("n0", "n1", "n2", "n3")
_RUINED = 0.5
"""Below this share of the usual rate a job is better off without the rail: that fails, and the rest warns."""
PORT_SHARE, PCIE_SHARE = 0.90, 0.80
"""What healthy machines reach at least: ib_write_bw 0.90 to 0.98 of a port (392 of 400 Gb/s); copies between host and
GPU 51 of the 63 GB/s of PCIe 5.0 x16, 26 of the 31.5 of 4.0 x16 (docs/how/expectations.md)."""
_TOLERANCE = 0.9
_FAR, _FAR_US = 3.0, 5.0
"""So many times the median of all rails, and so much above it: one more tier of switches costs about 1 µs. And more
than the late trips of a usual rail, one in eight."""
_BUSY = 10.0
"""So many times the usual trip in the late ones: then it is the processors that were measured."""
_DIRECT_SHARE = 0.75
"""A share of host memory's rate over the same rail; on healthy machines GPU memory is as fast or faster."""
_BUSY_INTERPRETER = 0.5
"""A share of a write's time, spent in posting and polling: above it, the interpreter was measured."""


@check(
    bad=lambda: [(rails_of(World(FOUR, carries=only(End("n1", 0), End("n1", 1), share=0.4))), NO_FABRIC, NO_PCI)],
    good=lambda: [(rails_of(World(FOUR)), NO_FABRIC, NO_PCI)],
    required=True,
    applies=asked,
    slows=True,
)
def slow(rails: Every[Rails], fabrics: Every[Fabric | Absent], buses: Every[Pci | Absent]) -> Iterator[Finding]:
    """A rail is slower than the others or than its port, or has a much higher latency.

    Right: Every rail is as fast as the others, with the same latency.
    Why: NCCL spreads each ring over all rails and waits for the last one, so the slowest rail sets the pace of the job.
    Common causes are a port that negotiated fewer lanes or a lower rate, a PCIe link at half its width, a cable with
    errors, or a shared switch port. NCCL's small operations take about as long as one trip across the network, so a
    longer path or a port in a power-saving state slows them down.
    Fix: compare rate, width and error counters of the port and its switch port with those of a healthy port. Check the
    NIC's PCIe link (ib.rate and pci.width in `ncclprobe doctor`). Move the cable to find out whether the cable or the
    port is at fault.
    """
    found = tests(rails)
    expected = _expected(found, fabrics, buses)
    from ncclprobe.localise.pairs.suspects import verdict as weigh

    judged = weigh(results(found), expected_GBps=expected * _TOLERANCE if expected else None)
    told = ((end.end, end.outcome.own) for each in found for end in each.seen if end.outcome)
    usual, ports = _usual(judged), {end: own.rate_gbps for end, own in told if own and own.rate_gbps > 0}
    for each in judged.confirmed:
        if each.ratio > 0:  # what is dead, the checks of ways say
            cause, whole = each.cause, each.cause.kind != "rail"  # of a rail one port is below those of others
            rail = [cause.rail] if cause.rail is not None else [end.rail for end in ports]
            mine = {end: rate for end, rate in ports.items() if end.node in cause.nodes and end.rail in rail}
            explained = whole and _is_slower_by_design(each.ratio, mine, ports)
            level = usual * (judged.slow_rails.get(rail[0], 1.0) if cause.rail is not None else 1.0)
            yield _slow(each, level, judged.tests, rails, note if explained else None)
    yield from _slow_rails(judged, usual, ports)
    yield from _late(found, rails)
    if judged.all_slow and expected:
        yield warn(
            "all rails",
            f"every rail is slow: the typical rate is {usual:.3g} GB/s, but at least {expected:.3g} GB/s is "
            "expected from these ports and their PCIe links",
            action="retest",
            evidence=f"{judged.tests} tests of one direction",
        )


_MOVED = {"both": "sends and receives", "out": "sends", "into": "receives"}
_WHOSE: Mapping[str, Blame] = {"node": "node", "rail": "link", "pair": "fabric"}


def _slow_rails(judged: "Localisation", usual: float, ports: Mapping[End, float]) -> Iterator[Finding]:
    """Yield the rails that are slow on all nodes.

    One whose ports are all slower by so much is of another kind by design, such as storage's.
    """
    for rail, share in judged.slow_rails.items():
        mine = {end: rate for end, rate in ports.items() if end.rail == rail}
        if not _is_slower_by_design(share, mine, ports):
            yield (fail if share < _RUINED else warn)(
                f"all nodes rail {rail}",
                f"sends and receives {100 * share:.0f} % of the usual {usual:.3g} GB/s",
                blame="fabric", action="repair", loss=round(1 - share, 4),
                evidence=f"{judged.tests} tests of one direction",
            )  # fmt: skip


def _usual(judged: "Localisation") -> float:
    return (judged.level or {}).get(False, 0.0)


def _is_slower_by_design(ratio: float, mine: Mapping[End, float], every: Mapping[End, float]) -> bool:
    """Return whether all of `mine` are slower ports, and no slower than these explain."""
    return bool(mine) and ratio >= _TOLERANCE * max(mine.values()) / max(every.values()) and ratio < 1


def _slow(
    each: "Suspect", usual: float, count: int, rails: Every[Rails], finding: Callable[..., Finding] | None
) -> Finding:
    cause = each.cause
    where = str(cause)
    if cause.kind == "rail" and cause.rail is not None:
        heading = {"both": "", "out": "out of ", "into": "into "}[cause.direction]
        where = heading + name(End(cause.nodes[0], cause.rail), rails)
    elif cause.kind == "pair" and cause.rail is not None and not cause.shared:
        where = (" -> " if cause.direction == "out" else " <-> ").join(
            name(End(node, cause.rail), rails) for node in cause.nodes
        )
    return (finding or (fail if each.ratio < _RUINED else warn))(
        where,
        f"{_MOVED[cause.direction]} {100 * each.ratio:.0f} % of the usual {usual:.3g} GB/s",
        blame=_WHOSE.get(cause.kind, "fabric"),
        action="retest" if cause.kind == "pair" else "repair",
        loss=round(1 - each.ratio, 4),
        nodes=cause.nodes if cause.kind in ("node", "rail") else (),
        confidence=Certainty(
            "high" if each.partners > 1 else "medium",
            f"{each.partners} partners, {each.retests} tests taken again, {certain(each.confidence)}",
        ),
        evidence=seen(f"{count} tests of one direction", f"slow in {each.slow} of the {each.tests} it took part in"),
    )


def _expected(found: list[Tried], fabrics: Every[Fabric | Absent], buses: Every[Pci | Absent]) -> float | None:
    """Return the least that the usual rail should reach, GB/s, by ports and their PCIe links; None if unknown.

    A device that is not a PCI function, such as soft-RoCE, has no meaningful rate. Nothing is expected either if the
    interpreter kept the rail waiting.
    """
    values = []
    for each in found:
        least = [_least(end, fabrics, buses) for end in each.seen]
        known = [one for one in least if one is not None]
        values += [min(known)] if known else []
        outcomes = [end.outcome for end in each.seen if end.outcome]
        if any(one.work_s > _BUSY_INTERPRETER * one.seconds for outcome in outcomes for one in outcome.streams):
            return None
    return median(values) if values else None


def _least(end: EndView, fabrics: Every[Fabric | Absent], buses: Every[Pci | Absent]) -> float | None:
    """Return the least that one end should reach, GB/s."""
    own = end.outcome.own if end.outcome else None
    bus = _bus(end.end.node, own.device if own else "", fabrics, buses)
    return min(PORT_SHARE * own.rate_gbps, PCIE_SHARE * bus) / 8 if own and own.rate_gbps > 0 and bus else None


def _bus(node: str, device: str, fabrics: Every[Fabric | Absent], buses: Every[Pci | Absent]) -> float | None:
    """Return what the PCIe link of a device carries, Gb/s; None: it has none, or it is not known."""
    fabric, pci = fabrics.by_node.get(node), buses.by_node.get(node)
    if not isinstance(fabric, Fabric) or not isinstance(pci, Pci):
        return None
    address = next((each.pci for each in fabric.devices if each.name == device), None)
    known = pci.devices.get(address) if isinstance(address, str) else None
    link = known.link if known else None
    return None if link is None or isinstance(link, Absent) else link.gbps


def _late(found: list[Tried], rails: Every[Rails]) -> Iterator[Finding]:
    """Yield the rails on which small messages take much longer than on the others."""
    times, late = _round_trips(found)
    if not times:
        return
    usual = median_low(times.values())  # of two rails the quicker one
    if late > _BUSY * usual:
        yield note(
            "all rails",
            f"latency is not judged, because the nodes' CPUs were busy: on one rail late trips took {late:.3g} "
            f"µs, but typical trips {usual:.3g} µs",
            action="retest",
        )
        return
    limit = max(_FAR * usual, usual + _FAR_US, late)
    for suspect in by_rail(times, [way for way, us in times.items() if us > limit]):
        slowest = max(times[way] for way in suspect.pairs)
        one_node = suspect.kind == "node"
        yield (warn if one_node else note)(
            named(suspect, rails), f"small messages take {slowest:.3g} µs, but {usual:.3g} µs on a typical rail",
            blame="link" if one_node else "fabric", action="retest",
            nodes=tuple(end.node for end in suspect.nodes) if suspect.kind != "split" else (),
            evidence=f"half the shortest round trip in each of {len(suspect.pairs)} tests",
            remedy="compare the path of this rail (hops, switches) with those of the others. Check the CPUs' power "
                "states on this node (`cpupower idle-info`) and the NIC's PCIe ASPM",
        )  # fmt: skip


def _round_trips(found: list[Tried]) -> tuple[dict[Way, float], float]:
    """Return half the shortest round trip of each way, µs, and the late trips of the usual test.

    The shortest counts: a processor that is busy makes some trips late, a longer way makes all.
    """
    times: dict[Way, float] = {}
    late = []
    for each in found:
        outcome = each.leads.outcome
        if each.straight and not each.gpu and outcome and outcome.half_round_trip_us:
            way = (each.leads.end, each.other.end)
            mine = min(outcome.half_round_trip_us)
            times[way] = times[way[::-1]] = min(mine, times.get(way, mine))
            late.append(sorted(outcome.half_round_trip_us)[-2:][0])
    return times, median(late) if late else 0.0


@check(
    bad=lambda: [(rails_of(World(wrong={BAD: 64})),)],
    good=lambda: [(rails_of(World()),)],
    required=True,
    applies=asked,
)
def data(rails: Every[Rails]) -> Iterator[Finding]:
    """Wrong bytes arrive over a rail.

    Right: All bytes arrive as they were sent.
    Why: RDMA checks packets on the wire, but not the data in the NIC, on PCIe or in memory. A corrupt gradient raises
    no error, and days later the model is lost.
    Fix: exclude the node, and measure it again with other nodes. If bytes are wrong there too, replace first the NIC,
    then the memory. Look for PCIe and ECC errors (`dmesg`, `ncclprobe doctor`).
    """
    bad: dict[Way, tuple[Tried, int]] = {}
    whole: set[Way] = set()
    for each in tests(rails):
        for reader, writer in (each.seen, each.seen[::-1]):
            for arrival in reader.outcome.arrivals if reader.outcome else ():
                way = (writer.end, reader.end)
                if arrival.wrong_bytes:
                    bad[way] = (each, arrival.wrong_bytes)
                elif arrival.arrived_bytes:
                    whole.add(way)
    if not whole and not bad:
        raise Unlearned("no received byte was verified")
    for suspect in by_rail({*whole, *bad}, bad):
        each, wrong = bad[suspect.pairs[0]]
        own = suspect.at_one_node
        yield fail(
            named(suspect, rails),
            f"{wrong} bytes of one test arrived corrupted; data was corrupted on {len(suspect.pairs)} of "
                f"{suspect.tests} paths",
            blame="node" if own else "unknown", action="repair" if own else "retest",
            nodes=tuple(dict.fromkeys(end.node for end in suspect.nodes)) if own else (),
            evidence=seen("the bytes that arrived, compared with the pattern", both_ends(each)),
        )  # fmt: skip


@applies
def with_gpus(rails: Every[Rails | Absent]) -> bool:
    """if rails were tried with the memory of GPUs."""
    rows = (row for _, each in rails.items() if isinstance(each, Rails) for row in each.rows)
    return any(row.outcome.asked.memory != "host" for row in rows)


_HALVED = World(gpus=True, carries=lambda src, dst, gpu: 0.5 if gpu and BAD in (src, dst) else 1.0)


@check(
    bad=lambda: [(rails_of(_HALVED),)],
    good=lambda: [(rails_of(World(gpus=True)),)],
    applies=with_gpus,
    slows=True,
)
def gpu(rails: Every[Rails]) -> Iterator[Finding]:
    """A rail is slower with GPU memory than with host memory, or does not work with GPU memory.

    Right: Rails are as fast with GPU memory as with host memory.
    Why: with GPUDirect the NIC reads and writes GPU memory directly. If an IOMMU, ACS or a path through the CPU is in
    between, it does so at a fraction of the rate. No setting shows this, but it slows every step of a job.
    Fix: turn ACS off on the switches between GPU and NIC, and set the IOMMU to passthrough. Use the NIC below the GPU's
    own switch (`ncclprobe topo`); until then NCCL_NET_GDR_LEVEL can turn GPUDirect off.
    """
    found = tests(rails)
    useless = own_failures(each for each in found if not each.gpu)
    for end, failures in own_failures(each for each in found if each.gpu).items():
        if end in useless:  # as rail.unusable says
            continue
        yield fail(
            name(end, rails), f"a GPU's memory cannot be used: {failures[0].text}", **NODE,
            nodes=(end.node,),
            evidence=seen(failures[0].call or failures[0].step, f"{plural(len(failures), 'test')} ended so"),
        )  # fmt: skip
    usual, direct = _rates(rails, gpu=False), _rates(rails, gpu=True)
    shares = {key: (rate / usual[key][0], each) for key, (rate, each) in direct.items() if usual.get(key, (0.0,))[0]}
    worse = {key[:2]: each for key, each in shares.items() if each[0] < _DIRECT_SHARE}
    for suspect in by_rail({key[:2] for key in shares}, worse):
        share, each = min((worse[way] for way in suspect.pairs), key=lambda one: one[0])
        what = "nothing passes with a GPU's memory" if not share else f"{100 * share:.0f} % of the rate is left"
        own = suspect.at_one_node
        yield (warn if share else fail)(
            named(suspect, rails), f"{what}, compared with host memory over the same rail",
            blame="node" if own else "unknown", action="repair", loss=round(1 - share, 4),
            nodes=tuple(end.node for end in suspect.nodes) if own else (),
            evidence=seen(both_ends(each), each.why if not share else ""),
        )  # fmt: skip


def _rates(rails: Every[Rails], *, gpu: bool) -> Mapping[tuple[End, End, int], tuple[float, Tried]]:
    """Return the rate of each way, GB/s, 0 if it is dead, by how many rails were at work."""
    found: dict[tuple[End, End, int], tuple[float, Tried]] = {}
    for each in tests(rails):
        if each.gpu is gpu and each.straight:
            for (src, dst), both, rate in each.ways():
                if not both:
                    found[src, dst, each.together] = (rate or 0.0, each)
    return found
