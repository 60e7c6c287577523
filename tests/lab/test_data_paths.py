"""Data paths between hosts: one export over sshfs (FUSE) on each, and what goes wrong with one of them."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .hosts import Host, Lab, Running, ended, why_not
from .launchers import by_hand, findings

SFTP = Path("/usr/lib/openssh/sftp-server")
_MISSING = "" if SFTP.exists() and Path("/dev/fuse").exists() else "needs openssh-sftp-server and /dev/fuse"
_WHY_NOT = why_not("sshfs") or _MISSING
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "-")]


class Share:
    """An export, and a mount point of one name on every host: `…/data`."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.export, self.point, self.folder = lab, folder / "export", folder / "data", folder
        self.export.mkdir()
        self.point.mkdir()
        for number in range(20):
            (self.export / f"shard-{number}.bin").write_bytes(bytes([number]) * 1000)
        self.server = folder / "server"
        self.server.write_text(f'#!/bin/sh\necho $$ >"{folder}/pid-$NCCLPROBE_LAB_HOST"\nexec {SFTP}\n')
        self.server.chmod(0o755)
        self.clients: list[Running] = []

    def mount(self, *hosts: Host, export: Path | None = None, source: str = "fs1", more: str = "cache=no") -> None:
        """Mount an export on hosts, and wait until each and its server are up."""
        words = ["-f", "-o", f"ssh_command={self.server},{more}", f"{source}:{export or self.export}", str(self.point)]
        self.clients += [host.start(["sshfs", *words], {"NCCLPROBE_LAB_HOST": host.name}) for host in hosts]
        end_s = time.monotonic() + 30.0
        for host in hosts:
            started = self.folder / f"pid-{host.name}"  # the server, which may come up after the mount
            point = f" {self.point} "
            while not (point in host.must("cat", "/proc/self/mountinfo") and started.exists() and started.read_text()):
                assert time.monotonic() < end_s, f"{host.name}: sshfs mounts {self.point}"
                time.sleep(0.02)

    def signal(self, number: int, *hosts: Host) -> None:
        """Send a signal to the servers of hosts."""
        for host in hosts:
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((self.folder / f"pid-{host.name}").read_text()), number)

    def others(self) -> Host:
        """Mount the export on all hosts but the last, and return that one."""
        self.mount(*self.lab.hosts[:-1])
        return self.lab.hosts[-1]

    def close(self) -> None:
        """Let go of the servers: what waits for a stopped one cannot be ended."""
        self.signal(signal.SIGCONT, *self.lab.hosts)
        for client in self.clients:
            client.kill()

    @property
    def left(self) -> list[str]:
        """What a doctor has left in the export."""
        return [path.name for path in self.export.iterdir() if path.name.startswith(".ncclprobe")]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(hosts=3) as made:
        yield made


def codes(lab: Lab, *options: str) -> list[int]:
    """Run the doctors, and return how each ended."""
    done = ended(by_hand(lab.hosts, *options, "--select", "data.*", "--timeout", "100"), 120.0)
    assert not any(each.timed_out for each in done.values()), done
    return [each.code for each in done.values()]


def missing(share: Share) -> None:
    share.others().must("mount", "-t", "tmpfs", "tmpfs", str(share.folder))


def another_copy(share: Share) -> None:
    """A copy in which one file has another name, from a server of the same name."""
    copy = share.folder / "copy"
    shutil.copytree(share.export, copy)
    (copy / "shard-3.bin").rename(copy / "shard-3.bin.tmp")
    host = share.others()
    host.must("mount", "--bind", str(copy), str(share.export))
    share.mount(host)


def stale(share: Share) -> None:
    """One host still has the listing of before a file was added, as caches of NFS and of Lustre have."""
    host = share.others()
    share.mount(host, more="dcache_timeout=600,dcache_dir_timeout=600,dcache_link_timeout=600,cache=yes")
    host.must("ls", "-la", str(share.point))
    (share.export / "shard-20.bin").write_bytes(b"new")


def wrong_mount(share: Share) -> None:
    other = share.folder / "scratch"
    other.mkdir()
    share.mount(share.others(), export=other, source="fs2")


def hung(share: Share, everywhere: bool = False) -> None:
    share.mount(*share.lab.hosts)
    share.signal(signal.SIGSTOP, *share.lab.hosts[0 if everywhere else -1 :])


def scratch_of_each(share: Share) -> None:
    """Every host has a disk of its own there, as /scratch often is."""
    for host in share.lab.hosts:
        host.must("mount", "-t", "tmpfs", "-o", "size=16m", f"scratch-{host.name}", str(share.point))


ONE, ALL = ("n2",), ("n0", "n1", "n2")
FAULTS: dict[str, tuple[Callable[[Share], object], dict[str, tuple[str, ...]]]] = {
    "none": (lambda share: share.mount(*share.lab.hosts), {}),
    "not mounted on one node": (Share.others, {"data.file-system": ONE, "data.content": ONE}),
    "missing on one node": (missing, {"data.path": ONE}),
    "another copy on one node": (another_copy, {"data.content": ONE}),
    "stale content on one node": (stale, {"data.content": ONE}),
    "a wrong mount on one node": (wrong_mount, {"data.file-system": ONE, "data.content": ONE}),
    "hung on one node": (hung, {"data.path": ONE}),
    "hung on every node": (lambda share: hung(share, everywhere=True), {"data.path": ALL}),
    "a disk of its own on each node": (scratch_of_each, {}),
}
"""How each is made, and which checks name which nodes."""


class Played(NamedTuple):
    """One run of the doctors over a path for each fault."""

    shares: dict[str, Share]
    found: dict[str, list[dict[str, Any]]]
    notes: dict[str, list[dict[str, Any]]]
    left: dict[str, list[str]]


@pytest.fixture(scope="module")
def played(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Every fault at a path of its own, and one run over all of them: their waits are waited for once."""
    shares = {fault: Share(lab, tmp_path_factory.mktemp("fault")) for fault in FAULTS}
    try:
        for fault, (make, _) in FAULTS.items():
            make(shares[fault])
        codes(lab, *(word for share in shares.values() for word in ("--path", str(share.point))))
        left = {fault: share.left for fault, share in shares.items()}
        yield Played(shares, findings(lab, "warn", "fail"), findings(lab, "note"), left)
    finally:
        for share in shares.values():
            share.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_on_its_node_and_on_no_other(played: Played, fault: str) -> None:
    point = str(played.shares[fault].point)
    said = {
        id_: {tuple(one["nodes"]) for one in every if one["subject"] == point} for id_, every in played.found.items()
    }
    assert {id_: nodes for id_, nodes in said.items() if nodes} == {id_: {n} for id_, n in FAULTS[fault][1].items()}
    assert played.left[fault] == []


def test_a_disk_of_each_nodes_own_is_told_from_a_shared_one(played: Played) -> None:
    point = str(played.shares["a disk of its own on each node"].point)
    said = [one["message"] for one in played.notes["data.file-system"] if one["subject"] == point]
    assert said == [f"is local to each node (tmpfs of {point})"]
