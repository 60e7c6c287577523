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
from typing import Any, NamedTuple

import pytest

from .hosts import Host, Lab, why_not
from .processes import Completed, Running
from .run import ended

SFTP = Path("/usr/lib/openssh/sftp-server")
PORT = 29533
SFTP_PORT = 2022
TOKEN = {"NCCLPROBE_TOKEN": "of the paths of this lab alone"}
UP_S = 30.0


def _why_not() -> str:
    missing = "" if SFTP.exists() and Path("/dev/fuse").exists() else "needs openssh-sftp-server and /dev/fuse"
    return why_not("sshfs") or missing


pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "-")]


class Share:
    """An export, and a mount point of one name on every host: `…/data`."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.export, self.point, self.folder = lab, folder / "export", folder / "data", folder
        for each in (folder, self.export, self.point):
            each.mkdir(exist_ok=True)
        for number in range(20):
            (self.export / f"shard-{number}.bin").write_bytes(bytes([number]) * 1000)
        self.server = folder / "server"
        self.server.write_text(f'#!/bin/sh\necho $$ >"{folder}/pid-$NCCLPROBE_LAB_HOST"\nexec {SFTP}\n')
        self.server.chmod(0o755)
        self.clients: dict[str, Running] = {}

    def start(
        self,
        host: Host,
        *options: str,
        export: Path | None = None,
        source: str = "fs1",
        named: Path | None = None,
        cache: str = "no",
    ) -> None:
        """Start to mount an export on a host; `named`: as what the server is to have it."""
        if named and export:
            host.must("mount", "--bind", str(export), str(named))
            export = named
        words = ["-f", "-o", ",".join(("ssh_command=" + str(self.server), f"cache={cache}", *options))]
        env = {"NCCLPROBE_LAB_HOST": host.name}
        self.clients[host.name] = host.start(
            ["sshfs", *words, f"{source}:{export or self.export}", str(self.point)], env
        )

    def mount(self, host: Host, *options: str, **how: Any) -> None:
        """Mount an export on a host, and wait until it and its server are up."""
        self.start(host, *options, **how)
        self.await_(host)

    def await_(self, host: Host) -> None:
        started = self.folder / f"pid-{host.name}"  # the server, which may come up after the mount

        def up() -> bool:
            mounted = f" {self.point} " in host.must("cat", "/proc/self/mountinfo")
            return mounted and started.exists() and bool(started.read_text())

        until(up, f"{host.name}: sshfs mounts {self.point}")

    def signal_server(self, host: Host, number: int) -> None:
        os.kill(int((self.folder / f"pid-{host.name}").read_text()), number)


def until(holds: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + UP_S
    while not holds():
        assert time.monotonic() < end_s, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(hosts=3) as made:
        yield made


@pytest.fixture
def share(lab: Lab, tmp_path: Path) -> Iterator[Share]:
    made = Share(lab, tmp_path)
    yield made
    resume(made)


def resume(share: Share) -> None:
    """Let go of the servers: what waits for a stopped one cannot be ended."""
    for host in share.lab.hosts:
        with contextlib.suppress(OSError, ValueError):
            share.signal_server(host, signal.SIGCONT)
    for client in share.clients.values():
        client.kill()


def doctors(lab: Lab, *options: str, timeout_s: float = 100.0) -> dict[str, Running]:
    """The doctor by hand on every host."""
    jobs = {}
    for host in lab.hosts:
        words = ["--nnodes", str(len(lab.hosts)), "--node-rank", str(host.number - 1), "--master-addr", "n0"]
        words += ["--master-port", str(PORT), "--json", str(lab.folder / f"{host.name}.json"), "--no-color"]
        words += [*options, "--select", "data.*", "--timeout", f"{timeout_s:g}"]
        jobs[host.name] = host.start([sys.executable, "-m", "ncclprobe.doctor", "--backend", "gloo", *words], TOKEN)
    return jobs


def asking(share: Share) -> list[str]:
    return ["--path", str(share.point)]


Found = dict[str, list[dict[str, Any]]]


def told(lab: Lab, *options: str) -> tuple[Found, dict[str, Completed]]:
    """What the doctors' report on node 0 finds that is no note, by check; and how each doctor ended."""
    done = ended(doctors(lab, *options), time.monotonic() + 120.0)
    assert not any(each.timed_out for each in done.values()), done
    return findings(lab), done


