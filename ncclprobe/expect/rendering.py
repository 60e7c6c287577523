"""Output of ``ncclprobe expect``: a table with its reasons, the same as JSON, and the machine types."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from ncclprobe.expect.pinned import NOTHING
from ncclprobe.expect.predict import LATEST, predict
from ncclprobe.expect.recognise import ExpectationContext
from ncclprobe.expect.system import NcclVersion, NodeSystem
from ncclprobe.expect.table import Line, TableRequest, lines
from ncclprobe.expect.tables.machines import MachineType
from ncclprobe.model.layout import wrap
from ncclprobe.model.units import size
from ncclprobe.model.values import asdict, replace

_WIDTH = 80
_ABOVE = (
    "values above {wire:.0f} GB/s, the links' one-way rate, are correct here: bus bandwidth counts a ring's bytes, and "
    "{how} moves fewer. To judge the links themselves, run again with NCCL_ALGO=Ring and expect {ring:.4g} GB/s"
)
_NEWER = "NCCL {asked} is newer than {known}, the newest release that this version knows, so {known} is assumed"


def as_text(asked: TableRequest, here: ExpectationContext, found: Sequence[Line]) -> str:
    """Render the table of each operation, and the reasons below it."""
    return "\n".join(_text(asked, here, found))


def _text(asked: TableRequest, here: ExpectationContext, found: Sequence[Line]) -> Iterator[str]:
    system, shape = asked.system, asked.shape
    yield from _wrap(f"{system.name}: {_ranks(asked)}, NCCL {_dotted(asked.version)}")
    of_op = {op: [line for line in found if line.op == op] for op in asked.ops}
    yield from (line for rows in of_op.values() if rows for line in _wrap(_answer(rows[-1])))
    if asked.settings:
        yield from _wrap(f"settings: {asked.settings}")
    yield from (line for note in notes(asked) for line in _wrap(f"note: {note}"))
    for op, rows in of_op.items():
        yield ""
        if not rows:
            yield _nothing(asked, op)
            continue
        yield from _table(rows, shape.ranks, asked)
    if shape.nodes > 1 and not found:
        yield "the NICs of these nodes are unknown"
    yield ""
    yield from _wrap(here.why)
    yield from _wrap(f"links: {links(asked)}")
    yield from _wrap(f"source: {system.source}")
    rules = [(op, of) for op, rows in of_op.items() for of in _group_by_worst(rows)]
    yield from ["", "how measured rows are judged:"] if rules else []
    for op, of in rules:
        span = size(of[0].nbytes) + (f" to {size(of[-1].nbytes)}" if len(of) > 1 else "")
        yield from _wrap(f"{op} of {span}: {_VERDICTS[of[-1].expectation.worst]}{_largest_error(of)}")


def _nothing(asked: TableRequest, op: str) -> str:
    if asked.settings.algo and lines(replace(asked, ops=(op,), settings=NOTHING)):
        return f"with {asked.settings.algo} the call fails: NCCL has no such {op} here"
    return f"{op}: no expectation is known here"


def _answer(line: Line) -> str:
    """Put the number for the largest size in a sentence."""
    value = line.expectation
    lead = f"{line.op} of {size(line.nbytes)} should reach {value.value:.4g} GB/s"
    return f"{lead}; below {value.threshold:.4g} it {value.worst}s" if value.worst != "unjudged" else lead


def notes(asked: TableRequest) -> list[str]:
    """Return notes about all numbers: a release of NCCL that is newer than the known ones."""
    return [_NEWER.format(asked=_dotted(asked.version), known=_dotted(LATEST))] if asked.version > LATEST else []


def _wrap(text: str, hang: int = 2) -> list[str]:
    """Wrap `text` for a terminal; addresses stay whole, so that they can be copied."""
    return wrap("", text, _WIDTH, hang, whole=True)


def _dotted(version: NcclVersion) -> str:
    return ".".join(map(str, version))


def _ranks(asked: TableRequest) -> str:
    shape = asked.shape
    per_node = ",".join(map(str, shape.gpus[:8])) + (",…" if shape.nodes > 8 else "")
    same = len(set(shape.gpus)) == 1
    each = f"{shape.nodes} x {shape.gpus[0]}" if same else f"{shape.nodes} nodes with {per_node}"
    return f"{each} {asked.system.gpu}"


def links(asked: TableRequest) -> str:
    """Describe the links of a machine in a few words."""
    system = asked.system
    parts = [_describe_links(system), *(["NVLS"] if system.nvls else []), *([_nics(system)] if system.nics else [])]
    return ", ".join(parts)


def _nics(system: NodeSystem) -> str:
    """Return ``8 NICs x 400 Gb/s (ib, GPUDirect)``; unknown parts are called unknown."""
    count = f"{system.nics} NIC{'s' * (system.nics > 1)}"
    rate = f" x {system.nic_gbps:g} Gb/s" if system.nic_gbps else " of unknown rate"
    return f"{count}{rate} ({system.network or 'unknown network'}{', GPUDirect' if system.gdr else ''})"


def _describe_links(system: NodeSystem) -> str:
    if system.nvlinks:
        laid = f"bridges of {system.domain_gpus}" if system.domain_gpus < system.gpus else system.fabric
        return f"{system.nvlinks} NVLinks x {system.nvlink_GBps:g} GB/s per GPU ({laid})"
    return f"slots of {system.pcie_GBps:g} GB/s (NCCL's rate)" + ("" if system.p2p else ", no P2P")


def _table(rows: Sequence[Line], ranks: int, asked: TableRequest) -> Iterator[str]:
    """Yield one line per size with the number of its reason, and each reason once below."""
    yield rows[0].op
    yield f"{'size':>8} {'time us':>9} {'GB/s':>8} {'threshold':>9} {'decides':<12} {'how':<15} from"
    reasons: dict[tuple[str, str, str], int] = {}
    for line in rows:
        number = reasons.setdefault(_reason(line), len(reasons) + 1)
        yield _row(line, ranks, number)
    for (why, source, confidence), number in reasons.items():
        yield from _wrap(f"[{number}] {why}. Source: {source} (confidence {confidence})", 4)
    yield from (line for note in _heading_lines(rows, asked) for line in _wrap(note))


def _row(line: Line, ranks: int, number: int) -> str:
    value = line.expectation
    decides = line.prediction.bottleneck if line.prediction else "TCP"
    time_us = line.time_us(ranks)
    time = f"{time_us:9.4g}" if time_us < 10_000 else f"{time_us:9.0f}"
    low = f"{value.threshold:9.4g}" if value.worst != "unjudged" else f"{'-':>9}"
    how = f"{_algorithm(line):<15}"
    return f"{size(line.nbytes):>8} {time} {_rate(value.value)} {low} {decides:<12} {how} {value.basis} [{number}]"


def _rate(value: float) -> str:
    """Format GB/s in eight columns: four digits, or three for very small numbers."""
    text = f"{value:8.4g}"
    return text if len(text) == 8 else f"{value:8.3g}"


def _algorithm(line: Line) -> str:
    """Return algorithm and protocol; empty for a published number that the model's own choice does not reach."""
    found, value = line.prediction, line.expectation
    if found is None or (value.basis == "published" and value.value > found.busbw_GBps * _NEAR):
        return ""
    return f"{found.algorithm} {found.protocol}".strip()


