"""The two legends below a matrix: which words of links it explains, and what it calls the NICs.

nvidia-smi prints one entry a line, ``  PHB  = ...`` and ``  NIC0: mlx5_0``. People write others, with arrows and
comments, or two on a line.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from ncclprobe.errors import ParseError
from ncclprobe.facts.topo_lexer import MatrixLine
from ncclprobe.facts.topo_tables import P2P_LINKS, RDMA_DEVICE, TOPO_LINKS, Table
from ncclprobe.model.values import Struct

_NIC = re.compile(r"\b(NIC[0-9]+)\s*(?::|=>?|->|→)\s*([A-Za-z]\w*(?:-\w+)*)")
_LABEL = re.compile("NIC[0-9]+")
_MEANS = ("=", "=>", "->", "→")
_WORDS = ("X", *TOPO_LINKS, "NV#", *P2P_LINKS)
_LAST = ("NV#", "PIX", "U")
"""The words that a whole legend ends with: of -m, of -mp and of -m before NVLink, of -p2p."""
_COMMENT = ("#", "//", ";", "--", "(")
_TITLES = ("Legend:", "NIC Legend:")


class _Entry(Struct, frozen=True):
    line: int
    label: str
    name: str


class NicNames(Struct, frozen=True):
    """What each device is called, by its label in the header. `incomplete`: what the text would have to say more."""

    names: Mapping[str, str]
    incomplete: tuple[str, ...]


def names(table: Table) -> NicNames:
    """Return what each device is called by the NIC Legend, or else in the header; the legend may know more than the
    header. Raises ParseError where one label has two names, or two have one.
    """
    titled, entries = _nic_legend(table)
    found = {name: name for name in table.header.devices}
    incomplete: list[str] = []
    if cut := _cut_name(table, entries):
        incomplete.append(f"the NIC Legend is cut in the name of {cut.label}")
    for entry in entries:
        if entry is not cut:
            if found.get(entry.label, entry.label) not in (entry.label, entry.name):
                raise ParseError(f"the NIC Legend calls {entry.label} both {found[entry.label]} and {entry.name}")
            found[entry.label] = entry.name
    if len(set(found.values())) < len(found):
        raise ParseError("the NIC Legend gives one name to two devices")
    lost = found.keys() - set(table.header.devices)
    incomplete += [f"column {label} is missing: the NIC Legend names it" for label in sorted(lost)]
    told = {entry.label for entry in entries}
    unnamed = [name for name in table.header.devices if _LABEL.fullmatch(name) and name not in told]
    if unnamed and titled:
        incomplete.append(f"the NIC Legend does not name {ends(unnamed)}")
    elif unnamed and explained(table):
        incomplete.append(f"the NIC Legend is missing: the names of {ends(unnamed)} are not known")
    return NicNames(found, tuple(incomplete))


def ends(labels: Sequence[str]) -> str:
    """Return ``NIC0``, or ``NIC0 to NIC7``."""
    return f"{labels[0]} to {labels[-1]}" if labels[1:] else labels[0]


def _nic_legend(table: Table) -> tuple[bool, list[_Entry]]:
    """Return whether there is a NIC Legend, and its entries: up to the first line that is neither one nor a comment."""
    skip = len(table.header.label)
    lines = iter(table.body)
    titled = any(line.words[skip : skip + 2] == ("NIC", "Legend:") for line in lines)
    entries: list[_Entry] = []
    for line in lines:
        here = [_Entry(line.number, *match.groups()) for match in _NIC.finditer(line.text)]
        if not here and not _is_comment(line, skip):
            break
        entries += here
    return titled, entries


def _is_comment(line: MatrixLine, skip: int) -> bool:
    return len(line.words) == skip or line.words[skip].startswith(_COMMENT)


def _cut_name(table: Table, entries: list[_Entry]) -> _Entry | None:
    """Return the last entry, where the text ends in it and its name is another's too, or is none."""
    if not entries or not table.unfinished or entries[-1].line != table.end:
        return None
    last = entries[-1]
    twice = last.name in {entry.name for entry in entries[:-1]}
    return last if twice or not RDMA_DEVICE.fullmatch(last.name) else None


def explained(table: Table) -> dict[str, int]:
    """Return the link words that the legend explains, with the line of each."""
    return {word: line.number for line in table.body for word in _explained(line.words)}


def _explained(words: tuple[str, ...]) -> Iterator[str]:
    for word, sign in zip(words, (*words[1:], ""), strict=True):
        if word in _WORDS and sign in _MEANS:
            yield word
        elif word.endswith(":") and word[:-1] in _WORDS:
            yield word[:-1]


def cut_legend(table: Table) -> list[str]:
    """Return that the legend stops before its end, where the text does."""
    skip = len(table.header.label)
    last = table.body[-1] if table.body else None
    if last is None or last.number != table.end:
        return []
    words = explained(table)
    ended = [word for word, line in words.items() if line == max(words.values())]
    text = " ".join(last.words[skip:])
    if ended and words[ended[-1]] == last.number:
        return [] if ended[-1] in _LAST else [f"the legend is cut off after {ended[-1]}"]
    begun = text == "Legend:" or any(title.startswith(text) and title != text for title in _TITLES)
    begun = begun or (bool(ended) and any(word.startswith(text) for word in _WORDS))
    return ["the legend is cut off"] if begun else []
