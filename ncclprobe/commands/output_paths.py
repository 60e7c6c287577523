"""Refuse a command line that would destroy a file, before the command starts.

``explain rank0.log --json rank1.log`` names a log in a report's place.
"""

import argparse
import glob
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ncclprobe.host import files
from ncclprobe.model.errors import UsageError
from ncclprobe.report import delivery
from ncclprobe.report.delivery import FORMATS, GITHUB

_WRITTEN = (*FORMATS, "bundle", "nodes_out", "output", "keep")
_Identity = tuple[int, int]


def refused(parser: argparse.ArgumentParser, options: argparse.Namespace) -> argparse.Namespace:
    """Return `options`. Raises UsageError if they would destroy a file."""
    # Two options that write the same file, whatever the paths to it: the later would replace the earlier.
    seen: dict[str | _Identity, str] = {}
    for dest, path in _outputs(options):
        found = _stat(path) if str(path) != "-" else None
        if found and not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            continue  # a device takes from all
        own = (found.st_dev, found.st_ino) if found else str(path) if str(path) == "-" else os.path.realpath(path)
        first = seen.setdefault(own, dest)
        if first != dest:
            where = "standard output" if own == "-" else path
            both = f"{_option(parser, first)} and {_option(parser, dest)}"
            parser.error(f"{both}: only one of them can be written to {where}; give the other another path")
    _refuse_foreign(parser, options)
    return options


def _refuse_foreign(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse to overwrite a file that is not an earlier run's, or that this command reads. Raises UsageError."""
    written = ((dest, path) for dest, path in _outputs(options) if str(path) != "-")
    there = [(dest, path) for dest, path in written if (found := _stat(path)) and found.st_size]
    if not there:
        return
    read = _Inputs(parser, options)
    for dest, path in there:
        named = f"{_option(parser, dest)} {path}"
        if path in read:
            raise UsageError(f"{named} is not overwritten, because this command also reads it; give another path")
        if dest in (*FORMATS, "bundle", "nodes_out"):
            try:
                files.refuse_other(path, delivery.recognises({"nodes_out": "nodes", "bundle": "json"}.get(dest, dest)))
            except UsageError as error:
                raise UsageError(f"{_option(parser, dest)} {error}") from None


def _outputs(options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Yield the options and the files that they will write, if their names are known."""
    for dest in _WRITTEN:
        value = getattr(options, dest, None)
        if dest == "nodes_out" and value:
            from ncclprobe.report.nodes import NAMES

            yield from ((dest, value / name) for name in NAMES)
        elif dest != "keep" and isinstance(value, str) and value != GITHUB:
            yield dest, Path(value)


class _Inputs:
    """The files that the command line reads, by any path; a folder counts with all in it."""

    def __init__(self, parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
        self._files: set[_Identity] = set()
        self._folders: set[_Identity] = set()
        operands = {action.dest for action in parser._actions if not action.option_strings}
        for dest, value in vars(options).items():
            for path in _paths(value) if dest not in _WRITTEN else ():
                self._add(path, whole=dest in operands)
        with suppress(OSError):
            self._note(os.fstat(0), whole=False)  # - , or a shell's redirection

    def _add(self, path: str, *, whole: bool) -> None:
        for each in glob.iglob(path) if glob.has_magic(path) else (path,):  # noqa: PTH207 - from / too
            if found := _stat(Path(each)):
                self._note(found, whole=whole)

    def _note(self, found: os.stat_result, *, whole: bool) -> None:
        if stat.S_ISREG(found.st_mode):
            self._files.add((found.st_dev, found.st_ino))
        elif stat.S_ISDIR(found.st_mode) and whole:
            self._folders.add((found.st_dev, found.st_ino))

    def __contains__(self, path: Path) -> bool:
        found = [each for folder in (path, *path.resolve().parents) if (each := _stat(folder))]
        own, *above = [(each.st_dev, each.st_ino) for each in found]
        return own in self._files or not self._folders.isdisjoint(above)


def _paths(value: Any) -> Iterator[str]:
    for each in value if isinstance(value, list | tuple) else (value,):
        if isinstance(each, str | Path):
            yield str(each)


def _stat(path: Path) -> os.stat_result | None:
    with suppress(OSError, ValueError):  # ValueError: a NUL in the name
        return path.stat()
    return None


def _option(parser: argparse.ArgumentParser, dest: str) -> str:
    return next(action.option_strings[-1] for action in parser._actions if action.dest == dest)
