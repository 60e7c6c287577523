"""Whether two fingerprints are of one machine: numbers of another machine, topology or software are no baseline."""

import hashlib
import json
from typing import Any

from ncclprobe.model.measurement import Fingerprint, changes
from ncclprobe.model.values import replace


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
    return bool(common) and not changes(replace(old, software={}), replace(new, software={}))


def digest(devices: Any) -> str:
    """Return twelve hexadecimal digits of `devices`, any JSON: what the topology is told apart by."""
    text = json.dumps(devices, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _flat(print_: Fingerprint | None) -> dict[str, str]:
    if print_ is None:
        return {}
    topology = {"topology": print_.topology} if print_.topology else {}
    return {**print_.machine, **topology, **print_.software}