_NEAR = 1.2
_SAID = ("adjusted to", "with NCCL_")


def _reason(line: Line) -> tuple[str, str, str]:
    """Return what a number is based on, without what differs between sizes: algorithm and time have columns."""
    value, found = line.expectation, line.prediction
    why = value.why
    if value.basis == "model" and found:
        why = "; ".join([found.links, *(part for part in why.split("; ") if part.startswith(_SAID))])
    return why, value.source, value.confidence


_VERDICTS = {"fail": "fails below the threshold; ", "warn": "warns at most; ", "unjudged": ""}


def _group_by_worst(rows: Sequence[Line]) -> Iterator[list[Line]]:
    """Group consecutive sizes with the same worst verdict."""
    for _, group in groupby(rows, key=lambda line: line.expectation.worst):
        yield list(group)


def _largest_error(of: Sequence[Line]) -> str:
    """Return the error for the largest of these sizes; without the model's own expectation, which is for
    one size only.
    """
    known = of[-1].expectation.known
    return _EXPECTS.sub("", known) if len(of) > 1 else known


_EXPECTS = re.compile(r"the model expects [\d.e+-]+ GB/s: ")


def _heading_lines(rows: Sequence[Line], asked: TableRequest) -> Iterator[str]:
    high = [
        line.prediction
        for line in rows
        if line.prediction and line.prediction.above_the_wire and line.expectation.value > line.prediction.wire_GBps
    ]
    if not high:
        return
    ring = predict(
        asked.settings.applied(asked.system), asked.shape, rows[0].op, rows[-1].nbytes, asked.version, "Ring"
    )
    if ring:
        how = "a tree of two nodes" if high[-1].between_nodes else high[-1].algorithm
        yield _ABOVE.format(wire=high[-1].wire_GBps, how=how, ring=ring.busbw_GBps)


def as_json(asked: TableRequest, here: ExpectationContext, found: Sequence[Line]) -> dict[str, Any]:
    """Return the whole table as data."""
    return {
        "machine": asked.machine.name if asked.machine else None,
        "why": here.why,
        "system": asdict(asked.system),
        "gpus_per_node": list(asked.shape.gpus),
        "nodes": asked.shape.nodes,
        "ranks": asked.shape.ranks,
        "nccl": _dotted(asked.version),
        "notes": notes(asked),
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
    }


_MODEL = ("time_us", "busbw_GBps", "model_GBps", "latency_us", "transfer_us", "algorithm", "protocol",
          "channels", "judged_by", "wire_GBps", "confidence")  # fmt: skip


def listing(known: Sequence[MachineType]) -> str:
    """List the machine types below their maker or cloud, one per line."""
    makers = dict.fromkeys(each.vendor for each in known)
    found = ((f"{maker}:", *(_type(each) for each in known if each.vendor == maker)) for maker in makers)
    return "\n".join(line for lines in found for line in lines)


def _type(machine: MachineType) -> str:
    nics = machine.links.nics
    rate = f"{machine.links.nic_gbps:g}" if machine.links.nic_gbps else "?"
    network = f"{nics} x {rate} Gb/s {machine.links.network or ''}" if nics else ""
    gpu = machine.gpu.removeprefix("NVIDIA ").removesuffix(" Server Edition")
    return f"  {machine.name:<29} {machine.links.gpus:>2} x {gpu:<20} {network}".rstrip()
