"""Times at the start of a line, in every form that launchers, containers, torch and the kernel write."""

import re
from datetime import datetime, timedelta, timezone

NO_YEAR = 1970
"""The year of a time that names none; :func:`in_year` puts it into the year that other lines name."""

_NAMES = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_MONTHS = {name: n for n, name in enumerate(_NAMES.split("|"), start=1)}
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,:](?P<fraction>\d{1,9}))?"
_ZONE = r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
_WEEKDAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? {1,2})?"
_MONTH = rf"(?P<month>{_NAMES})"
_FORMS = tuple(
    re.compile(rf"\[?{form}\]?(?= |$|[^\w.])")
    for form in (
        rf"(?P<year>\d{{4}})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T ]{_CLOCK} ?{_ZONE}",
        rf"(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{{4}}) {_CLOCK}",
        rf"{_WEEKDAY}{_MONTH} {{1,2}}(?P<day>\d{{1,2}}) {_CLOCK} (?P<year>\d{{4}})",
        rf"{_WEEKDAY}(?P<day>\d\d) {_MONTH} (?P<year>\d{{4}}) {_CLOCK}",
        rf"{_MONTH} {{1,2}}(?P<day>\d{{1,2}}) {_CLOCK}",
        r"(?P<epoch>1\d{9})(?:\.(?P<fraction>\d{1,9}))?",
    )
)
_GLOG = re.compile(
    r"\[?(?P<level>[IWEFC]) ?(?P<month>\d\d)(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"(?:\.(?P<fraction>\d{1,9}))? {1,8}(?:\d{1,20} {1,4})?(?P<place>[^\s\]]{1,200}:\d{1,6})\] ?"
)
"""Of glog, c10 and torch's Python logging: ``[E1122 10:00:00.123456789 ProcessGroupNCCL.cpp:607] `` and
``W1122 10:00:00.123000 139 torch/distributed/run.py:792] ``."""
_C10 = re.compile(r"\[(?P<level>[IWEFC]) (?P<place>[^\s\]]{1,200}:\d{1,6})\] ?")
"""Of c10 until torch 2.2, which names no time: ``[W socket.cpp:601] ``."""

LEVELS = {"I": "INFO", "W": "WARN", "E": "ERROR", "F": "FATAL", "C": "ERROR"}


def time_at_start(text: str) -> tuple[float, int] | None:
    """Return seconds since 1970 (UTC where no zone is named) and how many characters the time takes; None: no time."""
    if not text[:1] or text[0] not in "[0123456789JFMASOND" + "TW":
        return None
    for form in _FORMS:
        if found := form.match(text):
            when = seconds(found.groupdict())
            return None if when is None else (when, found.end())
    return None


def glog_at_start(text: str) -> tuple[float | None, str, str, int] | None:
    """Return time, level, place and length of glog's head of a line; None: it has none."""
    if found := _GLOG.match(text):
        return seconds(found.groupdict()), LEVELS[found["level"]], found["place"], found.end()
    if found := _C10.match(text):
        return None, LEVELS[found["level"]], found["place"], found.end()
    return None


def seconds(part: dict[str, str | None]) -> float | None:
    """Return seconds since 1970 of the parts of a time; None where there is no such day or hour."""
    fraction = float(f"0.{part.get('fraction') or 0}")
    if part.get("epoch"):
        return int(part["epoch"] or 0) + fraction
    month = part.get("month") or "1"
    day, hour, minute, second = (int(part.get(name) or 0) for name in ("day", "hour", "minute", "second"))
    year = int(part.get("year") or NO_YEAR)
    try:
        when = datetime(year, _MONTHS.get(month) or int(month), day, hour, minute, min(second, 59), tzinfo=timezone.utc)
        return when.timestamp() + fraction - _offset(part.get("zone") or "Z").total_seconds()
    except (ValueError, OverflowError):
        return None


def _offset(zone: str) -> timedelta:
    if zone == "Z":
        return timedelta()
    sign = -1 if zone[0] == "-" else 1
    return sign * timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))


def names_year(when: float) -> bool:
    """Return whether a time came with its year."""
    return when >= 366 * 86400


def in_year(when: float, other: float) -> float:
    """Return a time that came without its year in that of `other`."""
    if names_year(when) or not names_year(other):
        return when
    first, year = datetime.fromtimestamp(when, timezone.utc), datetime.fromtimestamp(other, timezone.utc).year
    try:
        return first.replace(year=year).timestamp()
    except ValueError:  # 29 February
        return when
