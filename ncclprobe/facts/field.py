"""One field of a fact: its value, or why it is unknown. One refused file must not hide the rest of a device."""

from collections.abc import Callable
from typing import TypeVar

from ncclprobe.host import Host
from ncclprobe.model.errors import HostError, Missing, ParseError
from ncclprobe.model.snapshot import Absent

T = TypeVar("T")


def attempt(work: Callable[[], T]) -> T | Absent:
    """Return the result of `work`, or Absent with the reason if the host refused or a text did not parse."""
    try:
        return work()
    except (HostError, ParseError) as error:
        return Absent(str(error), type(error).__name__)


def learn(host: Host, parse: Callable[[str], T], *question: str) -> T | Absent:
    """Ask the host one question and parse the answer, or return Absent with the reason."""
    return attempt(lambda: parse(host.ask(*question)))


def missing(field: object) -> bool:
    """Return whether `field` is Absent because the file does not exist, rather than because access was refused."""
    return isinstance(field, Absent) and field.refused == Missing.__name__
