"""Find the tables of `nvidia-smi topo` in pasted text: header and rows, before they are interpreted.

Colours (also if a paste lost the escape byte and left ``[4m``), HTML tags, table borders and drawn lines are removed.
Words are separated by blanks of any kind, and by the end of a log collector's label (``[pod/a] ``, ``0: ``, ``> ``,
``file:``), which may have no blank after it.

A table is recognised by its header: after the label that log collectors put before every line, only device names and
affinity titles. Cells are counted, never cut out by column: tabs expand differently in header and rows, blank affinity
cells leave no trace, and a paste may have lost or doubled any blank. So a row must have exactly as many link words as
its header has devices. A row with fewer is a cut text if the text ends there, and otherwise refused.
"""

import re
from collections.abc import Iterable, Sequence

from ncclprobe.model.errors import ParseError
from ncclprobe.model.values import Struct, field, replace

_COLOUR = r"\x1b?\[[0-9;]*[mK]"
_TAG = r"</?[A-Za-z][^<>\n]*>"
_WORD = r"[^\s:>\]]*[:>\]]+|[^\s:>\]]+"
_SPEAKING = r"[^\W_]"
_PAGER = r"\s*\[[0-9]+/[0-9]+\]\s*"
_TAB = " " * 6


class MatrixLine(Struct, frozen=True):
    """One line with at least one letter or digit: its number in the text, the text, its words."""

    number: int
    text: str
    words: tuple[str, ...]

    def gap(self, index: int) -> int:
        """Return the width of the blank before the word at `index`.

        A tab counts six: two of them are then as wide as a blank column in a table whose tabs became spaces.
        """
        spans = [match.span() for match in re.finditer(_WORD, self.text)]
        start = spans[index - 1][1] if index else 0
        return len(self.text[start : spans[index][0]].replace("\t", _TAB))


class MatrixLines(Struct, frozen=True):
    """A text's lines. Lines without content are left out but counted in `size`, the number of the last line.

    `unfinished`: that line has no line feed.
    """

    speaking: tuple[MatrixLine, ...]
    size: int
    unfinished: bool


def lex(text: str) -> MatrixLines:
    """Split `text` into lines and words, in linear time."""
    plain = re.sub(_COLOUR, "", re.sub(_TAG, "", text.replace("&nbsp;", " "))).replace("|", " ").splitlines()
    numbered = [(number, line) for number, line in enumerate(plain, start=1) if re.search(_SPEAKING, line)]
    speaking = [
        MatrixLine(n, line, tuple(re.findall(_WORD, line))) for n, line in numbered if not re.fullmatch(_PAGER, line)
    ]
    return MatrixLines(tuple(speaking), len(plain), not text.endswith("\n"))


TITLES = {"GPU NUMA ID": "gpu_numa_id", "CPU Affinity": "cpu_affinity", "NUMA Affinity": "numa_affinity"}
"""The affinity columns by title. The longest comes first, because titles share words."""

TOPO_LINKS = ("NODE", "SYS", "PHB", "PXB", "PIX", "SOC")
P2P_LINKS = ("CNS", "GNS", "TNS", "NS", "OK", "DR", "U")
_LINK = "|".join(("NV[0-9]{1,3}", *TOPO_LINKS, *P2P_LINKS, "X"))
_GPU_OR_NIC = r"(?:GPU|NIC)[0-9]+"
_GLUED = r"(?:GPU|NIC)[0-9]+|mlx[0-9]+_(?:[a-z]+_)?[0-9]+"
"""Names that can be told apart if nothing separates them."""
RDMA_DEVICE = r"[a-z][A-Za-z0-9_]*[0-9]"
_VALUE = r"[0-9][0-9,-]*|N/A"
_DIGITS = r"[0-9]+"
_WIDE = 12  # two tabs, or from the end of NV18 over a blank column to the next in a table whose tabs were expanded


class Header(Struct, frozen=True):
    """The columns of a table.

    `label` are the words before the columns, with digits masked. `columns` are values of TITLES. `joined`: the header
    spans two lines.
    """

    line: int
    label: tuple[str, ...]
    devices: tuple[str, ...]
    columns: tuple[str, ...]
    columns_first: bool = False
    joined: bool = False


class MatrixRow(Struct, frozen=True):
    """A device's cells and its affinities as printed. `cut`: the text ends within the row.

    `wide`: there is room for a blank column between the last cell and the first affinity. `problem`: why this cannot be
    a row of the table; empty if it can.
    """

    line: int
    device: str
    cells: tuple[str, ...]
    values: tuple[str, ...] = ()
    wide: bool = False
    cut: bool = False
    problem: str = ""


