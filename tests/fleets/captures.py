"""Captures of a fleet: one machine's many times, with what no two machines have in common made each one's own.

Names, addresses, UUIDs, GUIDs and local identifiers, the boot, times since it, memory and sockets in use, and the
counters of one port differ from node to node; whatever is of the model is the same.
"""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from ncclprobe.host.files import read
from ncclprobe.model import bounds

_UUID = re.compile(r"\b[0-9a-f]{8}(?=-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b)")
_MAC = re.compile(r"\b02:00:00:00(?=:[0-9a-f]{2}:[0-9a-f]{2}\b)")
_GUID = re.compile(r"\ba088:c203\b")
_COUNTED: dict[str, Callable[[str, int], str]] = {
    "/proc/uptime": lambda said, n: f"{864213.77 + n} {152334561.02 + n}\n",
    "/proc/meminfo": lambda said, n: re.sub(r"(MemAvailable: )(\d+)", lambda m: f"{m[1]}{int(m[2]) - 4 * n}", said),
    "/proc/net/sockstat": lambda said, n: said.replace("used 412", f"used {412 + n % 97}")}  # fmt: skip
"""Files whose numbers differ from one minute, and one machine, to the next."""


@cache
def _rows(path: Path) -> tuple[str, ...]:
    return tuple(read(path, limit=bounds.CAPTURE_BYTES).splitlines())


def capture(path: Path, number: int) -> str:
    """The text of the capture at `path` (one without ``like`` rows), as the machine with this number gives it."""
    header = json.loads(_rows(path)[0])
    name, own = str(header["node"]), f"n{number}"
    address = f"10.{1 + number // 62500}.{number // 250 % 250}.{number % 250 + 1}"

    def mine(row: str) -> str:
        row = _UUID.sub(f"{number:08x}", row.replace("10.0.0.11", address).replace(name, own))
        row = _MAC.sub(f"02:00:{number >> 8 & 255:02x}:{number & 255:02x}", row)
        return _counted(_GUID.sub(f"a088:{number & 0xFFFF:04x}", row), number)

    return "\n".join((json.dumps(header | {"node": own}), *map(mine, _rows(path)[1:]))) + "\n"


def _counted(row: str, number: int) -> str:
    """`row` with this machine's numbers, where it is a file that counts."""
    if not any(path in row for path in _COUNTED) and "/lid" not in row:
        return row
    said = json.loads(row)
    path = str(said["ask"][-1])
    if path in _COUNTED:
        said["said"] = _COUNTED[path](said["said"], number)
    elif path.endswith("/lid"):
        said["said"] = f"0x{(int(said['said'], 16) + 16 * number) % 0xC000:x}\n"
    return json.dumps(said)


def write(path: Path, count: int, folder: Path) -> list[Path]:
    """The captures of `count` machines, in `folder`."""
    paths = [folder / f"n{number}.jsonl" for number in range(count)]
    for number, each in enumerate(paths):
        each.write_text(capture(path, number))
    return paths
