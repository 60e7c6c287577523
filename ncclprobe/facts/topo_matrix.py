"""`nvidia-smi topo -m`, `-mp` and `-p2p`: how GPUs and NICs reach each other, of this machine or from a saved text."""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from ncclprobe.errors import ParseError
from ncclprobe.facts.topo_legend import cut_legend, ends, explained, names
from ncclprobe.facts.topo_lexer import lex
from ncclprobe.facts.topo_refusals import no_matrix, no_row, orphans
from ncclprobe.facts.topo_tables import P2P_LINKS, TITLES, Header, MatrixRow, Table, rows, tables
from ncclprobe.host import Host
from ncclprobe.model.registry import collector
from ncclprobe.model.values import Struct

MatrixKind = Literal["topo-m", "topo-mp", "p2p"]
Affinity = tuple[str | None, ...]


class Matrix(Struct, frozen=True):
    """One matrix: `links` maps row to column to the word printed there (NV18, PIX, SYS, OK …; X is the device itself).

    `nics` and the keys of `links` are named as the NIC Legend says, else as the header does. The affinities have one
    text per GPU, as printed: "" is a blank, None a column that is not there, or not in the part of the text we have;
    of the latter, `incomplete` says what is missing, as of everything else that the text stops before or leaves out.
    A matrix of kind topo-mp shows PCIe paths only: that it has no NVLink says nothing. `capability`: what a table of
    kind p2p is of, by the command above it: r read, w write, n NVLink, a atomics, p PCI; empty where none says.
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
    """Read the one matrix of ``nvidia-smi topo -m``."""
    return parse(host.ask("run", "nvidia-smi", "topo", "-m"))[0]


def parse(text: str) -> tuple[Matrix, ...]:
    """Return every matrix in `text`, at least one. Raises ParseError naming the cause; never returns less without a
    word.
    """
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
    incomplete = [*_missing(table, present), *_cut(header, present)]
    affinities: dict[str, dict[str, str | None]] = {}
    for row in present:
        affinities[row.device], unknown = _affinity(row, header, table.end)
        incomplete += unknown
    incomplete += [*_without_nics(header, present), *cut_legend(table), *called.incomplete]
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
    """Two rows that disagree are a damaged text: on every machine, both ends of a path print the same word."""
    for one, cells in links.items():
        for two, link in cells.items():
            back = links.get(two, {}).get(one, link)
            if back != link:
                raise ParseError(f"the rows disagree: {one} says {link} of {two}, {two} says {back} of {one}")


def _missing(table: Table, present: Sequence[MatrixRow]) -> list[str]:
    """Return the rows that a cut text lacks at its end. Raises ParseError if one is missing elsewhere."""
    seen = {row.device for row in present}
    of_nics = any(not device.startswith("GPU") for device in seen)
    wanted = [device for device in table.header.devices if of_nics or device.startswith("GPU")]
    missing = [device for device in wanted if device not in seen]
    if missing and (missing != wanted[-len(missing) :] or any("Legend:" in line.words for line in table.body)):
        raise ParseError(f"the row of {missing[0]} is missing, though the text goes on after it")
    return _rows_missing(missing)


def _without_nics(header: Header, present: Sequence[MatrixRow]) -> list[str]:
    """Return that the rows of all NICs are missing: the text stops before them, or they were filtered out."""
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
    """Return a row's affinities by column, and what of them is not known.

    GPU NUMA ID is always printed, and the blanks are those before it. Without that column a blank CPU affinity leaves
    its width behind. In the text's last row, what is lacking may as well have been cut off.
    """
    columns, values = header.columns, row.values[: len(header.columns)]
    lacking = len(columns) - len(values)
    if row.cut or not columns or not row.device.startswith("GPU"):
        return {}, []
    always = "gpu_numa_id" in columns
    if lacking and ((always and not values) or row.line == end):
        return {}, [f"row {row.device}: its affinities are missing"]
    blank = ("",) * lacking
    texts = blank + values if always or row.wide or "N/A" in values else values + blank
    odd = [text for text in texts if not _is_list(text)]
    known = {column: None if text in odd else text for column, text in zip(columns, texts, strict=True)}
    return known, [f"row {row.device}: {text!r} is no list of CPUs or nodes" for text in odd]


def _is_list(text: str) -> bool:
    """Return whether this is blank, N/A, or numbers and ranges that ascend."""
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
    return "topo-mp" if whole and legend.keys() >= {"SYS", "PIX"} and "NV#" not in legend else "topo-m"


def _capability(table: Table) -> str:
    command = _command(table)
    letters = command[command.index("-p2p") + 1] if "-p2p" in command[:-1] else ""
    return letters if set(letters) <= set("rwnap") else ""


def _command(table: Table) -> tuple[str, ...]:
    """Return the words of the command, or of the title, that stands above the table; empty if none does."""
    lines = (line.words for line in reversed(table.above))
    return next((words for words in lines if any(word in ("topo", "p2p", "-p2p") for word in words)), ())
