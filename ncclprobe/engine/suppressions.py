"""The project file ``ncclprobe.toml``: findings that somebody has looked at and decided to live with, and why.

::

    [[ignore]]
    check = "ib.state"            # an id, or a pattern such as "ib.*"
    subject = "mlx5_9:1"          # or a pattern; without it every subject
    reason = "storage port, waits for its cable"

A finding that is left out is still said, with the reason. Nothing else may stand in the file: a misspelt key would
otherwise ignore, or spare, something without a word.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ncclprobe.engine.judge import selected
from ncclprobe.engine.judge import suppress as suppress_
from ncclprobe.errors import UsageError
from ncclprobe.host import files
from ncclprobe.model.findings import Suppression, Verdict
from ncclprobe.model.rules import Check

NAME = "ncclprobe.toml"
_MOST_BYTES = 1 << 20
_KEYS = ("check", "subject", "reason")
_NEEDED = ("check", "reason")


@dataclass(frozen=True, slots=True)
class Ignore:
    """One decision: patterns of the check's id and of the subject, and why. `where` is file and number of the entry."""

    check: str
    subject: str
    reason: str
    where: str


def load(path: Path | None, checks: Callable[[], Iterable[Check]]) -> tuple[Ignore, ...]:
    """The entries of the project file: of `path`, or of ncclprobe.toml in the working directory, if there is one.

    Raises UsageError naming file, entry, key and reason; also for an id that none of `checks` has, which are
    asked for only where there is a file.
    """
    if path is None and not Path(NAME).is_file():
        return ()
    chosen = path or Path(NAME)
    entries = parse(files.read(chosen, limit=_MOST_BYTES), str(chosen))
    known = tuple(checks())
    for entry in entries:
        if not selected(known, [entry.check]):
            raise UsageError(f"{entry.where}: check {entry.check!r} matches none; `ncclprobe checks` lists them")
    return entries


def parse(text: str, path: str) -> tuple[Ignore, ...]:
    """The entries written in TOML. Raises UsageError."""
    if sys.version_info >= (3, 11):  # here, because most runs have no such file
        import tomllib
    else:
        import tomli as tomllib
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    entries = document.pop("ignore", [])
    if document:
        raise UsageError(f"{path}: unknown key {next(iter(document))!r}; known is [[ignore]]")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{path}: ignore: write [[ignore]], with two brackets, above each entry")
    return tuple(_ignore(entry, f"{path}: ignore {n}") for n, entry in enumerate(entries, start=1))


def _ignore(entry: Mapping[str, Any], where: str) -> Ignore:
    for key, value in entry.items():
        if key not in _KEYS:
            raise UsageError(f"{where}: unknown key {key!r}; known are {', '.join(_KEYS)}")
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{where}: {key} must be a non-empty text")
    for key in _NEEDED:
        if key not in entry:
            why = "say why, for whoever reads the report" if key == "reason" else "name a check, such as ib.state"
            raise UsageError(f"{where}: {key} is missing: {why}")
    return Ignore(entry["check"], entry.get("subject", "*"), entry["reason"], where)


def suppress(
    verdicts: Sequence[Verdict], entries: Iterable[Ignore]
) -> tuple[tuple[Verdict, ...], tuple[Suppression, ...]]:
    """`verdicts` without the findings that `entries` name, and the list of what was left out, each with its reason."""
    kept, left_out = tuple(verdicts), list[Suppression]()
    for entry in entries:
        kept, hidden = suppress_(kept, [f"{entry.check}={entry.subject}"])
        left_out += [replace(each, reason=f"{entry.reason} ({entry.where})") for each in hidden]
    return kept, tuple(left_out)
