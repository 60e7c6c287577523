"""The project file ``ncclprobe.toml``: findings that the site accepts, its own checks, and option defaults.

::

    checks = "/etc/ncclprobe/checks"    # a folder of the site's own checks; only in a file that --config names
    messages = "/etc/ncclprobe/messages.tsv"    # what lines of the site's own programs mean, for `explain`; likewise

    [[ignore]]
    check = "ib.state"            # an id, or a pattern such as "ib.*"
    subject = "mlx5_9:1"          # or a pattern; without it every subject
    reason = "storage port, waits for its cable"

    [doctor]
    expect-gpus = 8               # as `ncclprobe doctor --expect-gpus 8`; the command line overrides it

A suppressed finding is still listed, with the reason. The file may contain nothing else: a misspelt key would otherwise
silently ignore, or accept, something.

The file of the working directory is read without a request, so the report announces it. It is refused if another user
may have placed it there: /tmp is a working directory too.
"""

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncclprobe.engine.judge import selected
from ncclprobe.engine.judge import suppress as suppress_
from ncclprobe.host import files
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import Suppression, Verdict
from ncclprobe.model.layout import first_of
from ncclprobe.model.registry import Check
from ncclprobe.model.values import Struct, field, replace

NAME = "ncclprobe.toml"
NO_FILE = Path(os.devnull)
"""The value of --no-config in place of a path."""
_MOST_NAMED = 3
_KEYS = ("check", "subject", "reason")
_NEEDED = ("check", "reason")
"""The required keys of an entry."""


class Ignore(Struct, frozen=True):
    """One decision: patterns of the check's id and of the subject, and why. `where`: file and number of the entry."""

    check: str
    subject: str
    reason: str
    where: str


class _Programs(Struct, frozen=True):
    """The paths in a project file."""

    checks: str = ""
    messages: str = ""


class Accepted(Struct, frozen=True):
    """The entries of a project file. `found`: its path if it was found in the working directory, not requested.

    `checks`: the folder of the site's own checks, `messages` the file of its programs' messages; empty: none.
    `options`: defaults of each command's options.
    """

    entries: tuple[Ignore, ...] = ()
    found: str = ""
    checks: str = ""
    messages: str = ""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def announce(self, left_out: Sequence[Suppression], command: str) -> tuple[str, ...]:
        """Return the report's notes on defaults, and on a file that was read without a request: its entries and
        effects.
        """
        own = self.options.get(command, {})
        listed = ", ".join(f"{name} = {value}" for name, value in own.items())
        defaults = (f"options of {command} from {self.found or 'the file of --config'}: {listed}",) if own else ()
        if not self.found:
            return defaults
        names = first_of((f"{each.id} on {each.subject}" for each in left_out), _MOST_NAMED)
        number = f"{len(self.entries)} {'entry' if len(self.entries) == 1 else 'entries'}"
        did = f"suppressed {names}" if left_out else "suppressed nothing"
        return (
            *defaults,
            f"read {self.found} of the working directory: {number}, {did}; --no-config skips it",
        )


def load(path: Path | None, checks: Callable[[str], Iterable[Check]]) -> Accepted:
    """Load the project file: `path`, or ncclprobe.toml in the working directory, if there is one.

    NO_FILE: no file. Raises UsageError naming file, entry, key and reason; also for an id that is not among `checks`
    (these, and those in the file's folder, are loaded only if there is a file); and for a file of the working directory
    that another user owns or may write, or that a link of another user leads to.
    """
    if path == NO_FILE or (path is None and not Path(NAME).is_file()):
        return Accepted()
    chosen = path or Path(NAME)
    seen: list[os.stat_result] = []
    text = files.read(chosen, limit=bounds.CONFIG_BYTES, refuse=seen.append if path else _refuse_foreign)
    said = parse(text, str(chosen))
    if said.checks or said.messages:
        # It names what judges: refuse a file that was not asked for, or that another user may have written.
        if not seen:
            why = "checks and messages are not allowed in a file of the working directory"
            raise UsageError(f"{chosen}: {why}: pass --config ./{NAME}")
        files.refuse_foreign(chosen, seen[0])
    known = tuple(checks(said.checks))
    for entry in said.entries:
        if not selected(known, [entry.check]):
            raise UsageError(
                f"{entry.where}: check {entry.check!r} matches no check; run `ncclprobe checks` for a list"
            )
    return replace(said, found="" if path else str(Path.cwd() / NAME))


def _refuse_foreign(found: os.stat_result) -> None:
    """Raise UsageError if another user may have planted the file, or a link to it.

    Files of root are accepted, and those that root's group or this user's own may write.
    """
    owners = (uid for uid in (found.st_uid, Path(NAME).lstat().st_uid) if uid not in (0, os.geteuid()))
    why = next((f"uid {uid} owns it" for uid in owners), "")
    writers = stat.S_IWOTH | (stat.S_IWGRP if found.st_gid not in (0, os.getegid()) else 0)
    if not why and found.st_mode & writers:
        why = f"its mode {stat.S_IMODE(found.st_mode):04o} lets other users write to it"
    if why:
        raise UsageError(
            f"{Path.cwd() / NAME} is not read, because {why}; to continue without it pass --no-config, to trust "
            f"it pass --config ./{NAME}"
        )


def parse(text: str, path: str) -> Accepted:
    """Parse the TOML text. Raises UsageError."""
    from ncclprobe.expect import strict  # here, because most runs have no such file

    document = strict.document(text, path)
    entries = document.pop("ignore", [])
    options = {key: document.pop(key) for key in [*document] if isinstance(document[key], dict)}
    for key in document:
        if key not in ("checks", "messages"):
            raise UsageError(f"{path}: unknown key {key!r}; known are [[ignore]], [COMMAND], checks, messages")
    told = strict.converted(document, _Programs, path)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{path}: ignore: write [[ignore]], with two brackets, above each entry")
    ignores = tuple(_ignore(entry, f"{path}: ignore {n}") for n, entry in enumerate(entries, start=1))
    return Accepted(ignores, options=options, checks=told.checks, messages=told.messages)


def _ignore(entry: Mapping[str, Any], where: str) -> Ignore:
    for key, value in entry.items():
        if key not in _KEYS:
            raise UsageError(f"{where}: unknown key {key!r}; known are {', '.join(_KEYS)}")
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{where}: {key} must be text and not empty")
    for key in _NEEDED:
        if key not in entry:
            why = "give a reason for the readers of the report" if key == "reason" else "name a check, such as ib.state"
            raise UsageError(f"{where}: {key} is missing: {why}")
    return Ignore(entry["check"], entry.get("subject", "*"), entry["reason"], where)


def suppress(
    verdicts: Sequence[Verdict], entries: Iterable[Ignore]
) -> tuple[tuple[Verdict, ...], tuple[Suppression, ...]]:
    """Drop the findings that `entries` name; also return what was dropped, with reasons."""
    kept, left_out = tuple(verdicts), list[Suppression]()
    for entry in entries:
        kept, hidden = suppress_(kept, [f"{entry.check}={entry.subject}"])
        left_out += [replace(each, reason=f"{entry.reason} ({entry.where})") for each in hidden]
    return kept, tuple(left_out)
