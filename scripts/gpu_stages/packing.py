"""Pack results for a machine that gives back few files: one tar.gz for each stage, and one summary."""

import io
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

MOST_FILES = 8
MOST_BYTES = 15 << 20
"""Of one archive: such machines give back files of up to 16 MiB."""
MOST_BYTES_IN_ALL = 60 << 20
_MEMBER_BYTES = 1 << 10
"""What a member costs beside its compressed text, at most: its header, which compresses badly where names differ."""
LEFT_OUT = "left-out.txt"


def pack(stage: Path, into: Path, most_bytes: int = MOST_BYTES) -> tuple[Path, tuple[str, ...]]:
    """Write `stage` as NAME.tar.gz of at most `most_bytes` into `into`; its path, and the files that did not fit.

    Small files come first: where not everything fits, it is the largest that is left out, and named in the archive.
    """
    into.mkdir(parents=True, exist_ok=True)
    archive, taken, left, spent = into / f"{stage.name}.tar.gz", [], [], _MEMBER_BYTES
    for path in sorted((p for p in stage.rglob("*") if p.is_file() and not p.is_symlink()), key=_size):
        cost = _cost(path, most_bytes)
        if spent + cost > most_bytes:
            left.append(f"{path.relative_to(stage.parent)} ({_size(path)} bytes)")
        else:
            taken.append(path)
            spent += cost
    with tarfile.open(archive, "w:gz") as packed:
        for path in sorted(taken):
            packed.add(path, arcname=str(path.relative_to(stage.parent)), recursive=False)
        if left:
            _add_text(packed, f"{stage.name}/{LEFT_OUT}", "\n".join(left) + "\n")
    return archive, tuple(left)


def pack_all(stages: Sequence[Path], summary: Sequence[Path], into: Path) -> tuple[str, ...]:
    """Pack `stages` beside the `summary` files into `into`, within all limits; what did not fit."""
    if len(stages) + len(summary) > MOST_FILES:
        raise ValueError(f"{len(stages)} stages and {len(summary)} other files are more than {MOST_FILES}")
    into.mkdir(parents=True, exist_ok=True)
    for path in summary:
        (into / path.name).write_bytes(path.read_bytes())
    each = min(MOST_BYTES, (MOST_BYTES_IN_ALL - sum(map(_size, summary))) // max(1, len(stages)))
    return tuple(name for stage in stages for name in pack(stage, into, each)[1])


def _size(path: Path) -> int:
    return path.stat().st_size


def _cost(path: Path, most_bytes: int) -> int:
    """Bytes that it takes in an archive; a file that can never fit is not read."""
    if _size(path) > 64 * most_bytes:
        return most_bytes + 1
    return len(zlib.compress(path.read_bytes(), 6)) + _MEMBER_BYTES


def _add_text(packed: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(text.encode())
    packed.addfile(member, io.BytesIO(text.encode()))
