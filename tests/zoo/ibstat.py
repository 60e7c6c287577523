"""`ibstat` and `ibstatus`: InfiniBand and RoCE ports as infiniband-diags prints them, where sysfs is not at hand."""

import re
from collections.abc import Mapping, Sequence

from ncclprobe.facts.nvlink import blocks, lines
from ncclprobe.model.errors import ParseError
from ncclprobe.model.values import Struct, grouped

_ADAPTER = re.compile(r"CA '([^']{1,64})'")
_PORT = re.compile(r"Port ([0-9]{1,4}):")
_STATUS = re.compile(r"Infiniband device '([^']{1,64})' port ([0-9]{1,4}) status:")
_NUMBER = re.compile(r"(0x[0-9a-fA-F]{1,8}|[0-9]{1,8}(?:\.[0-9]{1,3})?)(?: Gb/sec .*)?")
_NUMBERED = re.compile(r"[0-9]+: ")
_REMARK = re.compile(r"\s{2,}|\s*(?://|←)")


class IbstatPort(Struct, frozen=True):
    """One port; None is what the text does not say. States are worded as printed: ibstat's Active is ibstatus' ACTIVE.

    The rate of a port that is down is not zero, so it proves nothing.
    """

    number: int
    state: str | None
    physical_state: str | None
    rate_gbps: float | None
    base_lid: int | None
    sm_lid: int | None
    link_layer: str | None


class Adapter(Struct, frozen=True):
    """One device with its ports. ibstatus tells neither type nor firmware."""

    name: str
    ports: tuple[IbstatPort, ...]
    type: str | None = None
    firmware: str | None = None


class Ibstat(Struct, frozen=True):
    """All devices in the order of the text. `failures` are the tool's own, `incomplete` says what is missing."""

    adapters: tuple[Adapter, ...]
    failures: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()


def parse(text: str) -> Ibstat:
    """Return what either tool says. Raises ParseError where it names no device, or one twice."""
    reported_lines = lines(text)
    found = [(m[1], body, blocks(body, _PORT)) for m, body in blocks(reported_lines, _ADAPTER)]
    adapters = [_adapter(name, body, ports) for name, body, ports in found] or _of_ibstatus(reported_lines)
    failures = tuple(line for line in reported_lines if line.startswith("ibpanic:"))
    if not adapters:
        raise ParseError(f"not the output of ibstat: {(*failures, text.strip())[0][:120]!r}")
    if len({adapter.name for adapter in adapters}) < len(adapters):
        raise ParseError("ibstat: a device comes twice: two outputs may be interleaved")
    counts = {name: fields(body).get("number of ports") for name, body, _ in found}
    return Ibstat(tuple(adapters), failures, tuple(_lacking(adapters, counts)))


def fields(lines: Sequence[str]) -> dict[str, str]:
    """Return the lines of the form ``key: value``, the first of each key; wide blanks and ``//`` begin a remark."""
    found: dict[str, str] = {}
    for line in lines:
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip().lower(), _REMARK.split(value.strip(), maxsplit=1)[0])
    return found


def _adapter(name: str, body: Sequence[str], ports: Sequence[tuple[re.Match[str], Sequence[str]]]) -> Adapter:
    about = fields(body)
    return Adapter(
        name, tuple(_port(m[1], below) for m, below in ports), about.get("ca type"), about.get("firmware version")
    )


def _of_ibstatus(reported_lines: Sequence[str]) -> list[Adapter]:
    ports = grouped((match[1], _port(match[2], body)) for match, body in blocks(reported_lines, _STATUS))
    return [Adapter(name, tuple(own)) for name, own in ports.items()]


def _port(number: str, body: Sequence[str]) -> IbstatPort:
    reported_lines = {key.replace("_", " "): _NUMBERED.sub("", value, count=1) for key, value in fields(body).items()}
    base_lid, sm_lid = _number(reported_lines.get("base lid")), _number(reported_lines.get("sm lid"))
    return IbstatPort(
        number=int(number),
        state=reported_lines.get("state"),
        physical_state=reported_lines.get("physical state", reported_lines.get("phys state")),
        rate_gbps=_number(reported_lines.get("rate")),
        base_lid=None if base_lid is None else int(base_lid),
        sm_lid=None if sm_lid is None else int(sm_lid),
        link_layer=reported_lines.get("link layer"),
    )


def _number(text: str | None) -> float | None:
    match = _NUMBER.fullmatch(text or "")
    if not match:
        return None
    return float(int(match[1], 16) if match[1].startswith("0x") else match[1])


def _lacking(adapters: Sequence[Adapter], counts: Mapping[str, str | None]) -> list[str]:
    """Return what every device has and the text lacks: it was cut there."""
    found = []
    for adapter in adapters:
        if counts.get(adapter.name, str(len(adapter.ports))) != str(len(adapter.ports)):
            found.append(f"{adapter.name}: {len(adapter.ports)} ports of {counts[adapter.name]}")
        for port in adapter.ports:
            names = [name for name in IbstatPort.__struct_fields__ if getattr(port, name) is None]
            found += [f"{adapter.name} port {port.number}: {', '.join(names)}"] if names else []
    return found