def findings(lab: Lab, *, notes: bool = False) -> Found:
    report = json.loads((lab.folder / "n0.json").read_text())
    found: Found = {}
    for check in report["checks"]:
        bad = [one for one in check["findings"] if notes or one["severity"] != "note"]
        if bad:
            found[check["id"]] = bad
    return found


def left(share: Share) -> list[str]:
    return [name for name in os.listdir(share.export) if name.startswith(".ncclprobe")]  # noqa: PTH208


def healthy(share: Share) -> None:
    for host in share.lab.hosts:
        share.start(host)
    for host in share.lab.hosts:
        share.await_(host)


def others(share: Share) -> Host:
    """Mount the export on all hosts but the last, and return that one."""
    for host in share.lab.hosts[:-1]:
        share.start(host)
    for host in share.lab.hosts[:-1]:
        share.await_(host)
    return share.lab.hosts[-1]


def not_mounted(share: Share) -> None:
    others(share)


def missing(share: Share) -> None:
    others(share).must("mount", "-t", "tmpfs", "tmpfs", str(share.folder))


def another_copy(share: Share) -> None:
    """A copy in which one file has another name, from a server of the same name."""
    copy = share.folder / "copy"
    shutil.copytree(share.export, copy)
    (copy / "shard-3.bin").rename(copy / "shard-3.bin.tmp")
    share.mount(others(share), export=copy, named=share.export)


def stale(share: Share) -> None:
    """One host still has the listing of before a file was added, as caches of NFS and of Lustre have."""
    host = others(share)
    share.mount(host, "dcache_timeout=600,dcache_dir_timeout=600,dcache_link_timeout=600", cache="yes")
    host.must("ls", "-la", str(share.point))
    (share.export / "shard-20.bin").write_bytes(b"new")


def wrong_mount(share: Share) -> None:
    other = share.folder / "scratch"
    other.mkdir()
    share.mount(others(share), export=other, source="fs2")


def hung(share: Share) -> None:
    healthy(share)
    share.signal_server(share.lab.hosts[-1], signal.SIGSTOP)


def hung_everywhere(share: Share) -> None:
    healthy(share)
    for host in share.lab.hosts:
        share.signal_server(host, signal.SIGSTOP)


def scratch_of_each(share: Share) -> None:
    """Every host has a disk of its own there, as /scratch often is."""
    for host in share.lab.hosts:
        host.must("mount", "-t", "tmpfs", "-o", "size=16m", f"scratch-{host.name}", str(share.point))


ONE, ALL = ("n2",), ("n0", "n1", "n2")
FAULTS: dict[str, tuple[Callable[[Share], None], dict[str, tuple[str, ...]]]] = {
    "none": (healthy, {}),
    "not mounted on one node": (not_mounted, {"data.file-system": ONE, "data.content": ONE}),
    "missing on one node": (missing, {"data.path": ONE}),
    "another copy on one node": (another_copy, {"data.content": ONE}),
    "stale content on one node": (stale, {"data.content": ONE}),
    "a wrong mount on one node": (wrong_mount, {"data.file-system": ONE, "data.content": ONE}),
    "hung on one node": (hung, {"data.path": ONE}),
    "hung on every node": (hung_everywhere, {"data.path": ALL}),
    "a disk of its own on each node": (scratch_of_each, {}),
}
"""How each is made, and which checks name which nodes."""


class Played(NamedTuple):
    """One run of the doctors over a path for each fault."""

    shares: dict[str, Share]
    found: Found
    notes: Found
    codes: dict[str, int]
    left: dict[str, list[str]]


