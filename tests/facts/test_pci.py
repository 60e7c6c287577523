"""The PCI tree: from a small machine on disk, and from odd texts."""

from pathlib import Path
from typing import Any

import pytest
from conftest import answers
from fake_sysfs import GEN5, GPU_3D, INFINIBAND, NVSWITCH, Sysfs, two_sockets

from ncclprobe.engine.collect import collect
from ncclprobe.facts import pci
from ncclprobe.facts.pci import Identity, PcieLink, PciPosition
from ncclprobe.host import Host
from ncclprobe.model.errors import Missing, TimedOut
from ncclprobe.model.snapshot import Absent

GPU, NIC = "0000:13:00.0", "0000:14:00.0"


def read(host: Host) -> Any:
    return collect(host, [pci.pci])[pci.Pci]


@pytest.fixture
def tree(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def test_gpus_and_nics_are_found_with_the_bridges_above_them_and_asked_for_once(tree: Sysfs) -> None:
    two_sockets(tree)
    host = tree.finish()
    seen = read(host)
    assert [device.address for device in seen.of("gpu")] == [GPU, "0000:17:00.0", "0000:83:00.0", "0000:87:00.0"]
    assert len(seen.of("nic")) == 4
    assert seen.devices[GPU].place == PciPosition("pci0000:10", ("0000:10:01.0", "0000:11:00.0", "0000:12:00.0"))
    assert seen.devices["0000:17:00.0"].place.switches == ("0000:15:00.0", "0000:11:00.0")
    assert "0000:10:1f.0" not in {*seen.devices, *seen.bridges}
    assert len(set(host.asked)) == len(host.asked)
    assert [ask for ask in host.asked if "0000:10:1f.0" in str(ask)] == [("read", f"{pci.ROOT}/0000:10:1f.0/uevent")]
    gpu = seen.devices["0000:83:00.0"]
    assert (gpu.identity, gpu.link) == (Identity(GPU_3D, 0x10DE, 0x2330), PcieLink(16.0, 16, 16.0, 16))
    assert (gpu.numa_node, gpu.local_cpus, gpu.iommu) == (1, (2, 3), "identity")
    assert gpu.bars[:2] == (16 << 20, 256 << 30)
    assert (gpu.errors, seen.bridges.keys() & seen.devices.keys()) == (pci.Errors(), set())
    bridges = seen.bridges
    acs = [bridges[f"0000:{bus}.0"].acs for bus in ("10:01", "12:00", "11:00")]
    assert acs == [frozenset(), {"SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"}, None]
    assert [bridges[f"0000:{bus}:00.0"].link for bus in (11, 12)] == [PcieLink(16.0, 16, 16.0, 16), None]


def test_a_device_gone_from_the_list_is_gone_and_one_refused_is_unread(tree: Sysfs) -> None:
    folder = pci.ROOT
    host = answers({("list", folder): [GPU, NIC], ("read", f"{folder}/{GPU}/uevent"): Missing("not there"),
                    ("read", f"{folder}/{NIC}/uevent"): TimedOut("no answer")})  # fmt: skip
    assert read(host) == pci.Pci(unread={NIC: Absent("no answer", "TimedOut")})
    assert read(answers({("list", folder): Missing("not there")})).refused == "Missing"


def test_a_refused_file_is_absent_in_its_field_alone(tree: Sysfs) -> None:
    two_sockets(tree)
    host = tree.finish()
    folder = f"{tree.root}/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/{GPU}"
    for name in ("numa_node", "max_link_width", "aer_dev_fatal", "iommu_group/type"):
        (Path(folder) / name).unlink()
    (Path(folder) / "resource").write_text("nonsense\n")
    gpu = read(host).devices[GPU]
    for lost in (gpu.numa_node, gpu.link, gpu.errors):
        assert lost.refused == "Missing"
    assert gpu.bars.refused == "ParseError"
    assert gpu.iommu is None
    assert gpu.local_cpus == (0, 1)


def test_nvswitches_and_faster_links_are_read_too(tree: Sysfs) -> None:
    tree.pci("pci0000:00/0000:00:01.0", speed=GEN5)
    tree.pci("pci0000:00/0000:00:01.0/0000:01:00.0", NVSWITCH, speed=GEN5, width=2)
    tree.pci("pci0000:00/0000:00:02.0", INFINIBAND, numa=-1)
    seen = read(tree.finish())
    assert seen.of("nvswitch")[0].link.max_gbps == pytest.approx(63.0, abs=0.1)
    assert seen.devices["0000:00:02.0"].numa_node == -1