class Table(Struct, frozen=True):
    """A header with the lines above it (back to the previous header) and below it (up to the next).

    `end` is the number of the text's last line that is not blank, `size` that of its last line. `unfinished`: the text
    ends without a line feed.
    """

    header: Header
    above: list[MatrixLine]
    end: int
    size: int
    unfinished: bool
    body: list[MatrixLine] = field(default_factory=list)


def tables(lines: MatrixLines) -> list[Table]:
    """Return every header with its surrounding lines, in order. Raises ParseError if one appears twice in a row."""
    end = lines.speaking[-1].number if lines.speaking else 0
    found: list[Table] = []
    between: list[MatrixLine] = []
    for previous, line in zip((None, *lines.speaking), lines.speaking, strict=False):
        header = _header(line)
        if previous and found and not between:
            if joined := _join_header(found[-1].header, line):
                found[-1] = Table(joined, found[-1].above, end, lines.size, lines.unfinished, between)
                continue
            if not _is_header(found[-1], line, header):
                between = found.pop().above
                between.append(previous)
        if header:
            above, between = between, []
            found.append(Table(header, above, end, lines.size, lines.unfinished, between))
        else:
            between.append(line)
    return found


def _is_header(table: Table, line: MatrixLine, header: Header | None) -> bool:
    """Return whether this is a header, by the line directly below it: prose may consist of GPU names too."""
    if header and header.columns and header.devices == table.header.devices:
        raise ParseError(f"line {line.number}: the header twice in a row: several outputs are interleaved")
    return bool(table.header.columns or _row(table, line, frozenset(table.header.devices)))


def _header(line: MatrixLine) -> Header | None:
    start = next((at for at in range(len(line.words)) if _opens(line.words, at)), None)
    if start is None or any(map(split_links, line.words[:start])) or not (read := _columns(line.words[start:])):
        return None
    devices, columns = read
    if not any(name.startswith("GPU") for name in devices) or len({*devices, *columns}) < len(devices + columns):
        return None
    return Header(line.number, _label(line.words[:start]), devices, columns, not _is_device(line.words[start]))


def _opens(words: Sequence[str], at: int) -> bool:
    return (words[at].startswith("GPU") and words[at][3:4].isdigit()) or " ".join(words[at : at + 2]) in TITLES


def _join_header(header: Header, line: MatrixLine) -> Header | None:
    """Return the header joined with the line directly below it: pastes may break a long header once."""
    size = len(header.label)
    if header.joined or header.columns or _label(line.words[:size]) != header.label:
        return None
    read = _columns(line.words[size:])
    if not read or not set(read[0]).isdisjoint(header.devices):
        return None
    return replace(header, line=line.number, devices=header.devices + read[0], columns=read[1], joined=True)


