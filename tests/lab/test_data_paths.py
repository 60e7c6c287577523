"""Data paths between hosts: one export over sshfs (FUSE) on each, and what goes wrong with one of them."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from .hosts import Host, Lab, why_not
from .processes import Completed, Running
from .run import ended

SFTP = Path("/usr/lib/openssh/sftp-server")
PORT = 29533
TOKEN = {"NCCLPROBE_TOKEN": "of the paths of this lab alone"}
UP_S = 10.0


def _why_not() -> str:
    missing = "" if SFTP.exists() and Path("/dev/fuse").exists() else "needs openssh-sftp-server and /dev/fuse"
    return why_not("sshfs") or missing


pytestmark = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "-")


class Share:
    """An export, and a mount point of one name on every host: `/…/data`."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.export, self.point, self.folder = lab, folder / "export", folder / "data", folder
        for each in (self.export, self.point):
            each.mkdir()
        for number in range(20):
            (self.export / f"shard-{number}.bin").write_bytes(bytes([number]) * 1000)
        self.server = folder / "server"
        self.server.write_text(f'#!/bin/sh\necho $$ >"{folder}/pid-$NCCLPROBE_LAB_HOST"\nexec {SFTP}\n')
        self.server.chmod(0o755)
        self.clients: dict[str, Running] = {}

    def mount(self, host: Host, *options: str, export: Path | None = None, source: str = "fs1") -> None:
        words = ["-f", "-o", ",".join(("ssh_command=" + str(self.server), "cache=no", *options))]
        env = {"NCCLPROBE_LAB_HOST": host.name}
        self.clients[host.name] = host.start(
            ["sshfs", *words, f"{source}:{export or self.export}", str(self.point)], env
        )
        end_s = time.monotonic() + UP_S
        while "fuse.sshfs" not in host.must("cat", "/proc/self/mountinfo") and time.monotonic() < end_s:
            time.sleep(0.02)

    def signal_server(self, host: Host, number: int) -> None:
        os.kill(int((self.folder / f"pid-{host.name}").read_text()), number)


@pytest.fixture
def share(tmp_path: Path) -> Iterator[Share]:
    with Lab(hosts=3) as lab:
        made = Share(lab, tmp_path)
        yield made
        for host in lab.hosts:
            with contextlib.suppress(OSError, ValueError):
                made.signal_server(host, signal.SIGCONT)


def doctors(lab: Lab, *paths: str, timeout_s: float = 60.0) -> dict[str, Running]:
    """The doctor by hand on every host."""
    jobs = {}
    for host in lab.hosts:
        words = ["--nnodes", str(len(lab.hosts)), "--node-rank", str(host.number - 1), "--master-addr", "n0"]
        words += ["--master-port", str(PORT), "--json", str(lab.folder / f"{host.name}.json"), "--no-color"]
        words += [word for path in paths for word in ("--path", path)]
        words += ["--select", "data.*", "--timeout", f"{timeout_s:g}"]
        jobs[host.name] = host.start([sys.executable, "-m", "ncclprobe.doctor", "--backend", "gloo", *words], TOKEN)
    return jobs


def told(lab: Lab, *uses: str, point: Path) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Completed]]:
    """What the doctors' report on node 0 finds that is no note, by check; and how each doctor ended."""
    done = ended(doctors(lab, *(f"{point}:{use}" for use in uses)), time.monotonic() + 80.0)
    assert not any(each.timed_out for each in done.values()), done
    report = json.loads((lab.folder / "n0.json").read_text())
    found: dict[str, list[dict[str, Any]]] = {}
    for check in report["checks"]:
        assert check["status"] != "unknown" or check["id"] == "data.checkpoint", check
        bad = [one for one in check["findings"] if one["severity"] != "note"]
        if bad:
            found[check["id"]] = bad
    return found, done


def nodes(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[list[str]]]:
    return {name: [each["nodes"] for each in every] for name, every in found.items()}


def left(share: Share) -> list[str]:
    return [name for name in os.listdir(share.export) if name.startswith(".ncclprobe")]  # noqa: PTH208


def test_nothing_is_said_of_an_export_that_all_have(share: Share) -> None:
    for host in share.lab.hosts:
        share.mount(host)
    found, done = told(share.lab, "read", "checkpoint", point=share.point)
    assert found == {}
    assert {each.code for each in done.values()} == {0}
    assert left(share) == []
    assert len(os.listdir(share.export)) == 20  # noqa: PTH208


def test_a_node_without_the_mount_is_named(share: Share) -> None:
    for host in share.lab.hosts[:2]:
        share.mount(host)
    found, _ = told(share.lab, "read", "checkpoint", point=share.point)
    assert nodes(found) == {"data.file-system": [["n2"]]}
    assert left(share) == []
    assert os.listdir(share.point) == []  # noqa: PTH208
