#!/usr/bin/env python3
"""Draw the picture of README.md from what two demos really print: .venv/bin/python scripts/picture.py [PATH]

Writes docs/assets/demo.svg without PATH. A "…" stands for what is left out.
"""

import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "assets" / "demo.svg"
DEMOS = {"hang": slice(1, 9), "sick-node": slice(3, 21)}
"""Each demo, and which of its lines are shown: without the time."""
COLUMNS = 80
_FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="ncclprobe at a terminal">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""As of rich, without a font from elsewhere."""


def printed(demo: str, lines: slice) -> str:
    """Return lines that a demo prints at a terminal, in colours."""
    known = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    env = known | {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1"}
    command = [sys.executable, "-m", "ncclprobe", "demo", demo]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=True)
    return "\n".join([f"$ ncclprobe demo {demo}", *done.stdout.splitlines()[lines], "…", ""])


def drawn() -> str:
    """Return the picture."""
    console = Console(record=True, width=COLUMNS, file=Path(os.devnull).open("w"), force_terminal=True)  # noqa: SIM115
    for demo, lines in DEMOS.items():
        console.print(Text.from_ansi(printed(demo, lines)))
    return console.export_svg(title="ncclprobe", theme=MONOKAI, code_format=_FORMAT, unique_id="demo")


if __name__ == "__main__":
    (Path(sys.argv[1]) if sys.argv[1:] else PICTURE).write_text(drawn(), encoding="utf-8")
