"""Recorded settings: as this process was started with them, bounded in length, and without secrets."""

import os
import re
from collections.abc import Mapping

from ncclprobe.model import bounds

SECRET = re.compile(
    r"((?:(?<![^\W_])|(?<=[a-z])(?=[A-Z]))(?i:(?:pg|ssh|my)?password|passwd|pass[_-]?phrase|secret|(?:account|api|private|shared[_-]?access|subscription)[_-]?key"
    r"|(?:access[_-]?)?token(?=[\"']?[:=]\s{0,2}\S)|(?:aws)?(?:secret)?access[_-]?key(?:[_-]?id)?(?=[\"']?[:=]\s{0,2}\S)"
    r"|(?:x-amz-|x-goog-)?sig(?:nature)?(?=[:=]\S)|credentials?(?=[:=]\S))[\"']?\s{0,2}[:=]\s{0,2}[\"']?"
    r"|(?:(?<=[A-Z0-9]_)PASS|(?<![^\W_])SSHPASS|(?<![^\W_])(?i:admin|auth|db|ftp|mail|proxy|redis|root|smtp|user)_?pass)"
    r"[\"']?=[\"']?(?=\S)"
    r"|(?<!\w)(?i:(?:set-)?cookie)[\"']?\s{0,2}[:=]\s{0,2}[\"']?"
    r"|(?<!\w)(?i:authorization)[\"']?\s{0,2}[:=]\s{0,2}[\"']?(?:\w{1,16}\s{1,2})?"
    r"|(?<![\w-])--?(?i:[a-z-]{0,24}(?:password|passwd|token|secret|api-?key))\s{1,2}(?=[^\s-])"
    r"|(?<!\w)(?:curl(?:\s{1,2}\S{1,80}){0,8}?\s{1,2}(?:-u|--user)"
    r"|(?:sshpass|mysql\w{0,8})(?:\s{1,2}\S{1,80}){0,8}?\s{1,2}-p)[ =]?[\"']?(?=\S)"
    r"|(?<!\w)(?i:bearer|basic)\s{1,2}(?=\S{16}))"
    r"(?:(?<=ookie: )[^\n\"']+|(?<=\")[^\"\n]+|(?<=')[^'\n]+|(?<=phrase: )[^\n,;\"']+|[^\s,;&\"']+)"
)
"""``password: WORD`` and the like; the first group may be shown."""
_WORDS = re.compile(r"([\s,]+)")

_OURS: dict[str, tuple[str, str | None]] = {}
"""Variables that ncclprobe set in its own process: our value, and the previous one."""


def set_ours(variables: Mapping[str, str]) -> None:
    """Set `variables` in this process; its report still shows what it was started with."""
    for name, value in variables.items():
        _OURS[name] = value, as_started().get(name)
        os.environ[name] = value


def as_started() -> dict[str, str]:
    """Return this process's environment without changes by :func:`set_ours`."""
    found = dict(os.environ)
    for name, (value, before) in _OURS.items():
        if found.get(name) == value:
            found.pop(name)
            found |= {} if before is None else {name: before}
    return found


def encodable(text: str) -> str:
    """Escape the lone surrogates in `text` that represent bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def sanitised(value: str) -> str:
    """Remove possible secrets from a setting: a password, user information before an @, a URL's query.

    Takes one pass over the text, because whoever sets a variable chooses its length.
    """
    return "".join(map(_strip_secrets, _WORDS.split(SECRET.sub(r"\1…", encodable(value)))))


def recorded(name: str, value: str) -> str:
    """Return the value of `name` for recording: sanitised and bounded."""
    return sanitised(value[: bounds.PATH_CHARACTERS if name.endswith("PATH") else bounds.VALUE_CHARACTERS])


def _strip_secrets(word: str) -> str:
    """Remove ``user:password@`` and a URL's query from a word."""
    scheme, slashes, rest = word.partition("://")
    rest = rest.rpartition("@")[2] if slashes else ""
    address, query, _ = rest.partition("?")
    return f"{_strip_user(scheme)}{slashes}{address}{'?…' if query else ''}"


def _strip_user(word: str) -> str:
    """Return ``host:/path`` of ``user:password@host:/path``: drop a name, a colon and everything up to the last @."""
    head, at, tail = word.rpartition("@")
    start = 0
    for place, character in enumerate(head):
        if character in "/=":
            start = place + 1
        elif character == ":" and place > start:
            return head[:start] + tail
    return word if at else tail
