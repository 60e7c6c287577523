"""The documentation as tests read it: its pages, the blocks of commands in them, and what a command should print.

In a ``console`` block a line ``$ COMMAND`` is followed by what it prints; ``…`` stands for any lines, or within a line
for any text. A comment before the block says where it runs: ``not run: WHY``, ``needs: no GPU``, ``lab: n0``.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ncclprobe.model.values import Struct

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md")))
ANY = "…"


class Example(Struct, frozen=True):
    """A command of a page, and the lines that it should print."""

    command: str
    expected: tuple[str, ...]


class Block(Struct, frozen=True):
    """A fenced block: its language, what the comment before it says, and its lines."""

    language: str
    comment: str
    lines: tuple[str, ...]

    @property
    def examples(self) -> list[Example]:
        """Return the commands of a console block, each with what it should print."""
        starts = [at for at, line in enumerate(self.lines) if line.startswith("$ ")]
        ends = [*starts[1:], len(self.lines)]
        return [Example(self.lines[at][2:], self.lines[at + 1 : end]) for at, end in zip(starts, ends, strict=True)]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    comment, inside = "", None
    lines: list[str] = []
    for line in page.read_text(encoding="utf-8").splitlines():
        if inside is not None:
            if line == "```":
                yield Block(inside, comment, tuple(lines))
                comment, inside, lines = "", None, []
            else:
                lines.append(line)
        elif line.startswith("```"):
            inside = line[3:]
        elif line.startswith("<!-- "):
            comment = line.removeprefix("<!-- ").removesuffix(" -->")
        elif line:
            comment = ""


def prints(printed: str, expected: Sequence[str]) -> bool:
    """Return whether `printed` is what a page says that a command prints."""
    return _lines_match(printed.rstrip("\n").splitlines(), expected)


def _lines_match(printed: Sequence[str], expected: Sequence[str]) -> bool:
    parts: list[list[str]] = [[]]
    for line in expected:
        if line == ANY:
            parts.append([])
        else:
            parts[-1].append(line)
    first, *others = parts
    if not _stand_at(printed, first, 0) or (not others and len(printed) != len(first)):
        return False
    at = len(first)
    for part in others[:-1]:
        found = next((n for n in range(at, len(printed)) if _stand_at(printed, part, n)), None)
        if found is None:
            return False
        at = found + len(part)
    return not others or (
        len(printed) - len(others[-1]) >= at and _stand_at(printed, others[-1], len(printed) - len(others[-1]))
    )


def _stand_at(printed: Sequence[str], part: Sequence[str], at: int) -> bool:
    shown = printed[at : at + len(part)]
    return len(shown) == len(part) and all(_line_matches(have, want) for have, want in zip(shown, part, strict=True))


def _line_matches(have: str, want: str) -> bool:
    first, *others = want.rstrip().split(ANY)
    rest = have.rstrip()
    if not others:
        return rest == first
    if not rest.startswith(first) or not rest.endswith(others[-1]):
        return False
    at = len(first)
    for piece in others[:-1]:
        at = rest.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return at <= len(rest) - len(others[-1])
