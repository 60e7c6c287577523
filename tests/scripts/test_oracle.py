"""What we say NCCL would do is what the real libnccl of one release does. All of them: scripts/oracle.py --all."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("NCCLPROBE_ORACLE") or Path.home() / ".cache" / "ncclprobe" / "oracle")


def oracle(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "oracle.py"), "--offline", "--cache", str(CACHE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=90)


def test_nccl_chooses_and_reads_what_we_predict() -> None:
    releases = sorted(path.parent.name for path in CACHE.glob("2.*/libnccl.so.2"))
    if not releases:
        pytest.skip(f"no libnccl in {CACHE} (or $NCCLPROBE_ORACLE): scripts/oracle.py 2.27.7 fetches one")
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    if subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, timeout=10).returncode != 0:
        pytest.skip("network namespaces are not allowed here")
    release = next((name for name in releases if name.startswith("2.27.")), releases[0])
    done = oracle(release, "--worlds", "8", "--cases", "25")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"200 cases, 0 disagree", done.stderr)


@pytest.mark.slow
def test_a_cache_inside_the_repository_is_refused() -> None:
    done = oracle("2.27.7", "--cache", str(ROOT / "reports"))
    assert done.returncode == 2
    assert "inside the repository" in done.stderr
