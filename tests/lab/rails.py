"""Hosts with RDMA devices that are none: what the kernel would show of them, and the verbs library of fake_verbs.c.

/sys/class and /dev of a host are replaced, in its own mount namespace, by folders in which its devices are added.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import fake_verbs

from .hosts import Host, Lab

build = fake_verbs.build
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


LINK_LOCAL = {f"gid{entry}": f"fe80{26 * '0'}02/{kind}" for entry, kind in ((2, 1), (3, 2))}
"""Of the table, the entries that would lead to another host."""


def with_fault(lab: Lab, **settings: object) -> dict[str, list[Rail]]:
    """Return the devices of all hosts, two each; rail 1 of n1 has these settings."""
    made = {host.name: [Rail(number) for number in range(2)] for host in lab.hosts}
    made["n1"][1].settings |= settings
    return made
