"""One field of a fact: what was learned, or why it was not. A refused file must not hide the rest of a device."""

from collections.abc import Callable
from typing import TypeVar

from ncclprobe.host import Host
from ncclprobe.model.errors import HostError, Missing, ParseError
from ncclprobe.model.snapshot import Absent

T = TypeVar("T")


def attempt(work: Callable[[], T]) -> T | Absent:
    """Return what `work` returns, or the reason why it could not: a refusal of the host or a text not understood."""
    try:
        return work()
    except (HostError, ParseError) as error:
        return Absent(str(error), type(error).__name__)


def learn(host: Host, parse: Callable[[str], T], *question: str) -> T | Absent:
    """Return what `parse` makes of the answer to one question, or the reason why there is none."""
    return attempt(lambda: parse(host.ask(*question)))


def missing(field: object) -> bool:
    """Return whether `field` is absent because the file does not exist: often knowledge, unless it was refused."""
    return isinstance(field, Absent) and field.refused == Missing.__name__
