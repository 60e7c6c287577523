"""Ranks that measure between hosts: which NIC the bytes took, which host is slow, and which rail is dead."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import fake_verbs
import pytest

from ncclprobe.model.report import Report
from ncclprobe.report import json as as_json

from . import Host, Lab, faults, why_not
from .hosts import ended
from .launchers import NCCLPROBE, by_hand, ranks

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not("gcc")), reason=why_not("gcc") or "-")]
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


SIZE = ["-b", "2M", "-e", "2M", "-n", "4", "--batches", "2", "-w", "1"]


def measured(lab: Lab, path: Path, command: str, *options: str) -> tuple[list[int], Report]:
    """Return the exit codes of all ranks, and rank 0's report."""
    done = ended(ranks(lab, path, command, *options), 120.0)
    assert path.exists(), done
    return [each.code for each in done.values()], as_json.read(str(path))


def test_bytes_over_the_wrong_one_of_two_nics_are_noticed(tmp_path: Path) -> None:
    with Lab(hosts=2, nics=2) as lab:
        for host, peer in (lab.hosts, lab.hosts[::-1]):  # what goes to the peer's first card leaves over the second
            host.ip(f"route add {peer.address(0)}/32 via {peer.address(1)} dev eth1 src {host.address(0)}")
        _, report = measured(lab, tmp_path / "report.json", "bandwidth", *SIZE)
    strays = [(f.subject, f.nodes) for v in report.checks if v.id == "run.nic-traffic" for f in v.findings]
    assert sorted(strays) == [("n0 eth1", ("n0",)), ("n1 eth1", ("n1",))]
    assert {row.transport.network for row in report.measurements} == {"gloo tcp eth0"}


def test_the_host_whose_card_is_slow_is_named_and_no_other_node(tmp_path: Path) -> None:
    """Four hosts on two busy processors: a pair between two others may be slow for good reason, a node may not."""
    with Lab(hosts=4) as lab, faults.shaped(lab["n2"], 200.0):
        codes, report = measured(lab, tmp_path / "report.json", "pairs", "-e", "1M")
    assert report.localisation
    (culprit,) = [each for each in report.localisation.culprits if each.kind == "node"]
    assert (culprit.nodes, culprit.direction) == (("n2",), "out")
    assert culprit.ratio < 0.5
    assert culprit.retests > 0
    (finding,) = [f for v in report.checks if v.id == "run.pairs" for f in v.findings if f.blame == "node"]
    assert (finding.subject, finding.severity.value, finding.nodes) == ("out of n2", "fail", ("n2",))
    assert codes == [4] * 4
    assert {row.src_end for row in report.pairs} == {f"n{number} (eth0)" for number in range(4)}


def rails_named(report: Path) -> set[tuple[str, str, tuple[str, ...]]]:
    """Return which rails do not work: id, subject, nodes. On a busy machine all may be slow."""
    return {
        (verdict["id"], finding["subject"], tuple(finding["nodes"]))
        for verdict in json.loads(report.read_text())["checks"]
        for finding in verdict["findings"]
        if verdict["id"] in ("rail.dead", "rail.unusable") and finding["severity"] == "fail"
    }


def test_two_faults_of_rails_are_named_and_told_again_from_the_captures(tmp_path: Path) -> None:
    """What crosses processes is shown here, above our own verbs library; tests/checks has every fault by itself."""
    library = tmp_path / "lib"
    library.mkdir()
    fake_verbs.build(library)
    with Lab(hosts=3) as lab:
        rails = with_fault(lab, **LINK_LOCAL)
        rails["n2"][0].faults = "refuse=ibv_create_qp:12"
        give_rails(lab, library, rails)
        kept = tmp_path / "kept"
        words = ("--keep", str(kept), "--timeout", "110")
        done = ended(by_hand(lab.hosts, *words, command=[*NCCLPROBE, "rails"]), 125.0)
        expected = {
            ("rail.dead", "n1 rail 1 (mlx5_1:1)", ("n1",)),
            ("rail.unusable", "n2 rail 0 (mlx5_0:1)", ("n2",)),
        }
        assert rails_named(lab.folder / "n0.json") == expected
        assert [each.code for each in done.values()] == [4, 4, 4]
        again = lab.folder / "again.json"
        told = ["doctor", *sorted(map(str, kept.glob("*.jsonl"))), "--select", "rail.*", "--json", str(again)]
        assert lab["n0"].run([*NCCLPROBE, *told]).code == 4
        assert rails_named(again) == expected
