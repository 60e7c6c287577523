"""The lines of limits.conf(5) that apply to one user.

The files name people and groups. Only the lines that apply to the user are returned, without names, so that a capture
contains none. Order as in pam_limits: limits.conf, then limits.d/*.conf by name.
"""

import grp
import json
import os
import pwd
from pathlib import Path

from ncclprobe.model.errors import Missing

FOLDER = Path("/etc/security")
_MOST_FILES, _MOST_BYTES = 100, 1 << 18


def lines_of(uid: str) -> str:
    """Return ``[place, rank, type, item, value]`` for each line that applies to a user.

    Rank 2: the line names the user, 1 a group, 0 everyone. Raises Missing if the user is unknown.
    """
    try:
        user = pwd.getpwuid(int(uid))
    except (KeyError, ValueError):
        raise Missing(f"user {uid}: the system does not know this number") from None
    groups = {str(number) for number in os.getgrouplist(user.pw_name, user.pw_gid)}
    names = {each.gr_name for each in map(_group, groups) if each}
    found = []
    for file in (FOLDER / "limits.conf", *sorted(FOLDER.glob("limits.d/*.conf"))[:_MOST_FILES]):
        for number, line in enumerate(_text(file).splitlines(), start=1):
            words = line.partition("#")[0].split()
            rank = _rank(words[0], user.pw_name, user.pw_uid, names, groups) if len(words) == 4 else None
            if rank is not None:
                found.append([f"{file}:{number}", rank, *words[1:]])
    return json.dumps(found)


def _group(number: str) -> "grp.struct_group | None":
    try:
        return grp.getgrgid(int(number))
    except KeyError:
        return None


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_MOST_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _rank(domain: str, name: str, uid: int, groups: set[str], numbers: set[str]) -> int | None:
    """Return how specifically a domain names the user; None: it does not. The wildcard excludes root."""
    if domain == name or (":" in domain and not domain.startswith(("@", "%")) and _span_contains(domain, uid)):
        return 2
    if domain.startswith("@"):
        own = domain[1:]
        among = own in groups or (":" in own and any(_span_contains(own, int(number)) for number in numbers))
        return 1 if among else None
    return 0 if domain == "*" and uid else None


def _span_contains(span: str, number: int) -> bool:
    """Return whether a number is in ``1000:2000``, ``1000:`` or ``:2000`` (only 2000)."""
    low, _, high = span.partition(":")
    if not all(part.isdecimal() or not part for part in (low, high)) or not (low or high):
        return False
    return int(low or high) <= number <= int(high or number)
