"""NCCL_ALGO and NCCL_PROTO: the algorithms and protocols that they leave to each collective.

``entry{;entry}``, an entry being ``[function:][^]name{,name}``. Source: src/graph/tuning.cc:36 parseList and :453
(v2.30.7); in prose docs/maintainers/nccl.md. Before 2.24 there was one list for all functions, unknown names were
ignored, and if no algorithm was left, Ring was used with the remaining protocols (src/graph/tuning.cc:290
ncclTopoTuneModel, v2.23.4).
"""

from collections.abc import Mapping, Sequence

from ncclprobe.facts.software import Version, reaches
from ncclprobe.model.values import Struct, field

_GRAMMAR = (2, 24)
_PAT = (2, 23)
_NVLS_GATHERS = (2, 27)

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
_ALL_PROTOCOLS = ("Tree", "Ring")
_ONLY_RING = frozenset({"Ring"})


class Pin(Struct, frozen=True):
    """The choices that a list leaves to each function that it covers; `error`: why NCCL rejects it, otherwise empty.

    `ignored` are names that versions before 2.24 ignore.
    """

    kept: Mapping[str, frozenset[str]] = field(default_factory=dict)
    error: str = ""
    ignored: tuple[str, ...] = ()

    @property
    def every_function(self) -> bool:
        """Return whether the list is unscoped, so that all functions are pinned."""
        return len(self.kept) == len(FUNCTIONS)


class _Refused(Exception):
    """NCCL rejects the list."""


def parse_pin(text: str, names: Sequence[str], version: Version | None = None) -> Pin:
    """Parse NCCL_ALGO (`names` is ALGORITHMS) or NCCL_PROTO (PROTOCOLS) as this version does. Empty text
    pins nothing.
    """
    if not reaches(version, _GRAMMAR):
        return _old(text, names) if text else Pin()
    kept: dict[str, frozenset[str]] = {}
    try:
        for entry in filter(None, text.split(";")):
            kept |= _entry(entry, names, first=text.startswith(entry) and not kept)
    except _Refused as refusal:
        return Pin(error=str(refusal))
    return Pin(kept)


def _entry(entry: str, names: Sequence[str], first: bool) -> dict[str, frozenset[str]]:
    parts = [part for part in entry.split(":") if part]
    if not parts:
        raise _Refused(f"{entry!r} names nothing")
    if len(parts) == 1 and not first:
        raise _Refused(f"{entry!r} needs a function in front: only the first entry may go without")
    tokens = parts[0] if len(parts) == 1 else parts[1]
    functions = FUNCTIONS if len(parts) == 1 else _match_name(parts[0], FUNCTIONS, "function")
    listed = frozenset(
        n for word in tokens.removeprefix("^").split(",") if word for n in _match_name(word, names, "choice")
    )
    return dict.fromkeys(functions, frozenset(names) - listed if tokens.startswith("^") else listed)


def _match_name(word: str, names: Sequence[str], what: str) -> tuple[str, ...]:
    found = tuple(name for name in names if name.lower() == word.lower())
    if not found:
        raise _Refused(f"{word!r} is not a known {what}; valid {what}s are {', '.join(names)}")
    return found


def _old(text: str, names: Sequence[str]) -> Pin:
    words = [word for word in text.removeprefix("^").split(",") if word]
    by_name = {name.lower(): name for name in names}
    listed = frozenset(by_name[word.lower()] for word in words if word.lower() in by_name)
    left = frozenset(names) - listed if text.startswith("^") else listed
    unknown = tuple(word for word in words if word.lower() not in by_name)
    return Pin(dict.fromkeys(FUNCTIONS, left), ignored=unknown)


def implemented(function: str, version: Version | None = None) -> frozenset[str]:
    """Return the algorithms that NCCL implements for a collective."""
    if function in ("Broadcast", "Reduce"):
        return _ONLY_RING
    if function == "AllReduce":
        return frozenset(ALGORITHMS) - {"PAT"}
    found = {"Ring", "CollNetDirect"}
    found |= {"PAT"} if reaches(version, _PAT) else set()
    return frozenset(found | ({"NVLS"} if reaches(version, _NVLS_GATHERS) else set()))


def stranded(
    algorithms: Pin, protocols: Pin, lacking: frozenset[str] = frozenset(), version: Version | None = None
) -> tuple[str, ...]:
    """Return the functions without a usable algorithm and protocol, whose calls fail.

    Before 2.24 only those without a protocol, because Ring remained.
    """
    if not reaches(version, _GRAMMAR):
        return tuple(name for name in FUNCTIONS if not protocols.kept.get(name, True))
    return tuple(
        name
        for name in FUNCTIONS
        if not _is_usable(
            (algorithms.kept.get(name, frozenset(ALGORITHMS)) & implemented(name, version)) - lacking,
            protocols.kept.get(name, frozenset(PROTOCOLS)),
        )
    )


def _is_usable(algorithms: frozenset[str], protocols: frozenset[str]) -> bool:
    """Return whether a combination works: Tree and Ring have every protocol, the others Simple
    (src/graph/tuning.cc).
    """
    return bool(algorithms and ("Simple" in protocols or (protocols and algorithms & frozenset(_ALL_PROTOCOLS))))


def forces_ll128(protocols: Pin) -> bool:
    """Return whether the user enables LL128 for some function, also by excluding others.

    NCCL then does not check whether it is safe.
    """
    return any("LL128" in left for left in protocols.kept.values())
