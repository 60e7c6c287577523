"""Whether the clock is kept right, as the kernel sees it through timedatectl. Every user may ask, where systemd runs.

In a container systemd does not answer, though the clock is the machine's.
"""

from ncclprobe.errors import ParseError
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct


class TimeSync(Struct, frozen=True):
    """`synchronized`: a daemon keeps the clock (chrony, ntpd, ptp4l with phc2sys …): adjtimex(2) without STA_UNSYNC."""

    synchronized: bool


@collector
def timesync(host: Host) -> TimeSync:
    """Read one property of systemd (since 239). Every user may ask."""
    return TimeSync(synchronized(host.ask("run", "timedatectl", "show", "--property=NTPSynchronized")))


def synchronized(text: str) -> bool:
    """Parse ``NTPSynchronized=yes``. Raises ParseError."""
    if text.strip() not in ("NTPSynchronized=yes", "NTPSynchronized=no"):
        raise ParseError(f"timedatectl: {text[:80]!r}")
    return text.strip().endswith("=yes")
