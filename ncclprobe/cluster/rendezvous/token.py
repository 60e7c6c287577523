"""Derive the secret that the processes of one run share."""

import hashlib
import json
import os
from collections.abc import Mapping

from ncclprobe.model.values import Struct

VARIABLE = "NCCLPROBE_TOKEN"


class Token(Struct, frozen=True):
    """`secret` keys every signature; `origin` says where it is from, and what it guards against."""

    secret: bytes
    origin: str

    def __repr__(self) -> str:
        return f"Token({self.origin})"


def run_token(variables: Mapping[str, str | None], run_id: str, port: int) -> Token:
    """Return the token of NCCLPROBE_TOKEN, or one from the job's id, its user and its port.

    MASTER_ADDR is no part of it: one node may call rank 0 by name and another by number.
    """
    if given := variables.get(VARIABLE):
        return Token(hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest(), VARIABLE)
    known = json.dumps([run_id, os.getuid(), port])
    what = "the job's id, user and port" if run_id else "user and port"
    return Token(
        hashlib.sha256(f"ncclprobe {known}".encode()).digest(),
        f"derived from {what}, against mix-ups only ({VARIABLE} is for more)",
    )
