"""Processes that SIGKILL does not end: only a kernel of our own can make some, so this runs when it is asked for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.timeout(700)
def test_a_process_in_uninterruptible_sleep_holds_nobody_up() -> None:
    if not os.environ.get("NCCLPROBE_GUEST"):
        pytest.skip("boots a virtual machine; NCCLPROBE_GUEST=1 asks for it")
    if not shutil.which("vng"):
        pytest.skip("virtme-ng is not installed (tests/guest/run says what it needs)")
    script = Path(__file__).with_name("run")
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run([script], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
    assert "every step came back in time" in done.stdout, done.stdout + done.stderr
