"""Look up what single lines mean in a table of messages taken from sources: ``messages.tsv``.

The table is kept by hand. The column ``meaning`` is the judgement on a line. A meaning is one of

- ``cause CODE [CODE …]``: the line gives the reason; with several codes, one of them. Codes are those of the checks;
- ``consequence``: another rank, or an earlier line, gives the reason;
- ``symptom``: this layer failed, and the line does not give the reason;
- ``harmless``: the program goes on as if nothing had happened; ``aside``: unrelated to a failure;
- ``?``: not yet judged.

A row of level FAMILY holds what all texts of a project have in common; it gives way to any more specific row.

Rows of level FATAL are for launchers and frameworks whose process does not go on after the line, whatever surrounds it;
the next column is then the sentence to print.

``peer`` may follow ``consequence`` or ``symptom``: the rank or host that the line names is at fault, not its writer.
A line is looked up by its rarest word and then compared with the fixed parts of a text in their order: linear in its
length, whatever it holds. The rarest word is the table's first column, so that no index is built at startup.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ncclprobe.host import files
from ncclprobe.logs.job_log import ENDINGS, TALK
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.values import Struct

TABLE = Path(__file__).with_name("messages.tsv")
WORD = re.compile(r"[A-Za-z_]{3,}")
_BOUNDED = re.compile(r"(?<![A-Za-z_\x01])[A-Za-z_]{3,}(?![A-Za-z_\x01])")
_HOLE = re.compile(r"\{([a-z]+)\}")
FAMILY = "FAMILY"
KINDS = ("cause", "consequence", "symptom", "harmless", "aside", "?")
_MOST_SHAPES = 4096
_MOST_WORDS = 64
_DIGITS = str.maketrans("123456789", "0" * 9)
_BEGINS = (":", ": ", "] ", "- ")
"""A prefix of a message, if it has one: ``WARNING:root:``, ``ValueError: ``, ``[Rank 3] ``."""


class MessageRow(NamedTuple):
    """One row of the table."""

    word: str
    project: str
    releases: str
    level: str
    then: str
    place: str
    meaning: str
    text: str


HEAD = MessageRow._fields


class Message(Struct, frozen=True):
    """A line's message. `holes` are the kinds of its holes, and what stands in them."""

    row: MessageRow
    holes: tuple[tuple[str, str], ...] = ()

    @property
    def kind(self) -> str:
        """Return the first word of its meaning."""
        return self.row.meaning.partition(" ")[0]

    @property
    def codes(self) -> tuple[str, ...]:
        """Return the codes of the causes that it may be."""
        return tuple(self.row.meaning.split()[1:]) if self.kind == "cause" else ()

    def held(self, *kinds: str) -> str:
        """Return what stands in the first hole of one of these kinds; empty: it has none."""
        return next((text for kind, text in self.holes if kind in kinds), "")


def rows(table: Path = TABLE) -> Iterator[MessageRow]:
    """Return the rows of a table."""
    return _read(table.read_text(encoding="utf-8").splitlines())


def _read(lines: Iterable[str]) -> Iterator[MessageRow]:
    for line in lines:
        fields = line.split("\t")
        if len(fields) == len(HEAD) and fields[0] != HEAD[0]:
            yield MessageRow(*fields)


def parts(text: str) -> list[str]:
    """Return the fixed parts of a text: those before, between and after its holes."""
    return _HOLE.split(text)[::2]


def words(text: str) -> list[str]:
    """Return the words that a line must have to hold a text: those that no hole touches."""
    return _BOUNDED.findall(_HOLE.sub("\1", text))


