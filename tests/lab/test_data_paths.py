"""Data paths between hosts: one export over sshfs (FUSE) on each, and what goes wrong with one of them."""

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
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

    def mount(
        self, host: Host, *options: str, export: Path | None = None, source: str = "fs1", named: Path | None = None
    ) -> None:
        """Mount an export on a host; `named`: as what the server is to have it."""
        if named and export:
            host.must("mount", "--bind", str(export), str(named))
            export = named
        words = ["-f", "-o", ",".join(("ssh_command=" + str(self.server), "cache=no", *options))]
        env = {"NCCLPROBE_LAB_HOST": host.name}
        self.clients[host.name] = host.start(
            ["sshfs", *words, f"{source}:{export or self.export}", str(self.point)], env
        )
        end_s = time.monotonic() + UP_S
        started = self.folder / f"pid-{host.name}"  # the server, which may come up after the mount
        while not (
            f" {self.point} " in host.must("cat", "/proc/self/mountinfo") and started.exists() and started.read_text()
        ):
            assert time.monotonic() < end_s, f"{host.name}: sshfs did not mount"
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
        bad = [one for one in check["findings"] if one["severity"] != "note"]
        if bad:
            found[check["id"]] = bad
    return found, done


def until(holds: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + 20.0
    while not holds():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


def left(share: Share) -> list[str]:
    return [name for name in os.listdir(share.export) if name.startswith(".ncclprobe")]  # noqa: PTH208


def healthy(share: Share) -> None:
    for host in share.lab.hosts:
        share.mount(host)


def others(share: Share) -> Host:
    """Mount the export on all hosts but the last, and return that one."""
    for host in share.lab.hosts[:-1]:
        share.mount(host)
    return share.lab.hosts[-1]


def not_mounted(share: Share) -> None:
    others(share)


def missing(share: Share) -> None:
    others(share).must("mount", "-t", "tmpfs", "tmpfs", str(share.folder))


def stale(share: Share) -> None:
    """A copy in which one file has another name, from a server of the same name."""
    copy = share.folder / "copy"
    shutil.copytree(share.export, copy)
    (copy / "shard-3.bin").rename(copy / "shard-3.bin.tmp")
    share.mount(others(share), export=copy, named=share.export)


def wrong_mount(share: Share) -> None:
    other = share.folder / "scratch"
    other.mkdir()
    share.mount(others(share), export=other, source="fs2")


def read_only(share: Share) -> None:
    share.mount(others(share), "ro")


def full_on_one(share: Share) -> None:
    host = others(share)
    host.must("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(share.point))
    host.run(["dd", "if=/dev/zero", f"of={share.point}/filler", "bs=4k", "count=64"])


def hung(share: Share) -> None:
    healthy(share)
    share.signal_server(share.lab.hosts[-1], signal.SIGSTOP)


def other_users(share: Share) -> None:
    share.mount(others(share), "uid=65534", "gid=65534")


def late(share: Share) -> None:
    """One host's kernel keeps for seconds that a file is not there, as NFS does."""
    share.mount(others(share), "negative_timeout=4")


FAULTS: dict[str, tuple[Callable[[Share], None], set[str]]] = {
    "not mounted on one node": (not_mounted, {"data.file-system", "data.content"}),
    "missing on one node": (missing, {"data.path"}),
    "stale content on one node": (stale, {"data.content", "data.shared"}),
    "a wrong mount on one node": (wrong_mount, {"data.file-system", "data.content", "data.shared"}),
    "read-only on one node": (read_only, {"data.path", "data.file-system"}),
    "full on one node": (full_on_one, {"data.file-system", "data.content", "data.space", "data.write"}),
    "hung on one node": (hung, {"data.path"}),
    "another uid mapping on one node": (other_users, {"data.owner"}),
    "a checkpoint that one node sees late": (late, {"data.checkpoint"}),
}


def test_nothing_is_said_of_an_export_that_all_have(share: Share) -> None:
    healthy(share)
    found, done = told(share.lab, "read", "checkpoint", point=share.point)
    assert found == {}
    assert {name: each.code for name, each in done.items()} == {"n0": 0, "n1": 0, "n2": 0}
    assert left(share) == []
    assert len(os.listdir(share.export)) == 20  # noqa: PTH208


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_on_its_node_and_on_no_other(share: Share, fault: str) -> None:
    make, expected = FAULTS[fault]
    make(share)
    found, done = told(share.lab, "read", "checkpoint", point=share.point)
    assert set(found) == expected
    if any(each["severity"] == "fail" for every in found.values() for each in every):
        assert [done[name].code for name in ("n0", "n1", "n2")] == [4, 0, 4]
    assert {tuple(each["nodes"]) for every in found.values() for each in every} == {("n2",)}
    assert left(share) == []


def test_a_server_that_hangs_while_nodes_write_is_named_and_holds_no_one(share: Share) -> None:
    healthy(share)
    jobs = doctors(share.lab, f"{share.point}:checkpoint")
    until(lambda: any("-n2-" in name for name in left(share)), "n2 has written")
    share.signal_server(share.lab.hosts[-1], signal.SIGSTOP)
    done = ended(jobs, time.monotonic() + 80.0)
    assert not any(each.timed_out for each in done.values()), done
    checks = json.loads((share.lab.folder / "n0.json").read_text())["checks"]
    blamed = {
        name for check in checks for one in check["findings"] if one["severity"] != "note" for name in one["nodes"]
    }
    assert blamed == {"n2"}
    assert [name for name in left(share) if "-n2-" not in name] == []


def test_what_a_killed_node_leaves_is_removed_by_its_next_run(share: Share) -> None:
    healthy(share)
    jobs = doctors(share.lab, f"{share.point}:checkpoint")
    until(lambda: any("-n2-" in name for name in left(share)), "n2 has written")
    jobs["n2"].kill()
    ended(jobs, time.monotonic() + 80.0)
    assert ["-n2-" in name for name in left(share)] == [True]
    told(share.lab, "checkpoint", point=share.point)
    assert left(share) == []