def _columns(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the devices and affinity columns that these words name; None if any word names neither."""
    text = " ".join(words)
    for title, key in TITLES.items():
        text = text.replace(title, f" {key} ").replace(title.replace(" ", ""), f" {key} ")
    devices: list[str] = []
    columns: list[str] = []
    for word in text.split():
        glued = re.findall(_GLUED, word)
        if word in TITLES.values() or word == "NUMA":
            columns.append("numa_affinity" if word == "NUMA" else word)
        elif "".join(glued) == word:
            devices += glued
        elif re.fullmatch(RDMA_DEVICE, word):
            devices.append(word)
        else:
            return None
    return tuple(devices), tuple(columns)


def _is_device(word: str) -> bool:
    return bool(re.match(_GPU_OR_NIC, word) or re.fullmatch(RDMA_DEVICE, word))


def _label(words: Iterable[str]) -> tuple[str, ...]:
    """Return a log collector's label with digits masked: its time stamps and counters differ between lines."""
    return tuple(re.sub(_DIGITS, "0", word) for word in words)


def rows(table: Table) -> list[MatrixRow]:
    """Return the rows under a header; none if the header turns out to be prose."""
    known = frozenset(table.header.devices)
    found: list[MatrixRow] = []
    stray: MatrixLine | None = None
    for line in table.body:
        words = line.words[len(table.header.label) :]
        row = _row(table, line, known)
        if row and stray and not row.problem and len(row.cells) == len(known):
            raise ParseError(f"line {stray.number} is between rows and is not a row: is the table hard-wrapped?")
        if row and not stray:
            if row.problem:
                raise ParseError(f"line {row.line}, row {row.device}: {row.problem}")
            found.append(row)
        elif words and found and not row and _continues(found[-1], line, words, table.header):
            raise ParseError(f"line {line.number} holds cells without a device: the table is hard-wrapped")
        elif words and not row:
            stray = stray or line
    _check_once(found)
    return found


def _check_once(found: Sequence[MatrixRow]) -> None:
    seen: set[str] = set()
    for row in found:
        if row.device in seen:
            raise ParseError(f"line {row.line}: a second row of {row.device}: two outputs may be interleaved")
        seen.add(row.device)


def _continues(row: MatrixRow, line: MatrixLine, words: Sequence[str], header: Header) -> bool:
    """Return whether the line directly below a row continues it, or is a row that lost its label."""
    if line.number != row.line + 1:
        return False
    if len(row.values) < len(header.columns) and all(split_links(word) or re.fullmatch(_VALUE, word) for word in words):
        return True
    return 1 < len(header.devices) <= sum(map(bool, map(split_links, words)))


def split_links(word: str) -> list[str]:
    """Return the link words in `word`: one, several if a terminal swallowed the tab between them, or none."""
    found = re.findall(_LINK, word)
    return found if "".join(found) == word else []


def _row(table: Table, line: MatrixLine, known: frozenset[str]) -> MatrixRow | None:
    """Parse the row on this line; None if the line does not look like one."""
    header, skip = table.header, len(table.header.label)
    if _label(line.words[:skip]) != header.label or len(line.words) == skip:
        return None
    first = skip
    while header.columns_first and first < min(skip + len(header.columns), len(line.words) - 1):
        if line.words[first] in known:
            break
        first += 1
    device, rest = line.words[first], line.words[first + 1 :]
    if device not in known:
        return _unnamed_row(line, device, rest, len(known))
    cells, used = _cells(rest, len(known))
    front, values = line.words[skip:first], rest[used:]
    wide = bool(values) and line.gap(first + 1 + used) >= _WIDE
    if line.number == table.end and (cut := _cut_row(device, cells, values, header, line.number)):
        return cut
    if not cells and sum(map(bool, map(split_links, rest))) * 2 < len(known):
        return None  # prose that begins with a device's name
    problem = _problem(device, cells, values, header)
    return MatrixRow(line.number, device, tuple(cells), (*front, *values), wide, problem=problem)


def _unnamed_row(line: MatrixLine, device: str, rest: Sequence[str], size: int) -> MatrixRow | None:
    """Return the row of a device that the header does not name, or None if the line is not such a row."""
    cells, _ = _cells(rest, size)
    if len(cells) < size or (size == 1 and not re.fullmatch(_GPU_OR_NIC, device)):
        return None
    return MatrixRow(line.number, device, tuple(cells), problem="the header does not name this device")


def _cells(words: Sequence[str], size: int) -> tuple[list[str], int]:
    """Return the leading link words of `words`, at most `size` and one more, and how many words they took."""
    cells: list[str] = []
    for used, word in enumerate(words):
        links = split_links(word)
        if not links or len(cells) >= size:
            return cells, used
        cells += links
    return cells, len(words)


def _cut_row(device: str, cells: Sequence[str], rest: Sequence[str], header: Header, line: int) -> MatrixRow | None:
    """Return the partial row, if the text ends in it. NV1 may be what is left of NV18, so it is left out."""
    if not rest and cells and cells[-1].startswith("NV"):
        cells = cells[:-1]
    fragment = len(rest) == 1 and any(link.startswith(rest[0]) for link in (*TOPO_LINKS, *P2P_LINKS, "NV"))
    if len(cells) >= len(header.devices) or (rest and not fragment):
        return None
    return MatrixRow(line, device, tuple(cells), cut=True, problem=_misplaced(device, cells, header))


def _problem(device: str, cells: Sequence[str], rest: Sequence[str], header: Header) -> str:
    """Describe what is wrong with a row; empty if it is valid."""
    size = len(header.devices)
    if len(cells) < size and rest and not re.fullmatch(_VALUE, rest[0]):
        return f"{rest[0]!r} under {header.devices[len(cells)]} is not a link that nvidia-smi prints"
    if len(cells) != size or (rest and split_links(rest[0])):
        count = len(cells) + sum(map(bool, map(split_links, rest)))
        return f"{count} cells, but the header names {size} devices: cells are lost, glued or wrapped"
    if rest and not device.startswith("GPU"):
        return f"{rest[0]!r} follows a NIC's cells, but nvidia-smi prints nothing there: is this another tool's table?"
    return _misplaced(device, cells, header)


def _misplaced(device: str, cells: Sequence[str], header: Header) -> str:
    """Describe a misplaced X, which marks the device itself in its own column; empty if none is."""
    for cell, other in zip(cells, header.devices, strict=False):
        if (cell == "X") != (other == device):
            return f"{cell} under {other}: X marks only the device itself, so cells are shifted"
    return ""
