"""What one fault of a machine is."""

from ncclprobe.model.values import Struct
from zoo.changes import Change


class Plant(Struct, frozen=True):
    """One fault of the machine `like`. `finding` must be found; `also` are its other true consequences above a note.

    Nothing else above a note is found. `renamed`: in all questions and answers the first name is the second.
    """

    name: str
    planted: str
    finding: str
    changes: tuple[Change, ...]
    like: str = "hgx-h100"
    also: tuple[str, ...] = ()
    renamed: tuple[str, str] = ("", "")


def plant(name: str, planted: str, finding: str, *changes: Change) -> Plant:
    return Plant(name, planted, finding, changes)
