"""The PCI tree: from a small machine on disk, read by us and by lstopo, and from odd texts."""

import json
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from conftest import answers
from fake_sysfs import BRIDGE, GEN5, GPU_3D, INFINIBAND, NVSWITCH, Sysfs, config_space, two_sockets
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.engine.collect import collect
from ncclprobe.facts import pci
from ncclprobe.facts.pci import Identity, PcieLink, PciPosition
from ncclprobe.host import Host
from ncclprobe.model.errors import Denied, Failed, Missing, TimedOut
from ncclprobe.model.snapshot import Absent
from tests.each_row import each_row

LSTOPO = "lstopo-no-graphics"
GPU, NIC = "0000:13:00.0", "0000:14:00.0"


def read(host: Host) -> Any:
    return collect(host, [pci.pci])[pci.Pci]


@pytest.fixture
def tree(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def test_gpus_and_nics_are_found_with_the_bridges_above_them(tree: Sysfs) -> None:
    two_sockets(tree)
    seen = read(tree.finish())
    assert [device.address for device in seen.of("gpu")] == [GPU, "0000:17:00.0", "0000:83:00.0", "0000:87:00.0"]
    assert len(seen.of("nic")) == 4
    assert seen.devices[GPU].place == PciPosition("pci0000:10", ("0000:10:01.0", "0000:11:00.0", "0000:12:00.0"))
    assert seen.devices["0000:17:00.0"].place.switches == ("0000:15:00.0", "0000:11:00.0")
    assert "0000:10:1f.0" not in {*seen.devices, *seen.bridges}


def test_a_device_is_known_by_its_fields(tree: Sysfs) -> None:
    two_sockets(tree)
    gpu = read(tree.finish()).devices["0000:83:00.0"]
    assert gpu.identity == Identity(GPU_3D, 0x10DE, 0x2330)
    assert gpu.link == PcieLink(16.0, 16, 16.0, 16)
    assert (gpu.numa_node, gpu.local_cpus, gpu.iommu) == (1, (2, 3), "identity")
    assert gpu.bars[:2] == (16 << 20, 256 << 30)
    assert gpu.errors == pci.Errors()


def test_acs_is_read_from_the_ports_and_links_from_the_switches(tree: Sysfs) -> None:
    two_sockets(tree)
    bridges = read(tree.finish()).bridges
    assert bridges["0000:10:01.0"].acs == frozenset()
    assert bridges["0000:12:00.0"].acs == {"SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"}
    assert bridges["0000:11:00.0"].acs is None
    assert bridges["0000:11:00.0"].link == PcieLink(16.0, 16, 16.0, 16)
    assert bridges["0000:12:00.0"].link is None


def test_every_file_is_asked_for_once_and_other_functions_cost_one_file(tree: Sysfs) -> None:
    two_sockets(tree)
    host = tree.finish()
    read(host)
    assert len(set(host.asked)) == len(host.asked)
    assert [ask for ask in host.asked if "0000:10:1f.0" in str(ask)] == [
        ("read", "/sys/bus/pci/devices/0000:10:1f.0/uevent")
    ]


@pytest.mark.skipif(not shutil.which(LSTOPO), reason=f"{LSTOPO} (package hwloc-nox) is not installed")
def test_lstopo_reads_the_same_tree_from_the_same_files(tree: Sysfs) -> None:
    two_sockets(tree)
    seen, theirs = read(tree.finish()), _lstopo(tree.root)
    assert seen.devices
    for address, device in seen.devices.items():
        numa, parent, gigabytes = theirs.pop(address)
        assert (device.numa_node, device.place.bridges[-1]) == (numa, parent)
        assert device.link.gbps / 8 == pytest.approx(gigabytes)
    assert {seen.bridges[address].address for address in theirs if address in seen.bridges} == set(seen.bridges)
    assert [address for address in theirs if address not in seen.bridges] == ["0000:10:1f.0"]


def _lstopo(root: Path) -> dict[str, tuple[int, str, float]]:
    """NUMA node, parent bridge and GB/s of the link of every PCI object, as hwloc finds them: by bus numbers."""
    environment = {"HWLOC_FSROOT": str(root), "HWLOC_THISSYSTEM": "0", "HWLOC_COMPONENTS": "linux,stop"}
    command = [LSTOPO, "--filter", "io:all", "--of", "xml", "-"]
    text = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60, text=True).stdout
    found: dict[str, tuple[int, str, float]] = {}

    def walk(element: ElementTree.Element, nodeset: int, parent: str) -> None:
        nodeset = int(element.get("nodeset") or hex(nodeset), 16)
        address = element.get("pci_busid") or ""
        if address:
            found[address] = (nodeset.bit_length() - 1, parent, float(element.get("pci_link_speed") or 0))
        for child in element.findall("object"):
            walk(child, nodeset, address)

    for top in ElementTree.fromstring(text).findall("object"):
        walk(top, 1, "")
    return found


