"""What variables do, each in a sentence of ours, with a value that is right: ``meanings.csv`` in this folder.

Apart from the table of :mod:`.parameters`, because only people read it and the doctor does without. Sources: the user
guide of NCCL (env.rst) or of whose variable it is where `documented`, else the code that reads it.
"""

import csv
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from ncclprobe.model.values import Struct


class Meaning(Struct, frozen=True):
    """What a variable does. `example` is a value as healthy jobs have it, `documented`: its maker describes it."""

    does: str
    example: str
    documented: bool


@cache
def meanings() -> Mapping[str, Meaning]:
    """Return the variables that are described, by name."""
    data = pkgutil.get_data("ncclprobe.nccl", "meanings.csv")
    _header, *rows = csv.reader((data or b"").decode().splitlines())
    return MappingProxyType({name: Meaning(does, example, bool(said)) for name, said, example, does in rows})
