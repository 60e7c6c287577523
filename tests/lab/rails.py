"""Hosts with RDMA devices that are none: what the kernel would show of them, and the verbs library of fake_verbs.c.

/sys/class and /dev of a host are replaced, in its own mount namespace, by folders in which its devices are added.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import fake_verbs

from .hosts import Host, Lab
from .processes import Completed
from .run import ended

build = fake_verbs.build
PORT = 29534
TOKEN = {"NCCLPROBE_TOKEN": "of the rails of this lab alone"}
MOUNT = r"""
set -eu
mkdir -p "$1/class/net" "$1/dev/shm" "$1/dev/infiniband"
mount --bind /sys/class/net "$1/class/net"
for each in null zero full random urandom tty; do touch "$1/dev/$each"; mount --bind "/dev/$each" "$1/dev/$each"; done
ln -s /proc/self/fd "$1/dev/fd"
mount --rbind "$1/class" /sys/class
mount --rbind /dev/shm "$1/dev/shm"
mount --rbind "$1/dev" /dev
"""


class Rail:
    """One device of one host. `faults` are those of fake_verbs.c; `gids` replaces entries of its table."""

    def __init__(self, number: int, rate: str = "10 Gb/sec (4X)", faults: str = "", **settings: object) -> None:
        self.name, self.rate, self.faults, self.settings = f"mlx5_{number}", rate, faults, settings

    def words(self, host: Host) -> str:
        """Return its description for the library."""
        return fake_verbs.device(self.name, host.number, self.faults, **self.settings)

    def show(self, host: Host, root: Path, number: int) -> None:
        """Write what the kernel would show of it."""
        known = dict(word.split("=", 1) for word in self.words(host).split()[1:] if "=" in word)
        device, port = root / "class/infiniband" / self.name, root / "class/infiniband" / self.name / "ports/1"
        files = {
            port / "state": "4: ACTIVE", port / "phys_state": "5: LinkUp", port / "rate": self.rate,
            port / "link_layer": "Ethernet" if known.get("layer", "2") == "2" else "InfiniBand",
            port / "lid": hex(int(known.get("lid", 0))), port / "sm_lid": "0x0", port / "pkeys/0": "0xffff",
            device / "fw_ver": "28.40.1000", device / "hca_type": "MT4129",
            root / f"class/infiniband_verbs/uverbs{number}/ibdev": self.name,
            root / f"dev/infiniband/uverbs{number}": "",
        }  # fmt: skip
        for name, value in known.items():
            if name.startswith("gid"):
                digits, _, kind = value.partition("/")
                written = ":".join(digits[at : at + 4] for at in range(0, 32, 4))
                files[port / "gids" / name[3:]] = written
                files[port / "gid_attrs/types" / name[3:]] = {"1": "IB/RoCE v1", "2": "RoCE v2"}.get(kind, "IB/RoCE v1")
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n" if text else "")


def give_rails(lab: Lab, library: Path, rails: Mapping[str, Sequence[Rail]]) -> None:
    """Give each host its devices."""
    for host in lab.hosts:
        root = host.folder / "rdma"
        for number, each in enumerate(rails[host.name]):
            each.show(host, root, number)
        host.must("sh", "-c", MOUNT, "sh", str(root))
        words = [each.words(host) for each in rails[host.name]]
        host.env |= fake_verbs.environment(library, lab.folder, *words)


def try_rails(lab: Lab, *options: str, timeout_s: float = 60.0) -> dict[str, Completed]:
    """Run ``ncclprobe rails`` on all hosts together; n0 writes its report to report.json."""
    jobs = {}
    for host in lab.hosts:
        words = ["--nnodes", str(len(lab.hosts)), "--node-rank", str(host.number - 1), "--master-addr", "n0"]
        words += ["--master-port", str(PORT), "--timeout", f"{timeout_s:g}"]
        words += ["--json", str(lab.folder / "report.json")] if host.number == 1 else []
        jobs[host.name] = host.start([sys.executable, "-m", "ncclprobe", "rails", *words, *options], TOKEN)
    return ended(jobs, time.monotonic() + timeout_s + 15)


class Planted:
    """A fault of rail 1 of n1, or of all of n1: how it is made, and what must be said of it."""

    def __init__(self, check: str, subject: str = "n1 rail 1 (mlx5_1:1)", faults: str = "", **settings: object) -> None:
        self.check, self.subject, self.faults, self.settings = check, subject, faults, settings

    def rails(self, lab: Lab) -> dict[str, list[Rail]]:
        """Return the devices of all hosts, two each."""
        layer = {name: value for name, value in self.settings.items() if name == "layer"}
        made = {
            host.name: [Rail(n, **layer, **({"lid": 10 * host.number + n} if layer else {})) for n in range(2)]
            for host in lab.hosts
        }
        bad = made["n1"][1]
        bad.faults, bad.settings = self.faults, bad.settings | self.settings
        return made


_LINK_LOCAL = "fe80" + 26 * "0" + "02"
FAULTS: dict[str, Planted] = {
    "nothing (healthy)": Planted(""),
    "port of rail 1 down": Planted("rail.dead", state=1),
    "what rail 1 sends is lost": Planted("rail.dead", faults="drop"),
    "rail 1 has link-local GIDs alone": Planted("rail.dead", gid2=f"{_LINK_LOCAL}/1", gid3=f"{_LINK_LOCAL}/2"),
    "rail 1 has RoCE v1 alone": Planted("rail.dead", gid1=32 * "0" + "/2", gid3=32 * "0" + "/2"),
    "rail 1 is in another partition (InfiniBand)": Planted("rail.dead", layer=1, pkey0="8005"),
    "a switch passes 1024 bytes only": Planted("rail.dead", faults="path_mtu=1024"),
    "rail 1 at a tenth of its rate": Planted("rail.slow", faults="rate=0.1"),
    "a byte of one of the last writes is changed": Planted(
        "rail.data", "out of n1 rail 1 (mlx5_1:1)", faults="corrupt=258"
    ),
    "the driver hangs": Planted("rail.unusable", faults="hang=ibv_create_qp"),
    "the driver crashes its process": Planted("rail.unusable", faults="crash=ibv_create_cq"),
    "locked memory is limited": Planted("rail.unusable", faults="memlock=65536"),
    "the device is gone while it works": Planted("rail.unusable", faults="vanish=230"),
    "the port goes down while it works": Planted("rail.unusable", faults="port_error=230"),
    "memory is refused to the other end (status 10)": Planted("rail.dead", faults="status=10:3:230"),
    "the receiver is not ready (status 13)": Planted("rail.dead", faults="status=13:135:230"),
}
