"""What a command may write over: an earlier run's own file of the same kind, and never what the command reads."""

import argparse
import glob
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ncclprobe.errors import UsageError
from ncclprobe.host import files
from ncclprobe.report import delivery
from ncclprobe.report.delivery import FORMATS, GITHUB

_WRITTEN = (*FORMATS, "nodes_out", "nccl_tests", "output", "keep")
_Identity = tuple[int, int]


def refuse_overwriting(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse what would destroy a file that is no earlier run's, or that this command reads. Raises UsageError.

    Before the command starts: ``explain rank0.log --json rank1.log`` names a log in a report's place.
    """
    there = [(dest, path) for dest, path in _outputs(options) if (found := _found(path)) and found.st_size]
    if not there:
        return
    read = _Inputs(parser, options)
    for dest, path in there:
        named = f"{_option(parser, dest)} {path}"
        if path in read:
            raise UsageError(f"{named}: not written over, for this command reads it; give another path")
        if dest in (*FORMATS, "nodes_out"):
            try:
                files.refuse_other(path, delivery.recognises("nodes" if dest == "nodes_out" else dest))
            except UsageError as error:
                raise UsageError(f"{_option(parser, dest)} {error}") from None


def _outputs(options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Yield the files that will be written, as far as their names are known, each with its option."""
    for dest in _WRITTEN:
        value = getattr(options, dest, None)
        if dest == "nodes_out" and value:
            from ncclprobe.report.nodes import NAMES

            yield from ((dest, value / name) for name in NAMES)
        elif dest != "keep" and isinstance(value, str) and value not in ("-", GITHUB):
            yield dest, Path(value)


class _Inputs:
    """The files that a command line names to be read, whatever the paths to them; a folder is read with all in it."""

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
            if found := _found(Path(each)):
                self._note(found, whole=whole)

    def _note(self, found: os.stat_result, *, whole: bool) -> None:
        if stat.S_ISREG(found.st_mode):
            self._files.add((found.st_dev, found.st_ino))
        elif stat.S_ISDIR(found.st_mode) and whole:
            self._folders.add((found.st_dev, found.st_ino))

    def __contains__(self, path: Path) -> bool:
        found = [each for folder in (path, *path.resolve().parents) if (each := _found(folder))]
        own, *above = [(each.st_dev, each.st_ino) for each in found]
        return own in self._files or not self._folders.isdisjoint(above)


def _paths(value: Any) -> Iterator[str]:
    for each in value if isinstance(value, list | tuple) else (value,):
        if isinstance(each, str | Path):
            yield str(each)


def _found(path: Path) -> os.stat_result | None:
    with suppress(OSError, ValueError):  # ValueError: a NUL in the name
        return path.stat()
    return None


def _option(parser: argparse.ArgumentParser, dest: str) -> str:
    return next(action.option_strings[-1] for action in parser._actions if action.dest == dest)