class _Lookup:
    """The rows of a table by their rarest words, and the rows that a shape of line, its digits all 0, may hold."""

    def __init__(self, table: Path = TABLE, more: Sequence[str] = ()) -> None:
        self._lines: dict[str, list[str]] = {}
        for line in (*table.read_text(encoding="utf-8").splitlines(), *more):
            self._lines.setdefault(line.partition("\t")[0], []).append(line)
        self._by_word: dict[str, list[tuple[list[str], MessageRow]]] = {}
        self._shapes: dict[str, list[tuple[list[str], MessageRow]]] = {}

    def message(self, text: str) -> Message | None:
        """Return the message that a line holds, of several the one with most fixed text; None: none of the table's."""
        shape = text.translate(_DIGITS)
        near = self._shapes.get(shape)
        if near is None:
            words = dict.fromkeys(WORD.findall(shape)[:_MOST_WORDS])
            near = [each for word in words if word in self._lines for each in self._rows(word)]
            if len(self._shapes) < _MOST_SHAPES:
                self._shapes[shape] = near
        found = [
            ((row.level != FAMILY, sum(map(len, fixed))), row, fixed) for fixed, row in near if _stands(fixed, text)
        ]
        if not found:
            return None
        _, row, fixed = max(found)
        return Message(row, tuple(zip(_HOLE.findall(row.text), _held(fixed, text), strict=True)))

    def _rows(self, word: str) -> list[tuple[list[str], MessageRow]]:
        """Return the rows of a word with their fixed parts, which are taken apart at its first asking."""
        if word not in self._by_word:
            self._by_word[word] = [(parts(row.text), row) for row in _read(self._lines[word])]
        return self._by_word[word]


_of_a_site: list[str] = []


@lru_cache(maxsize=1)
def _lookup() -> _Lookup:
    return _Lookup(more=_of_a_site)


def use(table: Path | None) -> list[str]:
    """Look lines up in a site's own table too, from now on; None: in none. Return the texts to search logs for.

    Its first column may be empty, and a meaning of several causes names their codes. Raises UsageError for a line that
    is not of this form, or has no word to be found by.
    """
    text = files.read(table, limit=bounds.CONFIG_BYTES) if table else ""
    found = [_site_row(f"{table}:{number}", line) for number, line in enumerate(text.splitlines(), 1) if _is_row(line)]
    if _of_a_site or found:
        _of_a_site[:] = ["\t".join(row) for row in found]
        _lookup.cache_clear()
    return [max(parts(row.text), key=len) for row in found]


def _is_row(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(("#", "\t".join(HEAD)))


def _site_row(where: str, line: str) -> MessageRow:
    fields = line.split("\t")
    if len(fields) != len(HEAD):
        raise UsageError(f"{where}: has {len(fields)} columns; {len(HEAD)} are needed: {', '.join(HEAD)}")
    row = MessageRow(*fields)
    kind, *codes = row.meaning.split() or [""]
    if kind not in KINDS or bool(codes) < (kind == "cause"):
        raise UsageError(f"{where}: {row.meaning!r} is not a meaning; one of {', '.join(KINDS)}, and codes after cause")
    if not (found := words(row.text)):
        raise UsageError(f"{where}: the text has no word of three letters that no hole touches")
    return row._replace(word=row.word if row.word in found else max(found, key=len))


def message(text: str) -> Message | None:
    """Return the message of the package's table that a line holds; the table is read at the first asking."""
    return _lookup().message(text)


def said(text: str, level: str) -> Message | None:
    """Return the message for a line of some level.

    A warning in the sources is not a warning at INFO if the program tries something else. A text that the sources raise
    as a cause is not one if it is only logged, since anybody may use these words, except behind the exception's name.
    NCCL writes WARN: another library may speak of the same call.
    """
    found = message(text)
    if found is None or (level in TALK and found.row.level != "INFO"):
        return None
    if found.row.project == "nccl" and (level == "ERROR" or " UCX " in text):
        return None
    raised = level in ENDINGS or "Error: " in text or "Exception: " in text
    return None if found.row.level == "RAISED" and found.codes and not raised else found


def _stands(fixed: Sequence[str], text: str) -> bool:
    """Return whether a line holds the fixed parts in their order, the first at the beginning of its message."""
    at = _begin(fixed[0], text)
    for part in fixed[1:] if at >= 0 else ():
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return at >= 0


def _begin(first: str, text: str) -> int:
    """Return the position after the first part; -1: it is not at any place where a message begins."""
    if text.startswith(first):
        return len(first)
    places = [text.find(before + first) + len(before) for before in _BEGINS if before + first in text]
    return min(places, default=-1 - len(first)) + len(first)


def _held(fixed: Sequence[str], text: str) -> Iterator[str]:
    """Yield what stands in the holes between the fixed parts."""
    at = _begin(fixed[0], text)
    for number, part in enumerate(fixed[1:], start=2):
        end = len(text) if not part and number == len(fixed) else text.find(part, at)
        yield text[at:end].strip()
        at = end + len(part)
