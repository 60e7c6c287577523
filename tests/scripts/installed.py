"""The distributions that this environment has, as far as ncclprobe requires them."""

from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def required(lines: Iterable[str]) -> set[str]:
    """Return the names of the distributions in `lines` that hold here, and of those that they require in turn."""
    found: set[str] = set()
    left = [*lines]
    while left:
        needed = Requirement(left.pop())
        if needed.name not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            found.add(needed.name)
            left += metadata.requires(needed.name) or ()
    return found


def files(name: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of the distribution `name`: its modules and what it says of itself, and where they are."""
    for file in metadata.files(name) or ():
        if file.parts[0] != ".." and "__pycache__" not in file.parts:
            yield str(file), Path(str(file.locate()))
