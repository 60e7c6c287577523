"""This boot's kernel messages about GPUs, NVSwitches, NICs, PCIe and links: time, device and code.

Readable by root, by everyone if kernel.dmesg_restrict is 0, and by members of adm or systemd-journal; in a container
usually by nobody. The messages are then unknown; something may still have happened.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from ncclprobe.host import Host
from ncclprobe.model import bounds
from ncclprobe.model.errors import ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct

KernelEventKind = Literal["xid", "sxid", "lost", "mlx5", "aer", "link"]

OF_GPUS = r"NVRM: .*(Xid|fallen off the bus)"
WANTED = rf"{OF_GPUS}|SXid|mlx5_core|PCIe Bus Error|[Ll]ink is |link status "
"""The lines to request: a superset of those understood here, without lines about users' programs."""

_PCI = r"(?:PCI:)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?)"
# The first as open-gpu-kernel-modules 595.45.04 prints it (src/nvidia/src/kernel/gpu/rc/kernel_rc.c), with a MIG
# instance between address and bracket; the second from src/common/nvswitch/kernel/inc/common_nvswitch.h.
_XID = rf"NVRM: Xid \({_PCI}[^)]*\): (\d+)(?:, (.*))?"
_SXID = rf"(?i)nvidia-nvswitch\d+: SXid \({_PCI}\): (\d+), ((?:Non-fatal|Fatal)\b.*)"
_LOST = rf"NVRM: (?:.*?GPU {_PCI}.*?|.*?)fallen off the bus"
_MLX5 = rf"mlx5_core {_PCI}(?: (\S+))?: (.*)"
_AER = rf"{_PCI}: (?:AER: )?PCIe Bus Error: severity=([\w -]+?(?: \([\w-]+\))?), (?:type=(.*))?"
_LINK = r"(?:^|\s)([\w.@-]+):? (?:NIC )?Link is ([Uu]p|[Dd]own|UP|DOWN)\b(.*)"
_BOND = (
    r"(?:^|\s)([^\s:]+): (?:\(slave ([^\s)]+)\): )?link status (?:definitely )?(up|down)\b"
    r"(?: for interface ([^\s,]+))?(.*)"
)

_MLX5_CODES = {  # drivers/net/ethernet/mellanox/mlx5/core: health.c, events.c, cmd.c, en_main.c; and mlx5_ib's ports
    "link-down": r"(?i)\blink down\b",
    "link-up": r"(?i)\blink (up|active)\b",
    "health": r"health compromised|Fatal error \d+ detected|internal error|Health issue observed",
    "timeout": r"timeout\. Will cause a leak|cmd_exec timeout|Timed-out|timed out",
    "cable": r"Port module event(?:\[error\])?: module \d+, (?!Cable plugged)",
    "power": r"insufficient power",
    "temperature": r"High temperature",
}


class Xid(NamedTuple):
    """The meaning of an Xid, and whether a job on this GPU is lost (`grave`) or at risk.

    Otherwise the program is usually the culprit, or the Xid reports a repair. `of_link`: it concerns an NVLink, and its
    text has Fatal or Nonfatal if it is at risk.
    """

    words: str = "see NVIDIA's list of Xids"
    grave: bool = False
    risky: bool = False
    of_link: bool = False


XIDS = {  # docs.nvidia.com/deploy/xid-errors; the gravity is this project's, as is that of a code not named here
    "13": Xid("graphics engine exception: usually an error of the program"),
    "31": Xid("MMU fault: usually an error of the program"),
    "43": Xid("a program was stopped because of its own error"),
    "45": Xid("a program was ended"),
    "48": Xid("double-bit ECC error", grave=True),
    "61": Xid("internal microcontroller breakpoint", risky=True),
    "62": Xid("internal microcontroller halt", risky=True),
    "63": Xid("a row of its memory will be replaced at the next reset"),
    "64": Xid("a row of its memory could not be replaced", grave=True),
    "68": Xid(),
    "74": Xid("NVLink error", grave=True, of_link=True),
    "79": Xid("fallen off the bus", grave=True),
    "92": Xid("many single-bit ECC errors", risky=True),
    "94": Xid("ECC error, contained: the program that met it was ended", risky=True),
    "95": Xid("ECC error, not contained: every program on it is lost", grave=True),
    "109": Xid("context switch timeout", risky=True),
    "119": Xid("its firmware (GSP) does not answer", grave=True),
    "120": Xid("its firmware (GSP) has failed", grave=True),
    "121": Xid("C2C link error, corrected"),
    "137": Xid(),
    "140": Xid("ECC error that was not corrected", grave=True),
    "143": Xid("its initialisation failed", grave=True),
    "144": Xid("NVLink: SAW error", risky=True, of_link=True),  # this and the next from Blackwell on
    "145": Xid("NVLink: RLW error", risky=True, of_link=True),
    "146": Xid("NVLink: TLW error", risky=True, of_link=True),
    "147": Xid("NVLink: TREX error", risky=True, of_link=True),
    "148": Xid("NVLink: NVLPW_CTRL error", risky=True, of_link=True),
    "149": Xid("NVLink: NETIR error", risky=True, of_link=True),
    "150": Xid("NVLink: MSE error", risky=True, of_link=True),
    "154": Xid("the driver requests a different recovery than before"),
}
HARMLESS_XIDS = frozenset(code for code, xid in XIDS.items() if not (xid.grave or xid.risky))
LINK_XIDS = frozenset(code for code, xid in XIDS.items() if xid.of_link)


