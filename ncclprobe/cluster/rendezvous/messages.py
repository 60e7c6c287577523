"""Define the messages between a node and rank 0, and their limits.

::

    node     {"hello": Hello}
    rank 0   {"go": true}                    when it has room for a capture; or {"refused": why}
    node     {"capture": TEXT, "more": true} … {"capture": TEXT, "more": false}
    rank 0   {"welcome": true}
    node     {"ping": N}                     several times
    rank 0   {"pong": N, "wall_s": SECONDS}
    node     {"ready": true}
    rank 0   {"listen": KEY}                the key of the mesh, sealed: see Wire.seal
    node     {"listening": true}
    rank 0   {"plan": …}                    once more for what was doubtful
    node     {"samples": {NAME: …}}
    rank 0   {"rails": RailsOrder}           several times, if rails are tried: ncclprobe.cluster.rails.node
    node     {"samples": {"rails": …}}
    rank 0   {"leave": Leave}
"""

from typing import Any, TypeVar

import msgspec

from ncclprobe.model.errors import NcclprobeError
from ncclprobe.model.values import Struct
from ncclprobe.wire import WireError

T = TypeVar("T")

CHUNK_CHARS = 128 << 10
"""Characters of a capture in one message."""
CHUNK_BYTES = 12 * CHUNK_CHARS + 100
"""Largest JSON of a chunk: a character outside the basic plane takes two escapes of six bytes."""


class Refused(NcclprobeError):
    """Rank 0 answered and refuses this node; the message is its reason."""


class Hello(Struct, frozen=True):
    """A node's stated identity. `id` is drawn anew by each process; `listeners` is for the mesh, opaque here."""

    id: str
    node_rank: int
    name: str
    listeners: tuple[dict[str, Any], ...] = ()


class Leave(Struct, frozen=True):
    """A node's exit code, and one line with the reason."""

    exit_code: int
    line: str = ""


def parse(message: dict[str, Any], key: str, kind: type[T]) -> T:
    """Return `message[key]` as `kind`. Raises WireError (garbled), and Refused if the message is a refusal."""
    if isinstance(why := message.get("refused"), str):
        raise Refused(why)
    try:
        return msgspec.convert(message.get(key), kind)
    except msgspec.ValidationError as error:
        raise WireError("garbled", f"sent an invalid {key}: {error}") from None
