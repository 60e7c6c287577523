"""The pages of ``ncclprobe expect``: a table with a curve, the same as JSON, the machine types, the beliefs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from ncclprobe.expect.context import ExpectationContext
from ncclprobe.expect.system import NodeSystem
from ncclprobe.expect.table import Line, TableRequest
from ncclprobe.expect.tables.faq import Belief
from ncclprobe.expect.tables.links import LinkKind
from ncclprobe.expect.tables.machine_types import MachineType
from ncclprobe.model.values import asdict
from ncclprobe.units import size

_BAR = 24
_ABOVE = (
    "above {wire:.0f} GB/s, what the links carry one way, is right here: bus bandwidth counts a ring's bytes, and "
    "{how} moves fewer. To judge the links themselves, run once more with NCCL_ALGO=Ring and expect {ring:.4g} GB/s"
)


def as_text(asked: TableRequest, here: ExpectationContext, found: Sequence[Line]) -> str:
    """The table of each operation, and the reasons below it."""
    return "\n".join(_text(asked, here, found))


def _text(asked: TableRequest, here: ExpectationContext, found: Sequence[Line]) -> Iterator[str]:
    system, shape = asked.system, asked.shape
    version = ".".join(map(str, asked.version))
    yield f"{system.name}: {_ranks(asked)}, NCCL {version}"
    yield here.why
    yield f"links: {links(asked)}"
    yield f"source: {system.source}"
    if asked.settings:
        yield f"settings: {asked.settings}"
    if asked.change or asked.changed_version:
        yield f"what if: {_change(asked)}"
    for op in asked.ops:
        rows = [line for line in found if line.op == op]
        yield ""
        if not rows:
            yield f"{op}: nothing is known of it here, so nothing is expected"
            continue
        yield from _table(rows, shape.ranks)
        if asked.change.algorithm and all(line.changed_GBps is None for line in rows):
            yield f"  with NCCL_ALGO={asked.change.algorithm} the call fails: NCCL has no such {op} here"
        yield from _reasons(rows, asked)
    if shape.nodes > 1 and not found:
        yield "what NICs these nodes have is not known"


def _ranks(asked: TableRequest) -> str:
    shape = asked.shape
    per_node = ",".join(map(str, shape.gpus[:8])) + (",…" if shape.nodes > 8 else "")
    same = len(set(shape.gpus)) == 1
    each = f"{shape.nodes} x {shape.gpus[0]}" if same else f"{shape.nodes} nodes with {per_node}"
    return f"{each} {asked.system.gpu}"


def _change(asked: TableRequest) -> str:
    version = f"NCCL {'.'.join(map(str, asked.changed_version))}" if asked.changed_version else ""
    return ", ".join(filter(None, (str(asked.change), version)))


def links(asked: TableRequest) -> str:
    """The links of a machine in a few words."""
    system = asked.system
    parts = [_inside(system)]
    parts += ["NVLS"] if system.nvls else []
    if system.nics:
        gdr = ", GPUDirect" if system.gdr else ""
        parts.append(f"{system.nics} NICs x {system.nic_gbps:g} Gb/s ({system.network or 'unknown network'}{gdr})")
    return ", ".join(parts)


def _inside(system: NodeSystem) -> str:
    if system.nvlinks:
        return f"{system.nvlinks} NVLinks x {system.nvlink_GBps:g} GB/s per GPU ({system.fabric})"
    return f"slots of {system.pcie_GBps:g} GB/s as NCCL counts" + ("" if system.p2p else ", no P2P")


def _table(rows: Sequence[Line], ranks: int) -> Iterator[str]:
    faulty = any(line.changed_GBps is not None for line in rows)
    extra = f" {'then':>8} {'cost':>6}" if faulty else ""
    yield f"{rows[0].op:<14} {'time us':>9} {'GB/s':>8} {'lowest':>8} {'decides':<12} {'basis':<9}{extra}"
    top = max(line.expectation.value for line in rows)
    for line in rows:
        yield _row(line, top, ranks, faulty)


def _row(line: Line, top: float, ranks: int, faulty: bool) -> str:
    value = line.expectation
    decides = line.prediction.bottleneck if line.prediction else "TCP"
    bar = "#" * max(1, round(_BAR * value.value / top))
    time_us = line.time_us(ranks)
    time = f"{time_us:9.4g}" if time_us < 10_000 else f"{time_us:9.0f}"
    low = f"{value.threshold:8.4g}" if value.worst != "unjudged" else f"{'-':>8}"
    numbers = f"{time} {value.value:8.4g} {low}"
    cells = f"{size(line.nbytes):>14} {numbers} {decides:<12} {value.basis:<9}"
    if not faulty:
        return f"{cells} {bar}"
    then, cost = line.changed_GBps, line.cost
    fault = f" {then:8.4g} {cost:6.0%}" if then is not None and cost is not None else f" {'?':>8} {'?':>6}"
    return f"{cells}{fault} {bar}"


def _reasons(rows: Sequence[Line], asked: TableRequest) -> Iterator[str]:
    """Each reason once, with the sizes that it is for."""
    reasons: dict[tuple[str, str, str], list[Line]] = {}
    for line in rows:
        reasons.setdefault((line.expectation.why, line.expectation.source, line.expectation.confidence), []).append(
            line
        )
    last = list(reasons.items())[-1:]
    published = [item for item in reasons.items() if item[1][0].expectation.basis == "published"]
    for (why, source, confidence), of in dict(published + last).items():
        yield f"  {_span(of)}: {why}"
        yield f"    source: {source} (confidence {confidence})"
    for of in _by_worst(rows):
        yield f"  {_span(of)}: {_VERDICTS[of[-1].expectation.worst]}{of[-1].expectation.known}"
    yield from _above(rows, asked)


_VERDICTS = {"fail": "fails below the lowest; ", "warn": "warns at most; ", "unjudged": ""}


def _by_worst(rows: Sequence[Line]) -> Iterator[list[Line]]:
    """Sizes that follow each other with the same worst verdict."""
    for _, group in groupby(rows, key=lambda line: line.expectation.worst):
        yield list(group)


def _span(of: Sequence[Line]) -> str:
    return size(of[0].nbytes) + (f" to {size(of[-1].nbytes)}" if len(of) > 1 else "")


def _above(rows: Sequence[Line], asked: TableRequest) -> Iterator[str]:
    from ncclprobe.expect.predict import predict

    high = [
        line.prediction
        for line in rows
        if line.prediction and line.prediction.above_the_wire and line.expectation.value > line.prediction.wire_GBps
    ]
    if not high:
        return
    ring = predict(asked.system, asked.shape, rows[0].op, rows[-1].nbytes, asked.version, "Ring")
    if ring:
        how = "a tree of two nodes" if high[-1].place == "network" else high[-1].algorithm
        yield "  " + _ABOVE.format(wire=high[-1].wire_GBps, how=how, ring=ring.busbw_GBps)


def as_json(asked: TableRequest, here: ExpectationContext, found: Sequence[Line]) -> dict[str, Any]:
    """Everything of the table, with real types."""
    return {
        "machine": asked.machine.name if asked.machine else None,
        "why": here.why,
        "system": asdict(asked.system),
        "gpus_per_node": list(asked.shape.gpus),
        "nodes": asked.shape.nodes,
        "ranks": asked.shape.ranks,
        "nccl": ".".join(map(str, asked.version)),
        "what_if": _change(asked) or None,
        "settings": str(asked.settings) or None,
        "rows": [_line(line) for line in found],
    }


def _line(line: Line) -> Mapping[str, Any]:
    prediction = asdict(line.prediction) if line.prediction else None
    return {
        "op": line.op,
        "nbytes": line.nbytes,
        "expectation": asdict(line.expectation),
        "decides": line.prediction.bottleneck if line.prediction else "TCP",
        "model": prediction and {key: prediction[key] for key in _MODEL},
        "changed_GBps": line.changed_GBps,
        "changed_decides": line.changed_bottleneck,
        "cost": line.cost,
    }


_MODEL = ("time_us", "busbw_GBps", "model_GBps", "latency_us", "transfer_us", "algorithm", "protocol",
          "channels", "judged_by", "wire_GBps", "confidence")  # fmt: skip


def listing(known: Iterable[MachineType]) -> str:
    """A line per machine type."""
    return "\n".join(_type(machine) for machine in known)


def _type(machine: MachineType) -> str:
    nics = machine.links.nics
    rate = f"{machine.links.nic_gbps:g}" if machine.links.nic_gbps else "?"
    network = f"{nics} x {rate} Gb/s {machine.links.network or ''}" if nics else ""
    return f"{machine.name:<28} {machine.vendor:<10} {machine.links.gpus:>2} x {machine.gpu:<34} {network}".rstrip()


def beliefs_text(told: Sequence[Belief]) -> str:
    """Each belief, what is true, the numbers and who measured them."""
    return "\n\n".join("\n".join(_belief(each)) for each in told)


def _belief(each: Belief) -> Iterator[str]:
    yield f"{each.claim}"
    yield f"  {each.verdict}: {each.truth}"
    for number in each.numbers:
        yield f"  {number.value:>9g} {number.unit:<5} {number.of}"
    yield f"  sources: {', '.join(each.sources)}"


def beliefs_json(told: Sequence[Belief]) -> dict[str, Any]:
    """The same as data."""
    return {"beliefs": [asdict(each) for each in told]}


def links_text(known: Iterable[LinkKind]) -> str:
    """A line per kind of link, GB/s in one direction: by its standard, as NCCL counts, and what healthy ones reach."""
    heads = f"{'GB/s, one direction':<44} {'line':>8} {'NCCL':>8} {'reached':>16}  source"
    return "\n".join([heads, *map(_one_link, known)])


def _one_link(link: LinkKind) -> str:
    reached = "-" if link.low_GBps is None else f"{link.low_GBps:g}"
    if link.high_GBps is not None and link.high_GBps != link.low_GBps:
        reached = f"{link.low_GBps or 0:g} to {link.high_GBps:g}"
    line, nccl = ("-" if each is None else f"{each:g}" for each in (link.line_GBps, link.nccl_GBps))
    return f"{link.name:<44} {line:>8} {nccl:>8} {reached:>16}  {link.source}"


def links_json(known: Iterable[LinkKind]) -> dict[str, Any]:
    """The same as data."""
    return {"links": [asdict(each) for each in known]}
