"""What users read has none of the phrases that made it read as translated. A person still has to read the rest."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ncclprobe.engine import diagnose

ROOT = Path(__file__).resolve().parents[1]
PHRASES = {
    "is no X: write 'is not an X'": r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer|more|less|fewer)\w",
    "a trailing alone: write 'only'": r"(?<!by it)\balone(?=[.,;:)]|$)",
    "a clause with of which: write two sentences": r", (?:\w+ )?(?:of|by|with|for|from|in|over|through) wh(?:ich|om)\b",
    "things report, people tell": r"\b(?:tells|told)\b",
    "ranks join, nodes arrive": r"\b(?:did not come|does not come|comes? late|came late|ha[ds] not come)\b",
    "is or appears, not stands": r"\bstands?\b(?!-| (?:in|for)\b)",
    "where for a condition: write 'if'": r"^Where\b|[.;] Where (?!are|is)",
}
"""Frozen. What a machine can see of the style sheet for user text; each with what to write instead."""
ALLOWED = {
    " of which X is free": "torch's own words",
    "X X alone": "the name of a measurement",
    "groups alone, batch": "the name of a measurement",
}


def test_no_message_and_no_explanation_of_a_check_has_a_phrase_that_reads_as_translated() -> None:
    modules = sorted((ROOT / "ncclprobe").rglob("*.py"))
    shown = [(f"{path.relative_to(ROOT)}:{line}", text) for path in modules for line, text in _messages(path)]
    assert len(shown) > 3000
    shown += [(each.id, text) for each in diagnose.every_check() for text in (each.title, each.right, each.why,
              each.fix)]  # fmt: skip
    found = [
        f"{where}: {phrase}: {text[max(found.start() - 40, 0) : found.end() + 40]!r}"
        for where, text in shown
        for phrase, pattern in PHRASES.items()
        if (found := re.search(pattern, text)) and not any(each in text for each in ALLOWED)
    ]
    assert found == []


def _messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module that have several words, as written: no docstring, SQL or pattern."""
    source = path.read_text()
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.add(id(node.value))
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            text = node.value
        if text.count(" ") > 1 and not re.search(r"\b(?:SELECT|UPDATE|INSERT|DELETE)\b|\(\?", text):
            yield node.lineno, text
