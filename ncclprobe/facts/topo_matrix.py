"""`nvidia-smi topo -m`, `-mp` and `-p2p`: how GPUs and NICs reach each other, of this machine or from a saved text.

The two legends below a matrix explain its link words and name its NICs. nvidia-smi prints one entry per line, ``  PHB
= ...`` and ``  NIC0: mlx5_0``. People write others, with arrows and comments, or two on a line.

A text without the expected matrix is refused with the cause.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from ncclprobe.facts.topo_tables import (
    P2P_LINKS,
    RDMA_DEVICE,
    TITLES,
    TOPO_LINKS,
    Header,
    MatrixLine,
    MatrixLines,
    MatrixRow,
    Table,
    lex,
    rows,
    split_links,
    tables,
)
from ncclprobe.host import Host
from ncclprobe.model.errors import ParseError
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct

_NIC = r"\b(NIC[0-9]+)\s*(?::|=>?|->|→)\s*([A-Za-z]\w*(?:-\w+)*)"
_LABEL = "NIC[0-9]+"
_MEANS = ("=", "=>", "->", "→")
_WORDS = ("X", *TOPO_LINKS, "NV#", *P2P_LINKS)
_LAST = ("NV#", "PIX", "U")
"""The last words of complete legends: of -m, of -mp and of -m before NVLink, of -p2p."""
_COMMENT = ("#", "//", ";", "--", "(")
_TITLES = ("Legend:", "NIC Legend:")


class _Entry(Struct, frozen=True):
    line: int
    label: str
    name: str


class _NicNames(Struct, frozen=True):
    """Each device's name, by its label in the header. `incomplete`: what is missing from the text."""

    names: Mapping[str, str]
    incomplete: tuple[str, ...]