class Event(Struct, frozen=True):
    """One meaningful line. `at_s` is in seconds since boot.

    `kind` and `code`: ``xid`` and ``sxid`` with their number; ``lost``, a GPU fallen off the bus, which newer drivers
    log without an Xid; ``mlx5`` with a word (``health``, ``timeout``, ``cable``, ``link-down`` …); ``aer`` with its
    severity in the kernel's words; ``link`` with ``up`` or ``down``. `device` is a PCI address, or an interface for
    ``link``; empty: the line does not name one. `fatal` is what an SXid or an NVLink Xid (144 to 150) says about
    itself; None: nothing.
    """

    at_s: float
    kind: KernelEventKind
    device: str
    code: str
    text: str = ""
    fatal: bool | None = None


class KernelLog(Struct, frozen=True):
    """The events of this boot, oldest first, from the newest 2,000 candidate lines; `dropped` lines were older.

    Nothing is known from before `oldest_s`: the ring buffer had no room for it. `uptime_s` is now, on the same clock.
    """

    events: tuple[Event, ...]
    uptime_s: float
    oldest_s: float = 0.0
    dropped: int = 0
    source: str = ""


@collector
def kernel_log(host: Host) -> KernelLog:
    """Read /dev/kmsg, otherwise ``journalctl -k``, and /proc/uptime.

    Needs root, dmesg_restrict=0, or membership of adm or systemd-journal.
    """
    seen = json.loads(host.ask("kernel_log", WANTED))
    lines = [(float(at), str(text)) for at, text in seen["lines"]]
    return KernelLog(
        events=tuple(events(lines)),
        uptime_s=uptime(host.ask("read", "/proc/uptime")),
        oldest_s=float(seen["oldest_s"]),
        dropped=int(seen["dropped"]),
        source=str(seen["source"]),
    )


def uptime(text: str) -> float:
    """Parse seconds since boot. Raises ParseError."""
    match = re.match(r"(\d{1,12}\.\d+) ", text, re.ASCII)
    if not match:
        raise ParseError(f"/proc/uptime: {text[:40]!r}")
    return float(match[1])


def events(lines: Iterable[tuple[float, str]]) -> Iterator[Event]:
    """Yield the events in these timed lines; other lines are ignored."""
    for at, text in lines:
        event = _driver(at, text[: bounds.KERNEL_LINE]) or _network(at, text[: bounds.KERNEL_LINE])
        if event:
            yield event


def _driver(at: float, text: str) -> Event | None:
    if match := re.search(_XID, text):
        cause = re.search(r"caused by previous Xid (\d+)", match[3] or "")
        code = cause[1] if cause else match[2]
        return Event(at, "xid", match[1].lower(), code, match[3] or "", _is_fatal(match[3] or ""))
    if match := re.search(_SXID, text):
        return Event(at, "sxid", match[1].lower(), str(int(match[2])), match[3], _is_fatal(match[3]))
    if match := re.search(_LOST, text):
        return Event(at, "lost", (match[1] or "").lower(), "")
    if match := re.search(_AER, text):
        return Event(at, "aer", match[1].lower(), match[2], match[3] or "")
    return None


def _is_fatal(text: str) -> bool | None:
    """Return whether the text says Fatal or Nonfatal, ``RLW_RXPIPE Nonfatal XC0 i0 Link 13``; None: neither."""
    match = re.search(r"\b(non-?)?fatal\b", text, re.IGNORECASE)
    return None if match is None else match[1] is None


def _network(at: float, text: str) -> Event | None:
    if match := re.search(_MLX5, text):
        code = next((code for code, pattern in _MLX5_CODES.items() if re.search(pattern, match[3])), "")
        return Event(at, "mlx5", match[1].lower(), code, match[3]) if code else None
    if match := re.search(_BOND, text):
        return Event(at, "link", match[2] or match[4] or match[1], match[3], match[5].strip(" ,"))
    if match := re.search(_LINK, text):
        return Event(at, "link", match[1], match[2].lower(), match[3].strip(" ,"))
    return None
