"""The documentation as tests read it: its pages, the blocks of commands in them, and what a command should print.

In a ``console`` block a line ``$ COMMAND`` is followed by what it prints; ``…`` stands for any lines, or within a line
for any text. A comment before the block says where it runs: ``not run: WHY``, ``needs: no GPU``, ``lab: n0``.
"""

import re
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
    lines = [".*".join(map(re.escape, line.rstrip().split(ANY))) + " *\n" for line in expected]
    pattern = "".join("(?:.*\n)*?" if line == ".* *\n" else line for line in lines)
    return re.fullmatch(pattern, f"{printed.rstrip()}\n" if printed.strip() else "") is not None
