"""Pickles that somebody wrote to do harm, and damage done to real ones."""

import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

_WORDS = (b"c", b"R", b"i", b"o", b"\x81", b"\x92", b"\x93", b"\x82", b"P", b"Q", b"b", b"r", b"\x8e", b"}", b".", b"0")
"""GLOBAL, REDUCE, INST, OBJ, NEWOBJ, NEWOBJ_EX, STACK_GLOBAL, EXT1, PERSID, BINPERSID, BUILD, LONG_BINPUT, …"""


class _Runs:
    """Pickles as a call of `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def hostile(mark: Path) -> dict[str, bytes]:
    """Return pickles that would create `mark`, take all memory or never end, by what they try."""
    command = f"touch {mark}"
    deep = b"\x80\x02" + b"(" * 200_000 + b"t" * 200_000
    return {
        "os.system": pickle.dumps({"entries": _Runs(os.system, command)}, 2),
        "os.system in protocol 4": pickle.dumps(_Runs(os.system, command), 4),
        "eval": pickle.dumps(_Runs(eval, f"__import__('os').system({command!r})"), 2),
        "inst": f"(S'{command}'\nios\nsystem\n.".encode(), "obj": f"(cos\nsystem\nS'{command}'\no.".encode(),
        "build": b"\x80\x02}X\x01\x00\x00\x00ac" + b"posix\nsystem\nsb.",
        "persistent": b"\x80\x02}X\x01\x00\x00\x00aX\x01\x00\x00\x00bQs.", "extension": b"\x80\x02\x82\x01.",
        "an index that wants 32 GiB": b"\x80\x02}r" + struct.pack("<I", 1 << 31) + b".",
        "a text that wants 8 EiB": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"a.",
        "an array that wants 1 TiB": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"a.",
        "a tuple in a tuple, 200,000 deep, as a key": deep[:2] + b"}" + deep[2:] + b"K\x01s.",
        "lists that double": b"\x80\x02]q\x00" + b"(h\x00h\x00h\x00h\x00e" * 1000 + b".",
        "a list that holds itself": b"\x80\x02}X\x07\x00\x00\x00entries]q\x00h\x00as.",
        "an integer of 10 MB": b"\x80\x02\x8b" + struct.pack("<i", 10_000_000) + b"\x7f" * 10_000_000 + b".",
        "a decimal of 1 MB": b"L" + b"9" * 1_000_000 + b"L\n.", "no stop": b"\x80\x02}" + b"(" * 1000,
        "JSON 100,000 deep": b'{"entries":' + b"[" * 100_000,
        "JSON with a huge number": b'{"entries":[{"record_id":' + b"9" * 100_000 + b"}]}"}  # fmt: skip


def mutated(seed: bytes, dice: random.Random) -> bytes:
    """Return `seed` with up to eight bytes, words of pickle's machine or stretches changed, cut, doubled or moved."""
    data = bytearray(seed[:200_000])
    for _ in range(dice.choice((1, 1, 1, 2, 4, 8))):
        at = dice.randrange(len(data) + 1)
        kind = dice.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] = dice.randrange(256)
        elif kind == 1:
            data[at:at] = dice.choice(_WORDS)
        elif kind == 2:
            data[at : at + 1] = dice.choice(_WORDS)
        elif kind == 3:
            del data[at : at + dice.randint(1, 64)]
        elif kind == 4:
            data[at:at] = data[at : at + dice.randint(1, 4096)]
        else:
            data[at:at] = b"cos\nsystem\n" if dice.random() < 0.5 else struct.pack("<I", dice.randrange(1 << 32))
    return bytes(data)