def names(table: Table) -> _NicNames:
    """Return each device's name from the NIC Legend, or else the header; the legend may list more devices.

    Raises ParseError if a label has two names, or two labels have the same name.
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
    unnamed = [name for name in table.header.devices if re.fullmatch(_LABEL, name) and name not in told]
    if unnamed and titled:
        incomplete.append(f"the NIC Legend does not name {ends(unnamed)}")
    elif unnamed and explained(table):
        incomplete.append(f"the NIC Legend is missing: the names of {ends(unnamed)} are not known")
    return _NicNames(found, tuple(incomplete))


def ends(labels: Sequence[str]) -> str:
    """Return ``NIC0``, or ``NIC0 to NIC7``."""
    return f"{labels[0]} to {labels[-1]}" if labels[1:] else labels[0]


def _nic_legend(table: Table) -> tuple[bool, list[_Entry]]:
    """Return whether there is a NIC Legend, and its entries, up to the first line that is neither entry nor comment."""
    skip = len(table.header.label)
    lines = iter(table.body)
    titled = any(line.words[skip : skip + 2] == ("NIC", "Legend:") for line in lines)
    entries: list[_Entry] = []
    for line in lines:
        here = [_Entry(line.number, *match.groups()) for match in re.finditer(_NIC, line.text)]
        if not here and not (len(line.words) == skip or line.words[skip].startswith(_COMMENT)):
            break
        entries += here
    return titled, entries


def _cut_name(table: Table, entries: list[_Entry]) -> _Entry | None:
    """Return the last entry, if the text ends in it and its name is a duplicate or malformed."""
    if not entries or not table.unfinished or entries[-1].line != table.end:
        return None
    last = entries[-1]
    twice = last.name in {entry.name for entry in entries[:-1]}
    return last if twice or not re.fullmatch(RDMA_DEVICE, last.name) else None


def explained(table: Table) -> dict[str, int]:
    """Return the link words that the legend explains, and their lines."""
    return {word: line.number for line in table.body for word in _explained(line.words)}


def _explained(words: tuple[str, ...]) -> Iterator[str]:
    for word, sign in zip(words, (*words[1:], ""), strict=True):
        if word in _WORDS and sign in _MEANS:
            yield word
        elif word.endswith(":") and word[:-1] in _WORDS:
            yield word[:-1]


def cut_legend(table: Table) -> list[str]:
    """Report that the legend is cut off, if the text ends within it."""
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


_OWN = (
    r"Topology does not contain any PU|Failed to run topology matrix|Failed to initialize NVML|No devices were found"
    r"|NVIDIA-SMI has failed|Unable to determine the device handle|command line argument must be used in conjunction"
)


def _refusal_text(text: str) -> str:
    """Return the error message of nvidia-smi itself, or of its hwloc; empty if there is none."""
    line = next((line for line in text.splitlines() if re.search(_OWN, line)), "")
    return line and f"nvidia-smi itself failed: {line.strip()[:200]}"


_FOREIGN = {
    "ppu-smi": r"\bPPU[0-9]*\b|\bICN(?:[0-9]+\b|#)",
    "mx-smi": r"\bmx-smi\b|\bMX[0-9]+\b",
    "rocm-smi": r"\bXGMI\b|\brocm-smi\b",
    "DCGM": r"\bGP[0-9]+\b",
}
"""Tools with a similar table, by words that nvidia-smi never prints."""


def _foreign(text: str) -> str:
    tool = next((tool for tool, word in _FOREIGN.items() if re.search(word, text)), "")
    return tool and f"not nvidia-smi output: it looks like that of {tool}"


_GLUED = r"\bGPU[0-9]+(?:X|NV[0-9]|SYS|NODE|PHB|PXB|PIX|SOC)"


def no_row(text: str, header: Header) -> str:
    """Explain why no row follows a header."""
    if refusal := _refusal_text(text):
        return refusal
    if re.search(_GLUED, text):
        return f"the rows under the header in line {header.line} have lost the white space between their cells"
    return f"no row follows the header in line {header.line}: the text is cut off, or its lines are wrapped"


def no_matrix(text: str, lines: MatrixLines) -> str:
    """Explain why the text has neither a header nor a row below one."""
    if cause := _refusal_text(text) or _foreign(text):
        return cause
    what = "no `nvidia-smi topo -m` matrix found"
    if not lines.speaking:
        return f"{what}: the text is empty"
    if orphan := orphans(lines.speaking):
        return f"{what}: line {orphan} is a row, but the header above it is missing, damaged or wrapped"
    return what


def orphans(lines: Iterable[MatrixLine]) -> int:
    """Return the number of the first line that is a row without a header; 0: none."""
    rows = (line for line in lines if line.words[0].startswith(("GPU", "NIC", "mlx")))
    return next((row.number for row in rows if all(map(split_links, (*row.words, "", "")[1:3]))), 0)


MatrixKind = Literal["topo-m", "topo-mp", "p2p"]
Affinity = tuple[str | None, ...]


class Matrix(Struct, frozen=True):
    """One matrix: `links` maps row and column to the word printed there (NV18, PIX, SYS, OK …; X is the device itself).

    `nics` and the keys of `links` are named by the NIC Legend, otherwise by the header. The affinities have one text
    per GPU, as printed: "" is a blank, None a missing column, or one outside the part of the text that we have. In the
    latter case, as for everything else that the text cuts off or omits, `incomplete` names what is missing. A matrix of
    kind topo-mp shows only PCIe paths: a missing NVLink proves nothing. `capability`: what a table of kind p2p shows,
    according to the command above it: r read, w write, n NVLink, a atomics, p PCI; empty if there is no command.
    """

    kind: MatrixKind
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    links: Mapping[str, Mapping[str, str]]
    cpu_affinity: Affinity
    numa_affinity: Affinity
    gpu_numa_id: Affinity
    incomplete: tuple[str, ...] = ()
    capability: str = ""


@collector
def topo_matrix(host: Host) -> Matrix:
    """Read the matrix of ``nvidia-smi topo -m``."""
    return parse(host.ask("run", "nvidia-smi", "topo", "-m"))[0]


def parse(text: str) -> tuple[Matrix, ...]:
    """Parse every matrix in `text`, at least one. Raises ParseError with the cause rather than return fewer."""
    lines = lex(text)
    found: list[Matrix] = []
    for table in tables(lines):
        if not found and (orphan := orphans(table.above)):
            raise ParseError(f"line {orphan} is a row above the header: lines are lost or out of order")
        if present := rows(table):
            found.append(_matrix(table, present))
        elif table.header.columns:
            raise ParseError(no_row(text, table.header))
    if not found:
        raise ParseError(no_matrix(text, lines))
    return tuple(found)


def _matrix(table: Table, present: Sequence[MatrixRow]) -> Matrix:
    header, called = table.header, names(table)
    gpus = tuple(name for name in header.devices if name.startswith("GPU"))
    links = {row.device: dict(zip(header.devices, row.cells, strict=False)) for row in present}
    _check_symmetry(links)
    incomplete = [*_missing_rows(table, present), *_cut(header, present)]
    affinities: dict[str, dict[str, str | None]] = {}
    for row in present:
        affinities[row.device], unknown = _affinity(row, header, table.end)
        incomplete += unknown
    incomplete += [
        *_missing_nic_rows(header, present),
        *cut_legend(table),
        *called.incomplete,
        *_hidden_nics(table),
    ]
    name = called.names.__getitem__
    gpu_numa_id, cpu, numa = (tuple(affinities.get(gpu, {}).get(key) for gpu in gpus) for key in TITLES.values())
    kind = _kind(table, {cell for row in present for cell in row.cells})
    return Matrix(
        kind=kind,
        gpus=gpus,
        nics=tuple(name(label) for label in header.devices if not label.startswith("GPU")),
        links={name(one): {name(two): link for two, link in cells.items()} for one, cells in links.items()},
        cpu_affinity=cpu,
        numa_affinity=numa,
        gpu_numa_id=gpu_numa_id,
        incomplete=tuple(incomplete),
        capability=_capability(table) if kind == "p2p" else "",
    )


def _check_symmetry(links: Mapping[str, Mapping[str, str]]) -> None:
    """Raise ParseError if two rows disagree: on every machine, both ends of a path print the same word."""
    for one, cells in links.items():
        for two, link in cells.items():
            back = links.get(two, {}).get(one, link)
            if back != link:
                raise ParseError(f"the rows disagree: {link} from {one} to {two}, {back} from {two} to {one}")


def _missing_rows(table: Table, present: Sequence[MatrixRow]) -> list[str]:
    """Describe the rows that a cut text lacks at its end. Raises ParseError if one is missing elsewhere."""
    seen = {row.device for row in present}
    of_nics = any(not device.startswith("GPU") for device in seen)
    wanted = [device for device in table.header.devices if of_nics or device.startswith("GPU")]
    missing = [device for device in wanted if device not in seen]
    if missing and (missing != wanted[-len(missing) :] or any("Legend:" in line.words for line in table.body)):
        raise ParseError(f"the row of {missing[0]} is missing, although the text continues after it")
    return _rows_missing(missing)


_DISPLAYED = re.compile(r"(\d{1,4}) NICs found in the topology, only displaying (\d{1,4})")


def _hidden_nics(table: Table) -> list[str]:
    """Describe how many NICs nvidia-smi reports as left out, because its columns are limited."""
    found = next((match for line in table.above if (match := _DISPLAYED.search(line.text))), None)
    return [f"{int(found[1]) - int(found[2])} of {found[1]} NICs are not shown"] if found else []


def _missing_nic_rows(header: Header, present: Sequence[MatrixRow]) -> list[str]:
    """Describe missing rows of all NICs: the text stops before them, or they were filtered out."""
    nics = [device for device in header.devices if not device.startswith("GPU")]
    return _rows_missing(nics if {row.device for row in present}.isdisjoint(nics) else [])


def _rows_missing(devices: Sequence[str]) -> list[str]:
    if not devices:
        return []
    return [f"rows {ends(devices)} are missing" if devices[1:] else f"row {devices[0]} is missing"]


def _cut(header: Header, present: Sequence[MatrixRow]) -> list[str]:
    size = len(header.devices)
    return [f"row {row.device} is cut after {len(row.cells)} of {size} cells" for row in present if row.cut]


def _affinity(row: MatrixRow, header: Header, end: int) -> tuple[dict[str, str | None], list[str]]:
    """Return a row's affinities by column, and descriptions of the unknown ones.

    GPU NUMA ID is always printed, so blanks come before it. Without that column, a blank CPU affinity still takes up
    its width. In the text's last row, missing values may also have been cut off.
    """
    columns, values = header.columns, row.values[: len(header.columns)]
    lacking = len(columns) - len(values)
    if row.cut or not columns or not row.device.startswith("GPU"):
        return {}, []
    always = "gpu_numa_id" in columns
    if lacking and ((always and not values) or row.line == end):
        return {}, [f"row {row.device}: its affinities are missing"]
    if always and lacking:
        values = _split_values(values, lacking)
        lacking = len(columns) - len(values)
    blank = ("",) * lacking
    texts = blank + values if always or row.wide or "N/A" in values else values + blank
    odd = [text for text in texts if not _is_list(text)]
    known = {column: None if text in odd else text for column, text in zip(columns, texts, strict=True)}
    return known, [f"row {row.device}: {text!r} is not a list of CPUs or nodes" for text in odd]


def _split_values(values: Sequence[str], lacking: int) -> tuple[str, ...]:
    """Split values that lost the white space between them, until the `lacking` ones are found.

    A full column runs into the next: ``0-55,112-1670`` are the CPUs 0-55,112-167 of NUMA node 0.
    """
    found: list[str] = []
    for value in values:
        parts = _split_value(value) if lacking > 0 else (value,)
        lacking -= len(parts) - 1
        found += parts
    return tuple(found)


def _split_value(value: str) -> tuple[str, ...]:
    """Split `value` into two lists, unless it may be a single one. Ranges of CPUs are equally long on every node."""
    if match := re.fullmatch(r"([0-9][0-9,-]{0,200})(N/A)", value):
        return match[1], match[2]
    ranges = [re.fullmatch(r"([0-9]{1,6})-([0-9]{1,8})", part) for part in value.split(",")]
    if len(ranges) < 2 or not all(ranges):
        return (value,)
    *first, (begin, last) = [(int(each[1]), each[2]) for each in ranges if each]
    ends = {str(begin + int(end) - start) for start, end in first}
    if len(ends) == 1 and last.startswith(end := ends.pop()) and last != end:
        return value.removesuffix(last) + end, last.removeprefix(end)
    return (value,)


def _is_list(text: str) -> bool:
    """Return whether the text is blank, N/A, or ascending numbers and ranges."""
    last = -1
    for part in text.split(",") if text not in ("", "N/A") else ():
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part)
        if not match or int(match[1]) <= last or int(match[2] or match[1]) < int(match[1]):
            return False
        last = int(match[2] or match[1])
    return True


def _kind(table: Table, cells: set[str]) -> MatrixKind:
    links, command = cells - {"X"}, _command(table)
    if links & {*P2P_LINKS}:
        if foreign := links - {*P2P_LINKS}:
            raise ParseError(f"{min(foreign)!r} in a table of peer-to-peer status: two outputs may be interleaved")
        return "p2p"
    legend = explained(table)
    if not links and not table.header.columns and ("OK" in legend or "p2p" in " ".join(command)):
        return "p2p"  # one GPU: nothing in the matrix itself tells
    if "-mp" in command:
        return "topo-mp"
    if "-m" in command or any(link.startswith("NV") for link in links):
        return "topo-m"
    whole = max(legend.values(), default=0) < table.size  # NV# stands last, so a text that ends here may lack it
    return "topo-mp" if whole and legend.keys() >= {"SYS", "PHB", "PXB", "PIX"} and "NV#" not in legend else "topo-m"


def _capability(table: Table) -> str:
    command = _command(table)
    letters = command[command.index("-p2p") + 1] if "-p2p" in command[:-1] else ""
    return letters if set(letters) <= set("rwnap") else ""


def _command(table: Table) -> tuple[str, ...]:
    """Return the words of the command or title above the table; empty if there is none."""
    lines = (line.words for line in reversed(table.above))
    return next((words for words in lines if any(word in ("topo", "p2p", "-p2p") for word in words)), ())
