"""Of what kind a file is that a job left, by what it holds: names are chosen by people."""

import re
from typing import Literal

from ncclprobe.facts.files.flight_records import is_dump

FileKind = Literal["log", "flight-recorder", "ras", "stacks", "capture", "report", "binary", "empty"]

KINDS: dict[FileKind, str] = {
    "log": "log",
    "flight-recorder": "flight-recorder dump",
    "ras": "RAS answer",
    "stacks": "py-spy dump",
    "capture": "ncclprobe capture",
    "report": "ncclprobe report",
    "binary": "file without text",
    "empty": "empty file",
}
"""Each kind as a person reads it."""

_STACKS = re.compile(
    rb"(?:[^\n]{0,400}\n){0,6}Process \d{1,10}: [^\n]{1,4000}\n(?:Python v[^\n]{1,400}\n)?\s{0,8}Thread "
)
HEAD = 64 << 10
"""Bytes of the beginning that :func:`kind_of` wants to see."""


def kind_of(head: bytes) -> FileKind:
    """Return the kind of a file that begins with `head`."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n\0")
    if not text:
        return "binary" if head else "empty"
    if is_dump(head):
        return "flight-recorder"
    if text[:1] == b"{":
        return _json(text)
    if _STACKS.match(text[:4096]) or (text[:1] == b"[" and b'"owns_gil"' in text):
        return "stacks"
    if b"Job summary\n===" in text[:8192] or b"] PEER_" in text[:8192]:
        return "ras"
    return "binary" if _binary(head) else "log"


def _json(text: bytes) -> FileKind:
    start = text[:4096]
    if b'"ncclprobe.report/' in start:
        return "report"
    if b'"capture"' in start[:64]:
        return "capture"
    if b'"nccl_version"' in start and b'"communicators"' in text:
        return "ras"
    return "log"


def _binary(head: bytes) -> bool:
    """Return whether this is no text: many control characters that are not NUL, which broken logs hold too."""
    sample = head[:4096]
    odd = sum(byte < 32 and byte not in b"\0\t\n\r\x0b\x0c\x1b\x08\x07" for byte in sample)
    return odd > len(sample) // 10 or head.startswith((b"\x7fELF", b"\x89PNG", b"PK\x03\x04", b"%PDF"))
