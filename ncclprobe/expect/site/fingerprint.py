"""Which part of a fingerprint changed, in words: numbers of another machine, topology or software are no baseline."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ncclprobe.model.measurement import Fingerprint


def changes(old: Fingerprint | None, new: Fingerprint | None) -> tuple[str, ...]:
    """Return what differs, ``gpu: 8 x A -> 8 x B``. A part that only one of the two knows is no difference."""
    if old is None or new is None:
        return ()
    return (
        *_changed(old.machine, new.machine),
        *([f"topology: {old.topology} -> {new.topology}"] if _differ(old.topology, new.topology) else []),
        *_changed(old.software, new.software),
    )


def unknown(old: Fingerprint | None, new: Fingerprint | None) -> tuple[str, ...]:
    """Return the parts that only one of the two has: whether they changed is not known."""
    a, b = _flat(old), _flat(new)
    return tuple(name for name in (*a, *b) if (name in a) != (name in b))


def same_machine(old: Fingerprint | None, new: Fingerprint | None) -> bool:
    """Return whether machine and topology agree in all that both know, and they know something of each other.

    Software may differ: that is what many want to compare.
    """
    if old is None or new is None:
        return False
    common = set(old.machine) & set(new.machine)
    return bool(common) and not _changed(old.machine, new.machine) and not _differ(old.topology, new.topology)


def digest(devices: Any) -> str:
    """Return twelve hexadecimal digits of `devices`, any JSON: what the topology is told apart by."""
    text = json.dumps(devices, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _flat(print_: Fingerprint | None) -> dict[str, str]:
    if print_ is None:
        return {}
    topology = {"topology": print_.topology} if print_.topology else {}
    return {**print_.machine, **topology, **print_.software}


def _differ(old: str | None, new: str | None) -> bool:
    return old is not None and new is not None and old != new


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return list(_words(old, new))


def _words(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in old:
        if name in new and old[name] != new[name]:
            yield f"{name}: {old[name]} -> {new[name]}"
