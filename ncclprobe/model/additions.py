"""Find what installed distributions add to ncclprobe: read their entry points without importing any of them.

A distribution declares in its ``pyproject.toml``::

    [project.entry-points."ncclprobe.checks"]
    acme = "acme_ncclprobe.checks"          # a module of checks: their ids begin with site-acme

    [project.entry-points."ncclprobe.machines"]
    acme = "acme_ncclprobe.machines"        # a package with machine types, one .toml file each

The working directory, which ``python -m`` puts on the path, is not searched. Otherwise, anybody who may write there
could run code as every user who works there.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from ncclprobe.model import bounds
from ncclprobe.model.values import Struct

CHECKS, MACHINES = "ncclprobe.checks", "ncclprobe.machines"
_METADATA = (".dist-info", ".egg-info")
_ENTRY_POINTS = "entry_points.txt"


class Addition(Struct, frozen=True):
    """One entry point: its `name`, the `module` that it names, and the `origin`: ``acme-ncclprobe 1.2``."""

    name: str
    module: str
    origin: str


def installed(group: str) -> tuple[Addition, ...]:
    """Return the entry points of `group`, CHECKS or MACHINES, by name."""
    found = (each for folder in trusted_path() for each in _folder_additions(folder) if each[0] == group)
    return tuple(sorted((addition for _, addition in dict.fromkeys(found)), key=lambda each: each.name))


def module_of(name: str) -> ModuleType:
    """Import a module from where distributions are installed. Raises what its import raises."""
    before = sys.path[:]
    sys.path[:] = trusted_path()
    try:
        return importlib.import_module(name)
    finally:
        sys.path[:] = before


def trusted_path() -> list[str]:
    """Return the search path for modules, without the working directory."""
    try:
        here = Path.cwd().resolve()
    except OSError:  # it was removed
        return [each for each in sys.path if each]
    return [each for each in sys.path if each and Path(os.path.realpath(each)) != here]


@cache
def _folder_additions(folder: str) -> tuple[tuple[str, Addition], ...]:
    """Return ncclprobe's entry points of everything installed in `folder`, each with its group."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(_METADATA))  # noqa: PTH208
    except OSError:  # a zip archive, or nothing
        return ()
    return tuple(each for name in names for each in _distribution_additions(Path(folder, name)))


def _distribution_additions(metadata: Path) -> Iterator[tuple[str, Addition]]:
    """Yield one distribution's entry points. Uses importlib.metadata, slow to import, only for files that name us."""
    try:
        with (metadata / _ENTRY_POINTS).open("rb") as file:
            text = file.read(bounds.ENTRY_POINTS_BYTES)
    except OSError:
        return
    if not any(group.encode() in text for group in (CHECKS, MACHINES)):
        return
    from importlib.metadata import Distribution

    known = Distribution.at(metadata)
    for each in known.entry_points:
        if each.group in (CHECKS, MACHINES):
            name = known.metadata["Name"] or metadata.stem
            yield each.group, Addition(each.name, each.value, f"{name} {known.version}")
