"""RDMA devices that are none: what calls the verbs library, above a ``libibverbs.so.1`` of our own (fake_verbs.c)."""

import asyncio
import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ncclprobe.model.rails import RailOutcome, RailPort, RailTest
from ncclprobe.probes.verbs.pair import run_rail
from ncclprobe.wire import WireError

HERE = Path(__file__).parent
HEADER = "infiniband/verbs.h"
LINK_LOCAL, V1, V2 = "fe80" + 11 * "00", 1, 2
QUICK = RailTest(round_trips=20, message_bytes=64 << 10, messages=24, directions=("out", "in"), chain=8, seconds=5)


def build(folder: Path) -> Path:
    """Compile the libraries into `folder`. Skips where the compiler or rdma-core's header is missing."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed: the fake libibverbs.so.1 cannot be built")
    found = subprocess.run(["gcc", "-E", "-include", HEADER, "-x", "c", "/dev/null"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"{HEADER} is not there (Debian: libibverbs-dev): the fake libibverbs.so.1 cannot be built")
    for source, name in (("fake_verbs.c", "libibverbs.so.1"), ("fake_cuda.c", "libcuda.so.1")):
        flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", f"-Wl,-soname,{name}"]
        subprocess.run(["gcc", *flags, "-o", str(folder / name), str(HERE / source)], check=True)
    return folder


def device(name: str, number: int, faults: str = "", **settings: object) -> str:
    """Describe a RoCE device: link-local GIDs at index 0 and 1, those of 10.0.0.`number` at 2 and 3; v1, then v2."""
    address = f"00000000000000000000ffff0a0000{number:02x}"
    gids = {"gid0": f"{LINK_LOCAL}0000{number:02x}/1", "gid1": f"{LINK_LOCAL}0000{number:02x}/2"}
    gids |= {"gid2": f"{address}/1", "gid3": f"{address}/2"}
    words = {**gids, **settings, **({"faults": faults} if faults else {})}
    return " ".join((name, *(f"{key}={value}" for key, value in words.items())))


def infiniband(name: str, lid: int, faults: str = "", **settings: object) -> str:
    """Describe an InfiniBand device."""
    return device(name, lid, faults, **{"layer": 1, "lid": lid, "gid0": f"{LINK_LOCAL}0000{lid:02x}/0", **settings})


def environment(library: Path, folder: Path, *devices: str, faults: str = "") -> dict[str, str]:
    """Return the variables by which a process finds the library and its devices."""
    return {
        "LD_LIBRARY_PATH": str(library), "FAKE_VERBS_FABRIC": str(folder / "fabric"),
        "FAKE_VERBS_DEVICES": ";".join(devices), "FAKE_VERBS_FAULTS": faults}  # fmt: skip


@contextlib.contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Have `values` in this process's environment, for the children that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        yield


class Channel:
    """One end of a channel within this process: what a Wire is between two. `silent`: what it takes is lost."""

    peer = "127.0.0.1"

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.other: Channel = self
        self.silent = False

    async def send(self, message: Mapping[str, Any], deadline: float) -> None:
        """Hand it over."""
        if not self.silent:
            self.other.inbox.put_nowait(dict(message))

    async def receive(self, deadline: float) -> dict[str, Any]:
        """Return the next. Raises WireError: silent."""
        try:
            return await asyncio.wait_for(self.inbox.get(), max(0.0, deadline - time.monotonic()))
        except (asyncio.TimeoutError, TimeoutError):
            raise WireError("silent", "said nothing") from None


def channels() -> tuple[Channel, Channel]:
    """Return both ends of one."""
    one, other = Channel(), Channel()
    one.other, other.other = other, one
    return one, other


async def both(
    one: RailPort, other: RailPort, test: RailTest = QUICK, patience_s: float = 60.0
) -> tuple[RailOutcome, RailOutcome]:
    """Test the rail between two ports of this process's environment; the first end leads."""
    here, there = channels()
    deadline = time.monotonic() + patience_s
    return await asyncio.gather(
        run_rail(one, test, leads=True, channel=here, deadline=deadline),
        run_rail(other, test, leads=False, channel=there, deadline=deadline),
    )
