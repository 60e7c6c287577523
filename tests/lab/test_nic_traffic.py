"""Which of two NICs the bytes took, by the NICs' own counters, between hosts of the lab."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ncclprobe.model.findings import Status

from . import Lab, why_not
from .hosts import Host
from .ranks import Ended, measured

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "a lab can be made here")]

SIZE = ["-b", "2M", "-e", "2M", "-n", "4", "--batches", "2", "-w", "1"]


@contextmanager
def detour(host: Host, peer: Host) -> Iterator[None]:
    """What goes to the peer's first card leaves over the second."""
    way = f"{peer.address(0)}/32 via {peer.address(1)} dev eth1 src {host.address(0)}"
    host.ip(f"route add {way}")
    try:
        yield
    finally:
        host.ip(f"route del {way}")


def sent_bytes(host: Host) -> dict[str, int]:
    """By interface, as iproute2 has it from the kernel over netlink."""
    rows = json.loads(host.run(["ip", "-s", "-j", "link"]).out)
    return {row["ifname"]: row["stats64"]["tx"]["bytes"] for row in rows if row["ifname"] != "lo"}


def strays(done: Ended) -> list[tuple[str, tuple[str, ...]]]:
    return [(f.subject, f.nodes) for v in done.told.checks if v.id == "run.nic-traffic" for f in v.findings]


def test_bytes_over_the_wrong_one_of_two_nics_are_noticed(tmp_path: Path) -> None:
    with Lab(hosts=2, nics=2) as lab, ExitStack() as faults:
        faults.enter_context(detour(lab["n0"], lab["n1"]))
        faults.enter_context(detour(lab["n1"], lab["n0"]))
        done = measured(lab, tmp_path / "report.json", *SIZE)
    assert sorted(strays(done)) == [("n0 eth1", ("n0",)), ("n1 eth1", ("n1",))]
    assert {row.transport.network for row in done.told.measurements} == {"gloo tcp eth0"}


def test_of_two_nics_the_share_of_each_is_the_kernels_and_nobody_is_named(tmp_path: Path) -> None:
    """Which connection goes over which card is decided by who called whom: three quarters to one, as measured."""
    bands = (
        tmp_path / "bands.toml"
    )  # without it streams between the nodes are measured first, over the first card alone
    bands.write_text('[[expect]]\nop = "all_to_all"\nmin_bytes = 1\nbusbw_GBps = 1e-6\nsource = "test"\nwhy = "test"\n')
    with Lab(hosts=2, nics=2) as lab:
        before = sent_bytes(lab["n0"])
        done = measured(lab, tmp_path / "report.json", "--op", "all_to_all", "--expect", str(bands), *SIZE, cards=2)
        after = sent_bytes(lab["n0"])
    (traffic,) = done.told.nic_traffic
    whole = {name: after[name] - before[name] for name in before}
    shares = {nic.nic: nic.share for nic in traffic.nics if nic.node == "n0"}
    assert set(shares) == {"eth0", "eth1"}
    assert all(share and share > 0.1 for share in shares.values())
    for name, share in shares.items():
        assert share == pytest.approx(whole[name] / sum(whole.values()), abs=0.02)
    assert {v.status for v in done.told.checks if v.id == "run.nic-traffic"} == {Status.PASS}
