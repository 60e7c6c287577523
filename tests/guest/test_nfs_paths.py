"""Faults of data paths on the kernel's own NFS: only a kernel of our own has it here, so this runs when asked for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.timeout(3700)
def test_every_fault_of_a_path_on_nfs_is_named_on_its_node() -> None:
    if os.environ.get("NCCLPROBE_GUEST") != "nfs":
        pytest.skip("boots a virtual machine for half an hour; NCCLPROBE_GUEST=nfs asks for it")
    if not shutil.which("vng"):
        pytest.skip("virtme-ng is not installed (tests/guest/run says what it needs)")
    script = Path(__file__).with_name("run")
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        [script, "nfs_paths.py"], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment
    )
    assert "every fault was named on its node" in done.stdout, done.stdout + done.stderr
