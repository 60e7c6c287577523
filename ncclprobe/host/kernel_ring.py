"""The kernel's log: its ring buffer, or where that is closed to this user, systemd's journal of this boot.

Only the lines that are asked for leave this module, without process names: the log speaks of every user's processes.
"""

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ncclprobe import bounds
from ncclprobe.errors import Denied, HostError, Missing
from ncclprobe.host.command import as_host_error, run

RING = "/dev/kmsg"
JOURNAL = ("journalctl", "-k", "-o", "short-monotonic", "--no-pager", "-q")
_JOURNAL_PATIENCE_S = 10.0
_RECORD_BYTES = 64 << 10  # more than any record: the kernel's own limit is 8 KiB (PRINTK_MESSAGE_MAX)
_NAME = re.compile(r"\bname=[^,]*")
_JOURNAL_LINE = re.compile(r"\[\s*(\d+\.\d+)\] (?:\S+ kernel: )?(.*)")

Line = tuple[float, str]
"""Seconds since boot, and the message."""


def matching(pattern: str) -> dict[str, Any]:
    """Return the newest bounds.KERNEL_LINES lines that match `pattern`, of this boot.

    `source`, `lines` as [seconds since boot, message], `dropped` older ones, `oldest_s` the time of the oldest line
    that is kept at all: a full ring buffer has lost what came before. Raises Denied where both logs are closed to this
    user (kernel.dmesg_restrict, no membership of systemd-journal), Missing where there is neither.
    """
    try:
        source, lines = RING, list(_ring())
    except OSError as error:
        source, lines = " ".join(JOURNAL[:2]), _journal(as_host_error(error, RING))
    wanted = re.compile(pattern)
    found = [(at, _NAME.sub("name=-", text)) for at, text in lines if wanted.search(text)]
    return {
        "source": source,
        "lines": found[-bounds.KERNEL_LINES :],
        "dropped": max(0, len(found) - bounds.KERNEL_LINES),
        "oldest_s": lines[0][0] if lines else 0.0,
    }


def _ring() -> Iterator[Line]:
    """Yield every record of the ring buffer. Reading it takes nothing away from other readers."""
    ring = os.open(RING, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while True:
            try:
                record = os.read(ring, _RECORD_BYTES)
            except BrokenPipeError:  # overwritten while we read: go on with the oldest there is
                continue
            if line := _line(record):
                yield line
    except BlockingIOError:
        return
    finally:
        os.close(ring)


def _line(record: bytes) -> Line | None:
    """Parse ``priority,sequence,microseconds,flags;message`` (Documentation/ABI/testing/dev-kmsg)."""
    head, _, body = record.decode(errors="replace").partition(";")
    fields = head.split(",", 3)
    if len(fields) < 3 or not re.fullmatch(r"[0-9]{1,18}", fields[2]):
        return None
    return int(fields[2]) / 1e6, body.partition("\n")[0].replace("\\x0a", " ")


def _journal(ring: HostError) -> list[Line]:
    """Return the journal's kernel lines. `ring` is why the ring buffer could not be read, and is raised where this is
    no help.

    A user who may not read the system's journal gets no line and no error, but a boot without kernel messages there is
    not: to be shown nothing is to be refused.
    """
    try:
        lines = _journal_lines(run(JOURNAL, _JOURNAL_PATIENCE_S).splitlines())
    except Missing:
        raise ring from None
    except HostError as refusal:
        raise Denied(f"{ring}; {refusal}") from None
    if not lines:
        raise Denied(f"{ring}; {' '.join(JOURNAL[:2])} shows nothing to this user")
    return lines


def _journal_lines(lines: Iterable[str]) -> list[Line]:
    matches = map(_JOURNAL_LINE.fullmatch, lines)
    return [(float(match[1]), match[2]) for match in matches if match]