@pytest.fixture(scope="module")
def played(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Every fault at a path of its own, and one run over all of them: their waits are waited for once."""
    shares = {fault: Share(lab, tmp_path_factory.mktemp("fault")) for fault in FAULTS}
    try:
        for fault, (make, _) in FAULTS.items():
            make(shares[fault])
        options = [word for fault in FAULTS for word in asking(shares[fault])]
        found, done = told(lab, *options)
        codes = {name: each.code for name, each in done.items()}
        yield Played(shares, found, findings(lab, notes=True), codes, {f: left(s) for f, s in shares.items()})
    finally:
        for share in shares.values():
            resume(share)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_on_its_node_and_on_no_other(played: Played, fault: str) -> None:
    point = str(played.shares[fault].point)
    said = {id_: [one for one in every if one["subject"] == point] for id_, every in played.found.items()}
    named = {id_: {tuple(one["nodes"]) for one in every} for id_, every in said.items() if every}
    assert named == {id_: {nodes} for id_, nodes in FAULTS[fault][1].items()}
    assert played.left[fault] == []


def test_a_disk_of_each_nodes_own_is_told_from_a_shared_one(played: Played) -> None:
    point = str(played.shares["a disk of its own on each node"].point)
    said = [one["message"] for one in played.notes["data.file-system"] if one["subject"] == point]
    assert said == [f"is local to each node (tmpfs of {point})"]


def test_nothing_is_said_of_an_export_that_all_have(share: Share) -> None:
    healthy(share)
    found, done = told(share.lab, *asking(share))
    assert found == {}
    assert {name: each.code for name, each in done.items()} == {"n0": 0, "n1": 0, "n2": 0}
    assert left(share) == []
    assert len(os.listdir(share.export)) == 20  # noqa: PTH208


SERVER = """
import os, socket, sys
door = socket.create_server(("0.0.0.0", int(sys.argv[1])))
while True:
    caller = door.accept()[0]
    caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not os.fork():
        os.dup2(caller.fileno(), 0), os.dup2(caller.fileno(), 1)
        os.execv(sys.argv[2], sys.argv[2:])
    caller.close()
"""


def over_network(share: Share) -> None:
    """Mount the export over the lab's network, from one server for all on `ctl`."""
    share.lab.ctl.start([sys.executable, "-c", SERVER, str(SFTP_PORT), str(SFTP)])
    address = share.lab.ctl.address()
    time.sleep(0.3)
    for host in share.lab.hosts:
        words = ["-f", "-o", f"directport={SFTP_PORT},cache=no", f"{address}:{share.export}", str(share.point)]
        share.clients[host.name] = host.start(["sshfs", *words])
    for host in share.lab.hosts:
        until(lambda host=host: f" {share.point} " in host.must("cat", "/proc/self/mountinfo"), "mounted")


def test_a_node_whose_way_to_the_server_is_slow_and_not_late_is_named_by_rates(share: Share) -> None:
    """40 Mbit/s to one node, by tc on the server's link to it; nothing is late, so nothing else names it."""
    for number in range(2):
        (share.export / f"large-{number}").write_bytes(os.urandom(4 << 20))
    over_network(share)
    slow = share.lab.hosts[-1]
    shaper = [
        "qdisc",
        "replace",
        "dev",
        slow.port(),
        "root",
        "tbf",
        "rate",
        "40mbit",
        "burst",
        "64kb",
        "latency",
        "50ms",
    ]
    share.lab.ctl.must("tc", *shaper)
    found, done = told(share.lab, *asking(share), "--keep", str(share.folder / "kept"))
    assert found.keys() == {"data.rate"}
    assert {tuple(one["nodes"]) for one in found["data.rate"]} == {ONE}
    assert any(one["message"].startswith("sequential read") for one in found["data.rate"])
    assert left(share) == []
    assert {name: each.code for name, each in done.items()} == {"n0": 0, "n1": 0, "n2": 0}
