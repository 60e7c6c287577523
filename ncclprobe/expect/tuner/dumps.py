"""What NCCL itself wrote of its search and its cost model: a graph dump, "Pattern" lines, a printed tuning table.

A dump (NCCL_GRAPH_DUMP_FILE) is XML, ``<graphs><graph id= pattern= nchannels= speedintra= ...>``, ids 0 ring, 1 tree,
2 CollNet chain, 3 NVLS, 4 CollNet direct. "Pattern" lines stand in an INFO log of the GRAPH subsystem, channels below
them. Sources: src/graph/search.cc:1004 ncclTopoGetXmlFromGraph, ncclTopoPrintGraph, src/graph/tuning.cc:540 (v2.30.7),
docs/how/nccl-logs.md.

A document that declares a DOCTYPE or entities, or is larger than :data:`MOST_BYTES`, is refused unread.
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from typing import Final, get_args

from ncclprobe.expect.tuner.constants import MOST_CHANNELS
from ncclprobe.expect.tuner.search import BALANCED_TREE, NVLS, RING, SPLIT_TREE, TREE, WORDS, Graph, Graphs, PathWord
from ncclprobe.model.errors import UsageError

MOST_BYTES: Final = 4 << 20
"""Of a dump: 32 channels of 576 GPUs and five graphs are below 2 MiB."""
_MOST_GRAPHS = 16
_MOST_LINES = 1_000_000
_FASTEST_GBPS = 1e5
_REMEDY = "write it again with NCCL_GRAPH_DUMP_FILE"

_IDS = {"0": "ring", "1": "tree", "3": "nvls"}
_KINDS = {BALANCED_TREE: "tree", SPLIT_TREE: "tree", TREE: "tree", RING: "ring", NVLS: "nvls"}
_PATTERN = re.compile(
    r"\bPattern (\d{1,2}), crossNic (\d{1,2}), nChannels (\d{1,4}), (?:bw|speed) (\d{1,6}(?:\.\d{1,9})?)/"
    r"(\d{1,6}(?:\.\d{1,9})?), type (\w{1,8})/(\w{1,8}), sameChannels (\d)"
)
assert set(get_args(PathWord)) == set(WORDS)


def graph_dump(text: str, path: str) -> Graphs:
    """Return the graphs of a dump. Raises UsageError, naming `path` and the reason, for what is none."""
    root = xml_root(text, path, MOST_BYTES, _REMEDY)
    found: dict[str, Graph] = {}
    elements = [root, *root] if root.tag == "graph" else list(root)
    for element in elements[:_MOST_GRAPHS]:
        name = _IDS.get(element.get("id", ""))
        if element.tag == "graph" and name and name not in found:
            found[name] = _graph(element.attrib, f"{path}: graph {element.get('id')}")
    return _whole(found, path, "NCCL's graph dump")


def xml_root(text: str, path: str, most: int, remedy: str) -> ElementTree.Element:
    """Return the outermost element. Raises UsageError, with the `remedy`, for what NCCL never writes."""
    if len(text.encode(errors="replace")) > most:
        raise UsageError(f"{path}: larger than {most >> 20} MiB, so not written by NCCL")
    if re.search(r"<!(?:DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise UsageError(f"{path}: declares a document type or entities, which nothing that NCCL writes does")
    try:
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: no XML ({str(error).partition(chr(10))[0][:80]}); {remedy}") from None


def _graph(given: Mapping[str, str], where: str) -> Graph:
    words = given.get("typeintra", ""), given.get("typeinter", "")
    numbers = {key: _number(given, key, where) for key in ("pattern", "nchannels", "speedintra", "speedinter")}
    return _checked(
        pattern=int(numbers["pattern"]),
        channels=int(numbers["nchannels"]),
        speeds=(numbers["speedintra"], numbers["speedinter"]),
        words=words,
        same=given.get("samechannels", "1") == "1",
        waits=_number(given, "latencyinter", where) if "latencyinter" in given else 0.0,
        where=where,
    )


def _number(given: Mapping[str, str], key: str, where: str) -> float:
    text = given.get(key, "")
    if not re.fullmatch(r"\d{1,9}(?:\.\d{1,12})?(?:e[-+]?\d{1,2})?", text):
        raise UsageError(f"{where}: {key} is {text[:40]!r}, no number; {_REMEDY}")
    return float(text)


def _checked(
    pattern: int,
    channels: int,
    speeds: tuple[float, float],
    words: tuple[str, str],
    same: bool,
    waits: float,
    where: str,
) -> Graph:
    if not 0 <= channels <= 2 * MOST_CHANNELS:
        raise UsageError(f"{where}: {channels} channels; NCCL has at most {2 * MOST_CHANNELS}")
    if not all(0 <= speed <= _FASTEST_GBPS for speed in (*speeds, waits)):
        raise UsageError(f"{where}: {speeds[0]:g}/{speeds[1]:g} GB/s is no speed of a link")
    intra, inter = (_word(word, where) for word in words)
    return Graph(
        pattern=pattern,
        channels=channels,
        bw_intra=speeds[0],
        bw_inter=speeds[1],
        type_intra=intra,
        type_inter=inter,
        same_channels=same,
        latency_inter_us=waits,
    )


def _word(text: str, where: str) -> PathWord:
    for word in WORDS:
        if word == text:
            return word
    raise UsageError(f"{where}: {text[:40]!r} is no kind of path; NCCL has {', '.join(WORDS)}")


def _whole(found: Mapping[str, Graph], path: str, source: str) -> Graphs:
    """Return the algorithms: ring and tree always; NVLS without channels is none."""
    for name in ("ring", "tree"):
        if name not in found or not found[name].channels or not found[name].bw_intra:
            raise UsageError(f"{path}: holds no {name} graph with channels")
    nvls = found.get("nvls")
    return Graphs(ring=found["ring"], tree=found["tree"], nvls=nvls if nvls and nvls.channels else None, source=source)


def pattern_lines(text: str, path: str) -> Graphs:
    """Return the graphs of the first communicator of an INFO log (subsystem GRAPH). Raises UsageError without any.

    Several processes write one log; all of one communicator agree, so that the first of each kind speaks for it.
    """
    found: dict[str, Graph] = {}
    for number, line in enumerate(_lines(text), start=1):
        match = _PATTERN.search(line)
        kind = _KINDS.get(int(match[1])) if match else None
        if match and kind and kind not in found:
            found[kind] = _checked(
                pattern=int(match[1]),
                channels=int(match[3]),
                speeds=(float(match[4]), float(match[5])),
                words=(match[6], match[7]),
                same=match[8] == "1",
                waits=0.0,
                where=f"{path}:{number}",
            )
    if not found:
        raise UsageError(f'{path}: no "Pattern" line; log with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,GRAPH')
    found.setdefault("tree", found.get("ring", next(iter(found.values()))))
    return _whole(found, path, 'the "Pattern" lines of NCCL\'s log')


def _lines(text: str) -> Iterator[str]:
    """Yield lines, bounded: a line of Pattern stands early, and is short."""
    for number, match in enumerate(re.finditer(r"[^\n]+", text)):
        if number >= _MOST_LINES:
            return
        yield match[0][:1024]
