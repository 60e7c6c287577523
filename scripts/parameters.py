#!/usr/bin/env python3
"""Digest which variables a release of NCCL reads, and what changed since another release or since our table.

    scripts/parameters.py 2.32.3                 # the digest of NVIDIA's wheel as a table: name, reader, default, where
    scripts/parameters.py libnccl.so.2           # the same of a library at hand
    scripts/parameters.py 2.30.7 2.32.3          # what changed between two releases: variables, then texts
    scripts/parameters.py 2.32.3 --table         # where ncclprobe/nccl/parameters.csv and the release differ

The public sources lag behind the wheels, the wheels keep their symbols: each variable is read by a call of
``ncclLoadParam(name, default, …)``, of ``ncclGetEnv(name)``, of ``getenv(name)``, or by a static ``ncclParam`` object
made from its key, and the arguments stand in the instructions before the call (x86-64; `objdump` of binutils is
needed). A name that only stands in the data and that nothing is seen to read is "named": most are constants.

``ncclprobe/nccl/parameters.csv`` is kept by hand: read the difference, look up what each new name does (NVIDIA's
documentation, the function that reads it), and write its row with that source.
"""

import argparse
import csv
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from oracle_wheels import library

from ncclprobe.model.values import Struct

TABLE = Path(__file__).resolve().parent.parent / "ncclprobe" / "nccl" / "parameters.csv"
DISASSEMBLY_DEADLINE_S = 300

READERS = (  # the function's symbol begins so, what we call it, the register of the name and of the default
    ("_Z13ncclLoadParam", "parameter", "rdi", "rsi"),
    ("_Z10ncclGetEnvPKc", "text", "rdi", None),
    ("_ZN9ncclParamI", "object", "rsi", None),
    ("_Z12ncclGetLevelPiPKcS1_", "level", "rsi", None),  # the older switch, then the level
    ("_Z12ncclGetLevelPiPKcS1_", "level", "rdx", None),
    ("getenv@plt", "getenv", "rdi", None),
    ("secure_getenv@plt", "getenv", "rdi", None),
)
CALLER_SAVED = ("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11")

NAME = re.compile(rb"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\Z")
STANDING_NAME = re.compile(rb"(?<=\0)(?:OFI_)?NCCL_[A-Z0-9_]+(?=\0)")
TEXT = re.compile(rb"(?<=\0)[\x20-\x7e\n\t]{12,400}(?=\0)")
FUNCTION = re.compile(r"[0-9a-f]{8,} <(.+)>:")
CALL = re.compile(r"\t(?:call|jmp) +[0-9a-f]+ <([^>+]+)>")
ADDRESS = re.compile(r"\tlea +0x[0-9a-f]+\(%rip\),%(\w+) +# ([0-9a-f]+)")
ADDRESS_BACK = re.compile(r"\tlea +-0x[0-9a-f]+\(%rip\),%(\w+) +# ([0-9a-f]+)")
NUMBER = re.compile(r"\t(?:mov|movabs) +\$(0x[0-9a-f]+),%(\w+)")
COPY = re.compile(r"\tmov +%(\w+),%(\w+)")
ZERO = re.compile(r"\txor +%(\w+),%\1")


class Read(Struct, frozen=True):
    """One variable that a release reads: the kind of reader, the default where it is a number, the function."""

    name: str
    reader: str
    default: int | None
    function: str


class Digest(Struct, frozen=True):
    """A release: what it reads, names that only stand in its data, and the texts it may print."""

    reads: dict[str, Read]
    named: frozenset[str]
    texts: frozenset[str]


