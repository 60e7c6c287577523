"""Why there is no matrix in a text that should hold one: the cause, in words that help."""

import re
from collections.abc import Iterable

from ncclprobe.facts.topo_lexer import MatrixLine, MatrixLines
from ncclprobe.facts.topo_tables import Header, split_links

_OWN = re.compile(
    r"Topology does not contain any PU|Failed to run topology matrix|Failed to initialize NVML|No devices were found"
    r"|NVIDIA-SMI has failed|Unable to determine the device handle|command line argument must be used in conjunction"
)


def _refusal_text(text: str) -> str:
    """Return what nvidia-smi itself, or the hwloc in it, says of its failure."""
    line = next((line for line in text.splitlines() if _OWN.search(line)), "")
    return line and f"nvidia-smi itself failed: {line.strip()[:200]}"


_FOREIGN = {
    "ppu-smi": re.compile(r"\bPPU[0-9]*\b|\bICN(?:[0-9]+\b|#)"),
    "mx-smi": re.compile(r"\bmx-smi\b|\bMX[0-9]+\b"),
    "rocm-smi": re.compile(r"\bXGMI\b|\brocm-smi\b"),
    "DCGM": re.compile(r"\bGP[0-9]+\b"),
}
"""Tools with a table much like nvidia-smi's, by words that it never prints."""


def _foreign(text: str) -> str:
    tool = next((tool for tool, word in _FOREIGN.items() if word.search(text)), "")
    return tool and f"not nvidia-smi output: it looks like that of {tool}"


_GLUED = re.compile(r"\bGPU[0-9]+(?:X|NV[0-9]|SYS|NODE|PHB|PXB|PIX|SOC)")


def no_row(text: str, header: Header) -> str:
    """Return why no row follows a header."""
    if refusal := _refusal_text(text):
        return refusal
    if _GLUED.search(text):
        return f"the rows under the header in line {header.line} have lost the white space between their cells"
    return f"no row follows the header in line {header.line}: the text is cut off, or its lines are wrapped"


def no_matrix(text: str, lines: MatrixLines) -> str:
    """Return why there is neither a header nor, below it, a row."""
    if cause := _refusal_text(text) or _foreign(text):
        return cause
    what = "no `nvidia-smi topo -m` matrix found"
    if not lines.speaking:
        return f"{what}: the text is empty"
    if orphan := orphans(lines.speaking):
        return f"{what}: line {orphan} is a row, but the header above it is missing, damaged or wrapped"
    return what


def orphans(lines: Iterable[MatrixLine]) -> int:
    """Return the number of the first of these lines that is a row, though it stands under no header; 0 if none is."""
    rows = (line for line in lines if line.words[0].startswith(("GPU", "NIC", "mlx")))
    return next((row.number for row in rows if all(map(split_links, (*row.words, "", "")[1:3]))), 0)
