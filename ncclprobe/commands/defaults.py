"""Defaults of a command's options from ``ncclprobe.toml``: ``[doctor]``, ``expect-gpus = 8``."""

import argparse
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncclprobe.engine import suppressions
from ncclprobe.engine.diagnose import accepted_by
from ncclprobe.model.errors import UsageError, unknown

_OF_FILES = ("PATH", "DIR", "FILE")
"""Metavars of options that name files. A file found in the working directory must not decide what is written."""


def words(parser: argparse.ArgumentParser, argv: Sequence[str], commands: Collection[str]) -> list[str]:
    """Return the project file's options for the command of `parser`, as command-line words.

    `argv` may name the file, or forbid one. Raises UsageError for a section, a key or a value that the command line
    does
    not know.
    """
    actions = parser._option_string_actions
    if "--config" not in actions or "--no-config" in argv:
        return []
    path = _config_file(argv)
    accepted = accepted_by(Path(path) if path else None)
    for section in accepted.options:
        if section not in commands:
            raise UsageError(f"{path or suppressions.NAME}: {unknown(section, 'command', commands)}")
    command = parser.prog.split()[-1]
    return list(_option_words(accepted.options.get(command, {}), actions, f"{path or suppressions.NAME}: [{command}]"))


def _config_file(argv: Sequence[str]) -> str:
    """Return the file that --config names; empty if none. Words after -- are the user's own command."""
    for word, after in zip(argv, [*argv[1:], ""], strict=False):
        if word == "--":
            break
        if word == "--config":
            return after
        if word.startswith("--config="):
            return word.partition("=")[2]
    return ""


def _option_words(own: Mapping[str, Any], actions: Mapping[str, argparse.Action], where: str) -> Iterator[str]:
    """Yield each option of a section with its value. Raises UsageError."""
    for key, value in own.items():
        action = actions.get(f"--{key}")
        if action is None:
            known = [name[2:] for name in actions if name.startswith("--")]
            raise UsageError(f"{where}: {unknown(key, 'option of this command', known)}")
        if action.metavar in _OF_FILES or action.dest == "config":
            raise UsageError(f"{where}: {key} names a file and is allowed only on the command line")
        if action.nargs == 0:
            if not isinstance(value, bool):
                raise UsageError(f"{where}: {key} must be true or false")
            yield from [f"--{key}"] if value else []
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, bool) or not isinstance(each, str | int | float):
                raise UsageError(f"{where}: {key} must be a text or a number")
            yield f"--{key}={each}"