def test_a_device_gone_from_the_list_is_gone_and_one_refused_is_unread(tree: Sysfs) -> None:
    folder = pci.ROOT
    host = answers(
        {
            ("list", folder): [GPU, NIC],
            ("read", f"{folder}/{GPU}/uevent"): Missing("not there"),
            ("read", f"{folder}/{NIC}/uevent"): TimedOut("no answer"),
        }
    )
    assert read(host) == pci.Pci(unread={NIC: Absent("no answer", "TimedOut")})


def test_a_bus_that_cannot_be_listed_is_unknown() -> None:
    assert read(answers({("list", pci.ROOT): Missing("not there")})).refused == "Missing"


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


@each_row(
    ("class_code", "vendor", "kind"),
    [
        (0x030200, 0x10DE, "gpu"),
        (0x030000, 0x10DE, "gpu"),
        (0x030000, 0x1A03, None),  # the BMC's display
        (0x040300, 0x10DE, None),  # a GPU's sound
        (0x068000, 0x10DE, "nvswitch"),
        (0x068000, 0x8086, None),
        (0x068001, 0x1014, "npu"),
        (0x020000, 0x15B3, "nic"),
        (0x020700, 0x15B3, "nic"),
        (0x0C0600, 0x15B3, "nic"),
        (0x010802, 0x144D, None),
        (0x060400, 0x10B5, None),
    ],
)
def test_what_matters_is_told_by_class_and_vendor(class_code: int, vendor: int, kind: str | None) -> None:
    assert Identity(class_code, vendor, 0).kind == kind


@each_row(
    ("text", "place"),
    [
        ("../../../devices/pci0000:00/0000:00:05.0", PciPosition("pci0000:00")),
        ("../../../devices/pci0000:40/0000:40:01.0/0000:41:00.0", PciPosition("pci0000:40", ("0000:40:01.0",))),
        (
            "../../../devices/LNXSYSTM:00/VMBUS:00/47505500-0001-0000/pci0001:00/0001:00:00.0\n",
            PciPosition("pci0001:00"),
        ),
        (
            "../d/pci0000:64/0000:64:00.5/pci10000:00/10000:00:02.0/10000:01:00.0",
            PciPosition("pci10000:00", ("10000:00:02.0",)),
        ),
    ],
)
def test_a_place_is_a_root_bus_and_bridges(text: str, place: PciPosition) -> None:
    assert pci.place(text) == place


@each_row(
    ("bridges", "switches"),
    [((), ()), (("r",), ()), (("r", "u", "d"), ("u",)), (("r", "u", "d", "v", "e"), ("v", "u"))],
)
def test_a_switch_is_two_bridges_and_a_root_port_is_none(bridges: tuple[str, ...], switches: tuple[str, ...]) -> None:
    assert PciPosition("pci0000:00", bridges).switches == switches


@each_row(
    ("text", "gtps"),
    [
        ("16.0 GT/s PCIe\n", 16.0),
        ("8 GT/s\n", 8.0),
        ("2.5 GT/s PCIe", 2.5),
        ("Unknown\n", None),
        ("Unknown speed", None),
    ],
)
def test_speeds_of_old_and_new_kernels_are_read(text: str, gtps: float | None) -> None:
    assert pci.speed(text) == gtps


@each_row(("text", "lanes"), [("16\n", 16), ("1", 1), ("0", None), ("63", None), ("255", None)])
def test_a_width_that_does_not_exist_is_unknown(text: str, lanes: int | None) -> None:
    assert pci.width(text) == lanes


@each_row(("gtps", "lanes", "gbps"), [(8.0, 16, 126.03), (32.0, 16, 504.12), (2.5, 1, 2.0), (64.0, 16, 1024.0)])
def test_line_coding_is_deducted(gtps: float, lanes: int, gbps: float) -> None:
    link = PcieLink(None, lanes, gtps, lanes)
    assert link.max_gbps == pytest.approx(gbps, abs=0.01)
    assert link.gbps is None


