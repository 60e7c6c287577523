"""A doctor that waits for other nodes ends at a signal: no traceback, nothing judged, nothing left behind."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ncclprobe.cluster.gather import interruptible
from ncclprobe.model.findings import ExitCode
from ncclprobe.signals import Interrupted

ROOT = Path(__file__).resolve().parents[3]


def listens(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_node_0_while_it_waits(number: signal.Signals, tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    flags = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    secret = {"NCCLPROBE_TOKEN": "a secret of this test", "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "ncclprobe.doctor", "--backend", "gloo", *flags],
        env={**os.environ, **secret},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as doctor:
        end_s = time.monotonic() + 60.0
        while not listens(port) and time.monotonic() < end_s:
            time.sleep(0.02)
        doctor.send_signal(number)
        out, err = doctor.communicate(timeout=60)
    assert (doctor.returncode, out, err) == (128 + number, "", "ncclprobe: interrupted; nothing was judged\n")
    assert list(tmp_path.iterdir()) == []


def test_a_cancellation_that_is_lost_on_its_way_is_made_again() -> None:
    async def work() -> ExitCode:
        os.kill(os.getpid(), signal.SIGUSR1)
        with contextlib.suppress(asyncio.CancelledError):  # as asyncio.wait_for does where its result is there by then
            await asyncio.sleep(60)
        await asyncio.sleep(60)
        return ExitCode.OK

    with pytest.raises(Interrupted):
        asyncio.run(interruptible(work(), [signal.SIGUSR1]))
