"""What an end of a rail makes of another end that is killed, stopped, silent or talks nonsense, and of no library."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fake_verbs
import pytest
from fake_verbs import QUICK, Channel, channels, device

from ncclprobe.model.rails import RailOutcome, RailPort
from ncclprobe.model.values import asdict, replace
from ncclprobe.probes.verbs import library, pair
from ncclprobe.probes.verbs.library import Library, VerbsError
from ncclprobe.probes.verbs.pair import run_rail
from tests.each_row import each_row

LEFT, RIGHT = (RailPort(device=name, gid_index=3, timeout=6, retry_count=1) for name in ("left", "right"))
ONE_WAY = replace(QUICK, round_trips=0, directions=("out",))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_verbs.build(tmp_path_factory.mktemp("verbs"))


@each_row(("how", "kind"), [(signal.SIGKILL, "died"), (signal.SIGSTOP, "hangs")])
def test_a_process_that_is_killed_or_stopped_is_told_by_its_own_end(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals, kind: str
) -> None:
    monkeypatch.setattr(pair, "GRACE_S", 0.5)
    monkeypatch.setattr(pair, "GRACE_S", 1.0)
    started: list[int] = []

    class Noted(pair.VerbsChild):
        def _popen(self) -> socket.socket:
            ours = super()._popen()
            assert self._process
            started.append(self._process.pid)
            return ours

    async def strike(step: str) -> None:
        os.kill(started[1], how)  # the right end's: gather() starts the left one's first

    async def ends() -> list[RailOutcome]:
        here, there = channels()
        until, test = time.monotonic() + 100, replace(ONE_WAY, seconds=1.0)
        return await asyncio.gather(
            run_rail(LEFT, test, leads=True, channel=here, deadline=until),
            run_rail(RIGHT, test, leads=False, channel=there, deadline=until, before=strike),
        )

    monkeypatch.setattr(pair, "VerbsChild", Noted)
    settings = fake_verbs.environment(built, tmp_path, device("left", 1), device("right", 2))
    with fake_verbs.variables(settings):
        left, right = asyncio.run(ends())
    assert [failure.kind for failure in right.failures][:1] == [kind]
    assert {failure.kind for failure in left.failures} <= {"completion", "peer"}
    assert left.failures


def alone(built: Path, folder: Path, channel: Channel, patience_s: float) -> RailOutcome:
    """Test a rail whose other end is no more than `channel`."""
    with fake_verbs.variables(fake_verbs.environment(built, folder, device("left", 1))):
        return asyncio.run(run_rail(LEFT, QUICK, leads=True, channel=channel, deadline=time.monotonic() + patience_s))


def test_an_other_end_that_says_nothing_is_waited_for_until_the_deadline(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair, "GRACE_S", 0.2)
    outcome = alone(built, tmp_path, channels()[0], 5.0)
    assert [(failure.kind, failure.text) for failure in outcome.failures] == [("channel", "the other end said nothing")]
    assert outcome.own


@each_row(
    "message",
    [
        {"failure": {"step": "open", "kind": "gone", "text": ""}},
        {"address": {"device": "right"}},
    ],
)
def test_an_other_end_that_talks_nonsense_is_no_other_end(built: Path, tmp_path: Path, message: dict[str, Any]) -> None:
    here, there = channels()
    there.other.inbox.put_nowait(message)
    (failure,) = alone(built, tmp_path, here, 60.0).failures
    assert (failure.kind, "sent an invalid message" in failure.text) == ("channel", True)


def test_an_address_that_is_none_is_refused_before_it_reaches_the_library(built: Path, tmp_path: Path) -> None:
    """A GID that is no GID, or other queue pairs than were asked for."""
    with fake_verbs.variables(fake_verbs.environment(built, tmp_path, device("left", 1), device("right", 2))):
        left, _ = asyncio.run(fake_verbs.both(LEFT, RIGHT, ONE_WAY))
    assert left.peer
    for wrong in (replace(left.peer, gid="zz" * 16), replace(left.peer, queue_pairs=())):
        here, there = channels()
        here.inbox.put_nowait({"failure": None, "address": asdict(wrong)})
        (failure,) = alone(built, tmp_path, here, 60.0).failures
        assert failure.kind == "channel"
        assert there.inbox.qsize() >= 1


# The library.


def test_the_real_library_without_devices_says_that_there_are_none() -> None:
    """Debian's libibverbs1 without RDMA gives an empty list, or, where the kernel has no part of it, none."""
    try:
        with Library(lambda call: None).devices() as devices:
            refusal = f"this machine has RDMA devices: {', '.join(devices)}" if devices else "no RDMA device"
    except VerbsError as error:
        refusal = str(error)
    if not refusal.startswith("no RDMA device"):
        pytest.skip(refusal)


def test_a_machine_without_the_library_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "NAME", "libibverbs-that-is-not.so.1")
    with pytest.raises(VerbsError, match="no RDMA library in this image") as caught:
        Library(lambda call: None)
    assert caught.value.kind == "missing"


def test_neither_torch_nor_the_library_is_loaded_by_importing_the_engine() -> None:
    """Nor does the doctor: the engine is not even imported for it."""
    code = """
import sys
from ncclprobe.probes.verbs import pair, server
from pathlib import Path
print('torch' in sys.modules, 'libibverbs' in Path('/proc/self/maps').read_text())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_process_keeps_near_its_nic_where_it_may(tmp_path: Path) -> None:
    """In a process of its own, as the child is. What it may not use, and what no one tells, changes nothing."""
    here, whole = min(os.sched_getaffinity(0)), " ".join(map(str, sorted(os.sched_getaffinity(0))))
    lists = {"unusable": "8191\n", "empty": "\n", "garbled": "no list", "near": f"{here},8191\n"}
    for name, near in lists.items():
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device" / "local_cpulist").write_text(near)
    code = "import os, sys; from ncclprobe.probes.verbs.port import keep_near\nfor name in sys.argv[1:]:\n"
    code += "    keep_near(name); print(*sorted(os.sched_getaffinity(0)))"
    folders = [str(tmp_path / name) for name in ("absent", *lists)]
    said = subprocess.run([sys.executable, "-c", code, *folders], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [whole] * 4 + [str(here)]


def test_a_python_that_does_not_start_in_time_says_nothing_of_the_nic(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair, "START_S", 0.0)
    (failure,) = alone(built, tmp_path, channels()[0], 2.0).failures[:1]
    assert (failure.step, failure.kind, failure.call) == ("open", "late", "")
