"""Make a report's text safe for a page: no control characters, bounded length, no markup."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from ncclprobe.model.hostlist import fold

LONGEST = 1500
"""Characters of one text on the page; an answer of a machine may have megabytes."""
_PERCENT = re.compile(r"(\d) %")
"""A number and its percent sign, which must stay on one line."""
_WORD = re.compile(r"[a-z]{1,20}[ ,;:]")
_NAMES = 160
"""Characters of a folded list of nodes before it is cut."""


def printable(text: str, limit: int = LONGEST) -> str:
    """Escape control, direction and surrogate characters in `text`, and cut it visibly after `limit`."""
    kept = text[:limit]
    if not kept.isprintable():
        kept = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in kept)
    left = len(text) - limit
    return f"{kept} … ({left} more characters are in the JSON report)" if left > 0 else kept


def finalize(value: object) -> object:
    """Prepare a value for jinja2's escaping. Markup is what this package made itself."""
    return value if isinstance(value, Markup) else _PERCENT.sub("\\1\u00a0%", printable(str(value)))


def folded(names: Iterable[str], limit: int = _NAMES) -> str:
    """Fold `names` into a short list, ``n[0-3]``; a long one is cut between names and counted: ``… (240 nodes)``."""
    unique = tuple(dict.fromkeys(names))
    text = fold(unique)
    if len(text) <= limit:
        return text
    return f"{text[:limit].rpartition(',')[0] or text[:limit]}, … ({len(unique):,} in all)"


def typed(text: str) -> Markup:
    """Mark the parts of `text` between backticks as code; an odd number of backticks is left alone."""
    plain, *others = text.split("`")
    if len(others) % 2:
        return escape(printable(text))
    shown = [escape(printable(each)) for each in others]
    return escape(printable(plain)) + Markup().join(
        Markup("<code>{}</code>").format(each) if n % 2 == 0 else each for n, each in enumerate(shown)
    )


def sentence(text: str) -> Markup:
    """Format `text` as :func:`typed` does, and capitalise its first word if it is a plain word."""
    return typed(text[:1].upper() + text[1:] if _WORD.match(text) else text)


def breaks(names: str) -> Markup:
    """Allow a browser to break a folded list after a comma, but not within a number."""
    return Markup("").join(Markup("{},<wbr>").format(part) for part in printable(names).split(","))[: -len(",<wbr>")]


def rate(value: float | None) -> str:
    """Format GB/s with four significant digits: 0.001234, 1.234, 483.2."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:#.4g}" if value >= 1e-4 or value <= 0 else f"{value:.1e}"


def micros(value: float | None) -> str:
    """Format microseconds with four significant digits and a unit: ``12.34 µs``, ``1.234 ms``, ``1.234 s``."""
    if value is None or not math.isfinite(value):
        return "–"
    for least, unit in ((1e6, "s"), (1e3, "ms")):
        if abs(value) >= 0.99995 * least:
            return f"{value / least:#,.4g} {unit}".replace(". ", " ")
    return f"{value:#.4g} µs".replace(". ", " ") if value else "0 µs"


def micros_tick(value: float) -> str:
    """Format a round number of microseconds: ``20 µs``, ``5 ms``."""
    for least, unit in ((1e6, "s"), (1e3, "ms")):
        if value >= 0.999 * least:
            return f"{value / least:,.3g} {unit}"
    return f"{value:.3g} µs"


def lasting(seconds: float) -> str:
    """Format a duration: ``9.6 s``, ``3 min 5 s``, ``1 h 2 min``, ``2 d 3 h``; milliseconds below a second."""
    if not math.isfinite(seconds) or seconds < 0:
        return "not known"
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds >= 1 or not seconds else f"{1e3 * seconds:.3g} ms"
    whole = round(seconds)
    for unit, name, least, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // least
            return f"{whole // unit:,} {name}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def data(value: Any) -> Markup:
    """Encode `value` as JSON for a ``<script type="application/json">``: no ``<``, ``>``, ``&`` or line separator."""
    text = json.dumps(_plain(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return Markup(text)


def _plain(value: Any) -> Any:
    """Replace numbers that JSON lacks by null, and make every text printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {printable(str(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    return value
