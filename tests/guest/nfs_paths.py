"""Run as root in a guest: kernel NFS, one server and three clients in namespaces, and a path for each fault.

Prints a line per fault: what the doctors on the clients named, on which node; exits with 0 if all are as they must be.
Everything is in memory and in namespaces of the lab; the guest is gone afterwards.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from lab.hosts import Host, Lab
from lab.processes import Running

PORT = 29533
TIMEOUT_S = 900.0
STEP_S = 150.0
"""For a mount: the processor is emulated."""
BASE = Path("/run/paths")
ONE, ALL = ("n2",), ("n0", "n1", "n2")
Mount = Callable[["Server", Host, str], None]


class Server:
    """The kernel's NFS server in the namespace of `ctl`, exporting folders of a tmpfs or of an ext4 with quota."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.address = lab, lab.ctl.address()
        self.on("mount -t nfsd nfsd /proc/fs/nfsd; mkdir -p /run/rpc_pipefs /var/lib/nfs/v4recovery")
        self.on("touch /var/lib/nfs/etab /var/lib/nfs/rmtab")
        self.on("exportfs -o rw,no_root_squash,no_subtree_check,insecure,fsid=0 '*:/run/srv'")
        self.on("rpc.mountd -N 3; rpc.nfsd --no-udp -N 3 -V 4.2 --lease-time 10 --grace-time 10 4")

    def on(self, line: str) -> None:
        self.lab.ctl.must("sh", "-c", line)

    def export(self, name: str, options: str = "rw,no_root_squash") -> Path:
        folder = Path("/run/srv", name)
        if not folder.exists():
            folder.mkdir()
            for number in range(10):
                (folder / f"shard-{number}.bin").write_bytes(bytes([number]) * 4000)
            (folder / "large.bin").write_bytes(os.urandom(2 << 20))
        self.on(f"exportfs -o {options},no_subtree_check,insecure,fsid={fsid(name)} '*:{folder}'")
        return folder

    def mount(self, host: Host, name: str, point: Path, options: str = "") -> None:
        more = f",{options}" if options else ""
        words = f"-t nfs4 -o vers=4.2,proto=tcp{more}"
        done = host.run(
            ["sh", "-c", f"mkdir -p {point}; mount {words} {self.address}:/{name} {point}"], timeout_s=STEP_S
        )
        assert not done.code, f"{host.name}: {name}: {done.err}"


def fsid(name: str) -> int:
    """Of an export: file systems in memory have no number of their own."""
    return 1 + sum(name.encode())


def prepare() -> None:
    """Before there are hosts: what all namespaces see."""
    lines = (
        "modprobe -a nfsd nfs nfsv4 loop quota_v2 sch_netem sch_tbf",
        "mkdir -p /run/srv /run/paths /var/lib/nfs",
        "mount -t tmpfs -o size=600m tmpfs /run/srv",
        "mount -t tmpfs tmpfs /var/lib/nfs",
    )
    for line in lines:
        subprocess.run(["sh", "-c", line], check=True)


def healthy(server: Server, point: Path) -> None:
    server.export(point.name)
    for host in server.lab.hosts:
        server.mount(host, point.name, point)


def others(server: Server, point: Path) -> Host:
    server.export(point.name)
    for host in server.lab.hosts[:-1]:
        server.mount(host, point.name, point)
    return server.lab.hosts[-1]


def not_mounted(server: Server, point: Path) -> None:
    others(server, point)


def wrong_mount(server: Server, point: Path) -> None:
    folder = server.export("elsewhere")
    (folder / "shard-3.bin").rename(folder / "old.bin")
    server.mount(others(server, point), "elsewhere", point)


def read_only(server: Server, point: Path) -> None:
    server.mount(others(server, point), point.name, point, "ro")


def stale(server: Server, point: Path) -> None:
    """One client keeps attributes for ten minutes, and a file was added since it listed the folder."""
    host = others(server, point)
    server.mount(host, point.name, point, "actimeo=600,nocto")
    host.must("ls", "-la", str(point))
    time.sleep(1.1)  # a change of the folder that its time can tell
    Path("/run/srv", point.name, "shard-10.bin").write_bytes(b"new")


def late(server: Server, point: Path) -> None:
    """One client keeps for twenty seconds that a file is not there."""
    server.mount(others(server, point), point.name, point, "acdirmin=4,acdirmax=4,acregmin=4,acregmax=4")


def squashed(server: Server, point: Path) -> None:
    """The server takes one client's root for nobody."""
    folder = server.export(point.name)
    last = server.lab.hosts[-1]
    server.on(f"exportfs -o rw,root_squash,no_subtree_check,insecure,fsid={fsid(point.name)} {last.address()}:{folder}")
    folder.chmod(0o755)
    for host in server.lab.hosts:
        server.mount(host, point.name, point)


def over_quota(server: Server, point: Path) -> None:
    """All clients are nobody there, who has used up a quota."""
    folder = Path("/run/srv", point.name)
    image = Path("/run/srv", "image")
    folder.mkdir()
    server.on(f"truncate -s 64M {image}; mkfs.ext4 -q -F -O quota {image}; mount -o loop {image} {folder}")
    server.on(f"chmod 777 {folder}; setquota -u 65534 64 64 0 0 {folder}")
    server.on(f"dd if=/dev/zero of={folder}/used bs=4k count=16 2>/dev/null; chown 65534 {folder}/used")
    server.export(point.name, "rw,all_squash")
    for host in server.lab.hosts:
        server.mount(host, point.name, point)