def test_a_bar_without_an_address_has_no_size() -> None:
    rows = ["0x0000000000000000 0x00000000001fffff 0x0000000020040200", "0x1000 0x101f 0x40101"]
    text = "\n".join(rows + ["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 11)
    assert pci.bars(text) == (0, 32, 0, 0, 0, 0)


def test_only_errors_that_happened_are_kept() -> None:
    text = "RxErr 3\nBadTLP 0\nBadDLLP 1\nTOTAL_ERR_COR 4\n"
    assert pci.aer(text) == {"RxErr": 3, "BadDLLP": 1}


@each_row(
    ("address", "spelled"),
    [("00000000:C4:00.0", "0000:c4:00.0"), ("c4:00.1", "0000:c4:00.1"), ("00010000:01:00.0", "10000:01:00.0")],
)
def test_addresses_are_spelled_as_sysfs_does(address: str, spelled: str) -> None:
    assert pci.normal(address) == spelled


def space(config: bytes) -> str:
    rows = {hex(at): config[at : at + 16].hex() for at in range(0, len(config), 16)}
    return json.dumps({"length": len(config), "rows": rows})


def test_an_ordinary_user_is_told_that_acs_takes_root() -> None:
    with pytest.raises(Denied, match="64 bytes"):
        pci.acs(space(config_space(BRIDGE, (1, 2), 3, [4], acs=0x1D)[:64]))


def test_a_port_of_a_conventional_bus_has_no_acs() -> None:
    assert pci.acs(space(config_space(BRIDGE, (1, 2), 3, [4], acs=0x1D)[:256])) is None


def test_a_device_that_fell_off_the_bus_is_no_device_without_acs() -> None:
    with pytest.raises(Failed, match="does not answer"):
        pci.acs(space(b"\xff" * 4096))


def test_a_list_of_capabilities_that_loops_ends() -> None:
    config = bytearray(4096)
    config[0x100:0x104] = (0x100 << 20 | 0x0001).to_bytes(4, "little")
    assert list(pci.extended_capabilities(bytes(config))) == [(1, 0x100)]


@given(st.binary(max_size=4096))
def test_a_config_space_survives_the_hosts_answer(config: bytes) -> None:
    assert pci.config_space(space(config)) == config


def test_nvswitches_and_faster_links_are_read_too(tree: Sysfs) -> None:
    tree.pci("pci0000:00/0000:00:01.0", speed=GEN5)
    tree.pci("pci0000:00/0000:00:01.0/0000:01:00.0", NVSWITCH, speed=GEN5, width=2)
    tree.pci("pci0000:00/0000:00:02.0", INFINIBAND, numa=-1)
    seen = read(tree.finish())
    assert seen.of("nvswitch")[0].link.max_gbps == pytest.approx(63.0, abs=0.1)
    assert seen.devices["0000:00:02.0"].numa_node == -1


def express(control: int, ats: int | None = None) -> bytes:
    """The config space of a function on PCI Express, with another capability before."""
    config = bytearray(4096)
    config[0:4], config[0x34], config[0x40:0x42], config[0x60] = b"\xde\x10\x30\x23", 0x40, b"\x05\x60", 0x10
    config[0x68:0x6A] = control.to_bytes(2, "little")
    if ats is not None:
        config[0x100:0x104] = (1 << 16 | 0x000F).to_bytes(4, "little")
        config[0x106:0x108] = ats.to_bytes(2, "little")
    return bytes(config)


def test_pcie_settings_are_read_in_lspcis_words() -> None:
    assert str(pci.settings(space(express(0x5930)))) == "MaxReadReq 4096 MaxPayload 256 RlxdOrd+"
    assert str(pci.settings(space(express(0x2820, 0x8000)))) == "MaxReadReq 512 MaxPayload 256 RlxdOrd- ATS+"
    assert pci.settings(space(express(0x2820, 0))).ats is False


def test_pcie_settings_take_root_and_a_function_on_pci_express() -> None:
    with pytest.raises(Denied, match="its PCIe settings lie beyond"):
        pci.settings(space(express(0)[:64]))
    assert pci.settings(space(bytes(4096))) is None
    looped = bytearray(4096)
    looped[0x34], looped[0x40:0x42] = 0x40, b"\x05\x40"
    assert pci.settings(space(bytes(looped))) is None
