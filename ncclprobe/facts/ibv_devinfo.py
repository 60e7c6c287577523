"""`ibv_devinfo`, also with `--list`: RDMA devices as libibverbs shows them to a process, such as one in a container."""

import re
from collections.abc import Sequence

from ncclprobe.errors import ParseError
from ncclprobe.facts.blocks import blocks, fields, lines
from ncclprobe.model.values import Struct

_DEVICE = re.compile(r"hca_id:\s*(\S{1,64})")
_COUNT = re.compile(r"([0-9]{1,4}) HCAs? found:")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_PORT = re.compile(r"port:?\s*([0-9]{1,4})(?::\s*(\S.*))?")
_MTU = re.compile(r"([0-9]{1,6})(?: \([0-9]\))?")
_CODE = re.compile(r" \([0-9-]{1,4}\)$")


class IbvPort(Struct, frozen=True):
    """One port; None is what the text does not say. `state` is PORT_ACTIVE, PORT_DOWN …"""

    number: int
    state: str | None
    active_mtu: int | None
    link_layer: str | None


class IbvDevice(Struct, frozen=True):
    """One device; of a mere list, the name alone. EFA has the transport "unspecified" and GUIDs of zeros."""

    name: str
    transport: str | None = None
    firmware: str | None = None
    node_guid: str | None = None
    part: str | None = None
    board: str | None = None
    ports: tuple[IbvPort, ...] = ()


class IbvDevices(Struct, frozen=True):
    """All devices in the order of the text; `incomplete` says how many are missing of those announced."""

    devices: tuple[IbvDevice, ...]
    incomplete: tuple[str, ...] = ()


def parse(text: str) -> IbvDevices:
    """Return what the tool says. Raises ParseError where it names no device, or one twice."""
    reported_lines = lines(text)
    devices = [_device(match[1], body) for match, body in blocks(reported_lines, _DEVICE)]
    incomplete: tuple[str, ...] = ()
    for match, body in blocks(reported_lines, _COUNT):
        names = [line for line in body[: int(match[1])] if _NAME.fullmatch(line)]
        devices += [IbvDevice(name) for name in names]
        incomplete += (f"{len(names)} devices of {match[1]}",) if len(names) < int(match[1]) else ()
    if not devices:
        raise ParseError(f"not the output of ibv_devinfo: {text.strip()[:120]!r}")
    if len({device.name for device in devices}) < len(devices):
        raise ParseError("ibv_devinfo: a device comes twice: two outputs may be interleaved")
    return IbvDevices(tuple(devices), incomplete)


def _device(name: str, body: Sequence[str]) -> IbvDevice:
    about = {key: _CODE.sub("", value) for key, value in fields(body).items()}
    return IbvDevice(
        name=name,
        transport=about.get("transport"),
        firmware=about.get("fw_ver"),
        node_guid=about.get("node_guid"),
        part=about.get("vendor_part_id"),
        board=about.get("board_id"),
        ports=tuple(_port(match, below) for match, below in blocks(body, _PORT)),
    )


def _port(heading: re.Match[str], body: Sequence[str]) -> IbvPort:
    """Return a port's block; people condense it to ``port 1: PORT_ACTIVE, max_mtu=4096``."""
    about = fields(body)
    state = about.get("state", (heading[2] or "").partition(",")[0]) or None
    mtu = _MTU.fullmatch(about.get("active_mtu", ""))
    return IbvPort(
        int(heading[1]), state and _CODE.sub("", state), int(mtu[1]) if mtu else None, about.get("link_layer")
    )
