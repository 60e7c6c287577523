"""Lines as log shippers write them: one JSON object each, with the program's line in one of its members.

docker's json-file driver (``log``, ``time``), journalctl -o json (``MESSAGE``, ``_HOSTNAME``), fluentd and fluent-bit
(``log`` or ``message``, ``kubernetes``), Google Cloud Logging (``textPayload``, ``resource.labels``), Loki (``line``),
CloudWatch (``message``, ``timestamp`` in ms).
"""

from typing import Any

import msgspec

from ncclprobe.facts.files.log_times import time_at_start
from ncclprobe.model.values import Struct

MOST_JSON = 1 << 20
"""Bytes of one object that are decoded; a longer line is read as plain text."""
_MESSAGES = ("log", "message", "msg", "MESSAGE", "textPayload", "line", "@message", "_raw", "text", "event", "body")
_WITHIN = ("jsonPayload", "fields", "data", "result", "_source", "attributes")
_TIMES = ("time", "timestamp", "@timestamp", "ts", "__REALTIME_TIMESTAMP", "receiveTimestamp", "asctime")
_HOSTS = ("_HOSTNAME", "hostname", "host", "node", "node_name", "nodename", "instance")
_HOSTS_WITHIN = (("kubernetes", "host"), ("kubernetes", "node_name"), ("kubernetes", "pod_name"), ("labels", "node"))


class ShippedLine(Struct, frozen=True):
    """The program's own line, and what the shipper says of it."""

    text: str
    host: str = ""
    time_s: float | None = None


def record(raw: bytes) -> ShippedLine | None:
    """Return the line in a JSON object; None: it is no object, or has no line in it."""
    if len(raw) > MOST_JSON:
        return None
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    inner = next((value for name in _WITHIN if isinstance(value := found.get(name), dict)), {})
    text = _string(found, _MESSAGES) or _string(inner, _MESSAGES)
    if not text:
        return None
    host = _string(found, _HOSTS)
    for outer, name in _HOSTS_WITHIN:
        part = found.get(outer)
        host = host or (_string(part, (name,)) if isinstance(part, dict) else "")
    return ShippedLine(text, host[:253], _time({**inner, **found}))


def _string(found: dict[str, Any], names: tuple[str, ...]) -> str:
    return next((value for name in names if isinstance(value := found.get(name), str) and value.strip()), "")


def _time(found: dict[str, Any]) -> float | None:
    """Return seconds since 1970, of a text or of a number of seconds, milliseconds, micro- or nanoseconds."""
    value = next((found[name] for name in _TIMES if isinstance(found.get(name), str | int | float)), None)
    if isinstance(value, str):
        timed = time_at_start(value)
        if timed:
            return timed[0]
        value = int(value) if value.isdecimal() and len(value) < 20 else None
    if value is None or not 1e9 < value < 1e20:
        return None
    return float(value) / 1000.0 ** ((len(str(int(value))) - 8) // 3 if value >= 1e11 else 0)