class Image:
    """The bytes of a library, found by the address at which they are loaded (ELF64, little endian)."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise SystemExit(f"{path}: not a 64-bit little-endian ELF file")
        (offset,) = struct.unpack_from("<Q", self.data, 32)
        size, count = struct.unpack_from("<HH", self.data, 54)
        self.segments = [self._segment(offset + size * index) for index in range(count)]

    def _segment(self, at: int) -> tuple[int, int, int]:
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", self.data, at)
        return (address, offset, length) if kind == 1 else (0, 0, 0)

    def text(self, address: int) -> bytes:
        """Return the zero-terminated text at `address`; empty where none is mapped."""
        for start, offset, length in self.segments:
            if start <= address < start + length:
                at = offset + address - start
                return self.data[at : self.data.find(b"\0", at, at + 4096)]
        return b""

    def constants(self) -> bytes:
        """Return the section of read-only data: .rodata, where the compiler puts every text."""
        (table,) = struct.unpack_from("<Q", self.data, 40)
        size, count, names = struct.unpack_from("<HHH", self.data, 58)
        headers = [struct.unpack_from("<IIQQQQ", self.data, table + size * index) for index in range(count)]
        labels = headers[names][4]
        for label, _, _, _, offset, length in headers:
            if self.data.startswith(b".rodata\0", labels + label):
                return self.data[offset : offset + length]
        return b""


def whole(register: str) -> str:
    """Return the 64-bit register that `register` is a part of: "esi" is in "rsi", "r8d" in "r8"."""
    if register.startswith("e"):
        return "r" + register[1:]
    return register[:-1] if register.startswith("r") and register.endswith("d") and register[1].isdigit() else register


def disassembled(path: Path) -> list[str]:
    """Return the instructions of `path`, one a line. Raises CalledProcessError, TimeoutExpired."""
    command = ["objdump", "--disassemble", "--no-show-raw-insn", "--section=.text", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DISASSEMBLY_DEADLINE_S)
    return done.stdout.splitlines()


def reads(lines: list[str], image: Image) -> Iterator[Read]:
    """Follow constants through the registers, in the order of the text, and yield each call of a reader."""
    function, known = "", dict[str, int]()
    for line in lines:
        if match := FUNCTION.match(line):
            function, known = match[1], {}
        elif match := CALL.search(line):
            yield from called(match[1], known, function, image)
            if "\tcall" in line:
                known = {name: value for name, value in known.items() if name not in CALLER_SAVED}
        else:
            follow(line, known)


def follow(line: str, known: dict[str, int]) -> None:
    """Note what one instruction puts into a register, where that is a constant."""
    if match := ADDRESS.search(line) or ADDRESS_BACK.search(line):
        known[match[1]] = int(match[2], 16)
    elif match := NUMBER.search(line):
        known[whole(match[2])] = signed(int(match[1], 16), match[2])
    elif match := COPY.search(line):
        source, target = whole(match[1]), whole(match[2])
        known.pop(target, None)
        if source in known:
            known[target] = known[source]
    elif match := ZERO.search(line):
        known[whole(match[1])] = 0


def signed(number: int, register: str) -> int:
    """Return `number` as a signed one of 64 bits; writing a 32-bit register clears the upper half."""
    return number - (1 << 64) if number >> 63 and not register.startswith("e") else number


def called(symbol: str, known: dict[str, int], function: str, image: Image) -> Iterator[Read]:
    """Yield the variable that a call of `symbol` reads, if it is a reader and its name is known."""
    for prefix, reader, register, default in READERS:
        if symbol.startswith(prefix) and register in known:
            name = image.text(known[register])
            if NAME.match(name):
                yield Read(name.decode(), reader, known.get(default) if default else None, plain(function))


def plain(symbol: str) -> str:
    """Return the readable part of a mangled name: its first identifier."""
    match = re.match(r"_Z[A-Z]*?(\d+)", symbol)
    return symbol[match.end() : match.end() + int(match[1])] if match else symbol


def digest(path: Path) -> Digest:
    """Digest the library at `path`."""
    image = Image(path)
    found: dict[str, Read] = {}
    for read in reads(disassembled(path), image):
        if found.get(read.name) is None or found[read.name].default is None:
            found[read.name] = read
    data = image.constants()
    named = {match.group().decode() for match in STANDING_NAME.finditer(data)}
    texts = {match.group().decode() for match in TEXT.finditer(data) if b" " in match.group()}
    return Digest(dict(sorted(found.items())), frozenset(named - found.keys()), frozenset(texts))


def release(name: str) -> Digest:
    """Digest a release by number (from NVIDIA's wheel, cached) or a library by path."""
    return digest(Path(name) if "/" in name or Path(name).exists() else library(name))


def print_digest(one: Digest) -> None:
    """Print a release as a table."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("name", "reader", "default", "function"))
    for read in one.reads.values():
        writer.writerow((read.name, read.reader, "" if read.default is None else read.default, read.function))
    for name in sorted(one.named):
        writer.writerow((name, "named", "", ""))


def print_changes(old: Digest, new: Digest) -> None:
    """Print what is read in one release alone, whose default changed, and the texts that are new or gone."""
    for read in (new.reads[name] for name in new.reads if name not in old.reads):
        print(f"+ {read.name}  {read.reader}  default {read.default}  in {read.function}")
    for name in old.reads:
        if name not in new.reads:
            print(f"- {name}{'  (still named)' if name in new.named else ''}")
        elif old.reads[name].default != new.reads[name].default:
            print(f"~ {name}  default {old.reads[name].default} -> {new.reads[name].default}")
    for sign, texts in (("+", new.texts - old.texts), ("-", old.texts - new.texts)):
        for text in sorted(texts):
            print(f"{sign} text {text!r}")


def print_against_table(one: Digest) -> None:
    """Print what the table lacks, and what it says is read and this release does not read."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    for read in one.reads.values():
        row = rows.get(read.name)
        if row is None:
            print(f"+ {read.name}  {read.reader}  default {read.default}  in {read.function}")
        elif row["gone"]:
            print(f"! {read.name}  is read, and the table says gone since {row['gone']}")
        elif read.default is not None and not re.match(rf"{read.default}(?!\d)", row["default"]):
            print(f"~ {read.name}  default {row['default']!r} in the table, {read.default} in the library")
    for name, row in rows.items():
        if row["owner"] == "nccl" and not row["gone"] and name not in one.reads:
            print(f"- {name}{'  (still named)' if name in one.named else ''}")


def main() -> None:
    """Print one release, two releases' difference, or one against the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", nargs="+", help="One or two releases, by number, or a library by path.")
    parser.add_argument("--table", action="store_true", help="Compare with ncclprobe/nccl/parameters.csv.")
    asked = parser.parse_args()
    if len(asked.release) > 2 or (asked.table and len(asked.release) > 1):
        parser.error("name one release, or two without --table")
    digests = [release(name) for name in asked.release]
    if asked.table:
        print_against_table(digests[0])
    elif len(digests) == 2:
        print_changes(*digests)
    else:
        print_digest(digests[0])


if __name__ == "__main__":
    main()