def quota_of_one(server: Server, point: Path) -> None:
    """One client's own disk, on which the user's quota is used up."""
    for host in server.lab.hosts[:-1]:
        host.must("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(point))
    host, image = server.lab.hosts[-1], "/run/srv/disk"
    made = f"truncate -s 64M {image}; mkfs.ext4 -q -F -O quota {image}; mount -o loop {image} {point}"
    host.must("sh", "-c", f"{made}; setquota -u root 1000 2000 0 0 {point}")
    host.must("dd", "if=/dev/zero", f"of={point}/used", "bs=1k", "count=2100")


def slow(server: Server, point: Path) -> None:
    """8 Mbit/s from the server to one client: rates name it, on every path."""
    healthy(server, point)
    link = ("rate", "8mbit", "burst", "32kb", "latency", "100ms")
    server.lab.ctl.must("tc", "qdisc", "replace", "dev", server.lab.hosts[-1].port(), "root", "tbf", *link)


FAULTS: dict[str, tuple[Callable[[Server, Path], None], str, dict[str, tuple[str, ...]]]] = {
    "none": (healthy, "checkpoint", {}),
    "not-mounted": (not_mounted, "read", {"data.file-system": ONE, "data.content": ONE}),
    "wrong-mount": (wrong_mount, "read", {"data.file-system": ONE, "data.content": ONE}),
    "read-only": (read_only, "write", {"data.path": ONE, "data.file-system": ONE}),
    "stale": (stale, "read", {"data.content": ONE, "data.file-system": ONE}),
    "late": (late, "checkpoint", {"data.checkpoint": ONE, "data.file-system": ONE}),
    "squashed": (squashed, "write", {"data.write": ONE}),
    "quota-of-one": (quota_of_one, "write", {"data.space": ONE, "data.shared": ALL}),
    "over-quota": (over_quota, "checkpoint", {"data.write": ALL}),
}


def doctors(lab: Lab, options: list[str]) -> dict[str, Any]:
    jobs: list[Running] = []
    for host in lab.hosts:
        words = [
            "--nnodes",
            "3",
            "--node-rank",
            str(host.number - 1),
            "--master-addr",
            "n0",
            "--master-port",
            str(PORT),
        ]
        words += ["--json", str(lab.folder / f"{host.name}.json"), "--no-color", "--select", "data.*", "--wait", "200"]
        argv = [sys.executable, "-m", "ncclprobe.doctor", "--backend", "gloo", *words, *options]
        jobs.append(
            host.start(
                [*argv, "--timeout", f"{TIMEOUT_S:g}"], {"NCCLPROBE_TOKEN": "of this guest and of its paths alone"}
            )
        )
    for job in jobs:
        done = job.wait(TIMEOUT_S + 30)
        print(
            f"exit {done.code} after {done.seconds:.0f} s{' TIMED OUT' * done.timed_out} {done.err[-800:]}", flush=True
        )
    report: dict[str, Any] = json.loads((lab.folder / "n0.json").read_text())
    return report


def named(report: dict[str, Any], point: Path) -> dict[str, tuple[str, ...]]:
    found = {}
    for check in report["checks"]:
        for one in check["findings"]:
            if one["severity"] != "note" and one["subject"] == str(point):
                found[check["id"]] = tuple(one["nodes"])
    return found


def left(lab: Lab) -> list[str]:
    return lab.ctl.must("find", "/run/srv", "-maxdepth", "2", "-name", ".ncclprobe*").split()


def main() -> None:
    prepare()
    with Lab(hosts=3) as lab:
        server = Server(lab)
        points = {name: BASE / name for name in FAULTS}
        for name, (make, _, _) in FAULTS.items():
            points[name].mkdir(parents=True)
            began = time.monotonic()
            make(server, points[name])
            print(f"made {name} in {time.monotonic() - began:.0f} s", flush=True)
        options = [word for name, (_, use, _) in FAULTS.items() for word in ("--path", f"{points[name]}:{use}")]
        expected = {name: each for name, (_, _, each) in FAULTS.items()}
        good = judged(lab, doctors(lab, options), points, expected)
        slow(server, BASE / "slow")
        report = doctors(lab, ["--path", f"{BASE / 'slow'}:read", "--path-rates", "--path-bytes", "2M"])
        print(json.dumps(report["path_rates"]))
        good = judged(lab, report, {"slow": BASE / "slow"}, {"slow": {"data.rate": ONE}}) and good
        lab.ctl.must("tc", "qdisc", "del", "dev", lab.hosts[-1].port(), "root")
        chain = "add chain inet f in { type filter hook input priority 0; }"
        rule = f"add rule inet f in ip saddr {lab.hosts[-1].address()} tcp dport 2049 drop"
        lab.ctl.must("nft", "-f", "-", text=f"add table inet f\n{chain}\n{rule}\n")
        report = doctors(lab, ["--path", f"{points['none']}:read"])
        good = judged(lab, report, {"hung": points["none"]}, {"hung": {"data.path": ONE}}) and good
        print("every fault was named on its node" if good else "NOT as it must be", flush=True)
        os._exit(not good)  # the guest ends with it; to take down hosts whose mounts hang would take minutes


def judged(
    lab: Lab, report: dict[str, Any], points: dict[str, Path], expected: dict[str, dict[str, tuple[str, ...]]]
) -> bool:
    good = not left(lab)
    for name, point in points.items():
        found = named(report, point)
        good = good and found == expected[name]
        print(f"{'ok ' if found == expected[name] else 'BAD'} {name}: {found}", flush=True)
    for check in report["checks"]:
        for one in check["findings"]:
            print(f"    {one['severity']} {check['id']} {one['subject']}: {one['message']}")
    print(f"left behind: {[str(each) for each in left(lab)]}", flush=True)
    return good


if __name__ == "__main__":
    main()
