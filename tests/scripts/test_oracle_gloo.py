"""What we say gloo listens on and connects is what torch does. A thousand groups: scripts/oracle_gloo.py."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_gloo_listens_and_connects_as_we_predict() -> None:
    pytest.importorskip("torch")
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    if subprocess.run(["unshare", "--net", "--mount", "--uts", "true"], capture_output=True, timeout=10).returncode:
        pytest.skip("network namespaces are not allowed here")
    command = [sys.executable, str(ROOT / "scripts" / "oracle_gloo.py"), "--worlds", "1", "--cases", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 groups, 0 disagreements" in done.stdout
