"""The PCI bus: what is too narrow, what only idles, and where sysfs and nvidia-smi tell different things."""

import pytest

from ncclprobe.checks.env.fixtures import over
from ncclprobe.checks.gpu.siblings import METAL, TREE, TWO
from ncclprobe.checks.gpu.state import HEALTHY, box
from ncclprobe.checks.pci.links import FULL, HALF, cards, gpu_at, gpu_gen, gpu_width, nic, nic_fits, nic_link, node
from ncclprobe.checks.pci.tree import (
    NO_COUNTERS,
    NO_LINKS,
    NO_PEERS,
    ONE,
    UNCHOSEN,
    WITH_NIC,
    acs,
    aer,
    below_a_switch,
    iommu,
    printed,
    topology_agree,
    with_errors,
)
from ncclprobe.engine.judge import judge
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Bridge, Device, Identity, Pci, PcieLink, PciPosition
from ncclprobe.model.errors import Unlearned
from ncclprobe.model.findings import Finding, Severity, Status
from ncclprobe.model.nccl_selection import Choices, Decision, PeerChoice
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from tests.checks.cases.pci import GUEST, LINKED, UNTOLD, _below_switches
from tests.each_row import each_row

GRACE = Absent("NVML nvmlDeviceGetCurrPcieLinkWidth: Not Supported", "Failed")


def grave(findings: list[Finding]) -> dict[str, Severity]:
    return {f.subject: f.severity for f in findings if f.severity is not Severity.NOTE}


def test_a_narrow_gpu_fails_and_its_siblings_do_not() -> None:
    gpus, pci = node(gpu_at(1), gpu_at(2, 8), gpu_at(3))
    assert grave(list(gpu_width.run(gpus, pci, METAL))) == {"GPU1": Severity.FAIL}


def test_a_guests_gpus_that_are_all_as_narrow_are_a_note() -> None:
    gpus, pci = node(gpu_at(1, 8), gpu_at(2, 8))
    assert grave(list(gpu_width.run(gpus, pci, GUEST))) == {}
    assert len(grave(list(gpu_width.run(gpus, pci, METAL)))) == 2
    assert grave(list(gpu_width.run(*node(gpu_at(1, 8)), GUEST))) == {}


def test_switches_that_all_have_half_their_lanes_are_noted() -> None:
    found = list(gpu_width.run(*_below_switches(8, 8, 8), METAL))
    assert [(each.severity, each.subject) for each in found] == [(Severity.NOTE, f"0000:4{n}:00.0") for n in range(3)]


def test_a_slot_of_8_lanes_is_no_fault_where_nvml_says_that_8_is_the_most() -> None:
    gpus, pci = node(gpu_at(1, 8), gpu_at(2))
    narrow = replace(gpus.all[0], pcie_max_width=8)
    assert grave(list(gpu_width.run(replace(gpus, all=(narrow, gpus.all[1])), pci, METAL))) == {}


def test_grace_has_no_pcie_link_to_judge() -> None:
    chip = replace(HEALTHY, pcie_width=GRACE, pcie_max_width=GRACE, pcie_generation=GRACE, pcie_max_generation=GRACE)
    verdicts = judge([Snapshot("n", {Gpus: box(chip, chip)})], [gpu_width, gpu_gen], Job())
    assert {v.status for v in verdicts} == {Status.SKIP}


@each_row("generation", [1, 2, 3, 4, 5])
def test_an_idle_gpu_may_run_at_any_generation(generation: int) -> None:
    gpus, _ = node(gpu_at(1), gpu_at(2))
    idle = replace(gpus, all=tuple(replace(gpu, pcie_generation=generation) for gpu in gpus.all))
    assert list(gpu_gen.run(idle)) == []


def test_a_gpu_whose_clocks_nobody_explains_is_not_taken_for_working() -> None:
    gpus, _ = node(gpu_at(1))
    unexplained = replace(gpus, all=(replace(gpus.all[0], throttle=Absent("Not Supported")),))
    assert list(gpu_gen.run(unexplained)) == []


def test_two_ports_of_one_card_share_its_slot() -> None:
    pair = cards(nic(0, FULL), nic(0, FULL, function=1))
    (finding,) = nic_fits.run(*pair)
    assert (finding.severity, finding.subject) == (Severity.NOTE, "mlx5_0, mlx5_1")


def test_a_port_that_is_down_needs_no_lanes() -> None:
    fabric, pci = cards(nic(0, PcieLink(16.0, 16, 32.0, 16)))
    (device,) = fabric.devices
    down = Fabric((replace(device, ports=(replace(device.ports[0], state="DOWN"),)),))
    assert grave(list(nic_fits.run(down, pci))) == {}


def test_a_narrow_nic_is_one_finding_and_not_two() -> None:
    fabric, pci = cards(nic(0, HALF), nic(1, FULL))
    verdicts = judge([Snapshot("n", {Fabric: fabric, Pci: pci, Gpus: ONE})], [nic_link, nic_fits], Job())
    assert [v.status for v in verdicts] == [Status.FAIL, Status.SKIP]


def test_virtual_functions_whose_link_nobody_knows_are_skipped_and_refused_files_are_unknown() -> None:
    for link, status in ((UNTOLD, Status.SKIP), (Absent("permission denied", "Denied"), Status.UNKNOWN)):
        rdma, device = nic(0, FULL)
        facts = {Fabric: Fabric((rdma,)), Pci: Pci({device.address: replace(device, link=link)}), Gpus: ONE}
        (verdict,) = judge([Snapshot("n", facts)], [nic_link], Job())
        assert verdict.status is status


def test_a_spark_splits_its_nic_on_purpose() -> None:
    fabric, pci = cards(nic(0, PcieLink(32.0, 4, 32.0, 4), 200.0))
    facts = {Fabric: fabric, Pci: pci, Gpus: box(replace(HEALTHY, name="NVIDIA GB10"))}
    (verdict,) = judge([Snapshot("n", facts)], [nic_fits], Job())
    assert verdict.status is Status.SKIP


def test_acs_that_may_not_be_read_says_who_may() -> None:
    with pytest.raises(Unlearned, match="needs root"):
        list(acs.run(below_a_switch(seen=False), UNCHOSEN))


def test_acs_counts_on_the_ports_between_gpu_and_nic_only() -> None:
    pci = below_a_switch()
    root = Bridge("0000:00:01.0", Absent("not read"), acs=frozenset({"SrcValid", "ReqRedir", "UpstreamFwd"}))
    storage = Bridge("0000:02:07.0", Absent("not read"), acs=frozenset({"ReqRedir"}))
    other = replace(pci, bridges={**pci.bridges, root.address: root, storage.address: storage})
    assert list(acs.run(other, UNCHOSEN)) == []


def test_two_devices_below_different_root_ports_have_no_switch_that_acs_could_spoil() -> None:
    ports = {
        name: Bridge(name, Absent("not read"), acs=frozenset({"ReqRedir"})) for name in ("0000:00:01.0", "0000:00:02.0")
    }
    gpu = Device("0000:01:00.0", Identity(0x030200, 0x10DE, 1), PciPosition("pci0000:00", ("0000:00:01.0",)), FULL)
    card = Device("0000:02:00.0", Identity(0x020700, 0x15B3, 1), PciPosition("pci0000:00", ("0000:00:02.0",)), FULL)
    assert list(acs.run(Pci({gpu.address: gpu, card.address: card}, ports), UNCHOSEN)) == []


def test_acs_and_iommu_of_a_guest_are_the_hosts() -> None:
    facts = {Machine: GUEST, Pci: below_a_switch("ReqRedir", iommu="DMA"), Gpus: ONE}
    verdicts = judge([Snapshot("n", facts)], [acs, iommu], Job())
    assert {v.status for v in verdicts} == {Status.SKIP}


def test_an_iommu_that_could_not_be_read_does_not_pass() -> None:
    pci = below_a_switch()
    blind = {a: replace(d, iommu=Absent("permission denied", "Denied")) for a, d in pci.devices.items()}
    with pytest.raises(Unlearned):
        list(iommu.run(replace(pci, devices=blind), ONE, Fabric(), Absent("not asked"), UNCHOSEN))


def test_firmware_that_keeps_errors_to_itself_is_one_reason_for_all_devices() -> None:
    missing = Absent("read /sys/bus/pci/devices/0000:03:00.0/aer_dev_correctable: not there", "Missing")
    with pytest.raises(Unlearned, match=NO_COUNTERS.why):
        list(aer.run(with_errors(missing), ONE, Fabric()))


def test_words_that_mean_the_same_to_nccl_are_a_note_that_names_both() -> None:
    (finding,) = topology_agree.run(printed("PXB"), TREE, TWO, NO_LINKS, Fabric(), METAL)
    assert (finding.severity, finding.subject) == (Severity.NOTE, "GPU0 and GPU1")
    assert finding.message == "PIX by sysfs and NVML, PXB by nvidia-smi"


def test_a_matrix_without_nvlink_that_was_asked_for_pcie_is_not_accused_of_it() -> None:
    assert list(topology_agree.run(printed("PIX", "topo-mp"), TREE, TWO, LINKED, Fabric(), METAL)) == []


def test_trees_that_share_no_device_with_the_matrix_do_not_pass() -> None:
    with pytest.raises(Unlearned):
        list(topology_agree.run(printed("PIX"), Pci(), TWO, NO_LINKS, Fabric(), METAL))


def test_bare_words_of_links_do_not_accuse_where_nvml_hides_them() -> None:
    hidden = Absent("NVML: not permitted")
    assert grave(list(topology_agree.run(printed("NV4"), TREE, TWO, hidden, Fabric(), METAL))) == {}


def test_the_old_name_of_another_socket_is_its_new_one() -> None:
    (finding,) = topology_agree.run(printed("SOC"), TREE, TWO, NO_LINKS, Fabric(), METAL)
    assert finding.message == "PIX by sysfs and NVML, SYS by nvidia-smi"


def test_a_lost_gpu_does_not_disagree_with_anybody() -> None:
    lost = replace(TWO, all=(TWO.all[0], replace(TWO.all[1], lost="GPU is lost")))
    assert list(topology_agree.run(printed("NV4"), TREE, lost, NO_LINKS, Fabric(), METAL)) == []


def between_gpus(*ways: tuple[str, str]) -> Choices:
    pairs = (("GPU0", "GPU1"), ("GPU2", "GPU3"))
    return replace(over(""), p2p=Decision(tuple(PeerChoice(pairs, *way, False, "") for way in ways), ""))


def test_what_nccl_does_between_gpus_without_nvlink_and_what_keeps_it_from_that_is_said() -> None:
    over_pcie = between_gpus(("P2P", "PIX"), ("SHM", "SYS"))
    redirected = below_a_switch("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")
    translated = below_a_switch(iommu="DMA")
    said = "from GPU to GPU over PCIe, for 2 pairs without NVLink (PIX), unless NCCL_P2P_DISABLE=1"
    for choices, ends in (
        (over_pcie, True),
        (between_gpus(("P2P", "NVL")), False),
        (between_gpus(("SHM", "PHB")), False),
    ):
        (by_acs,) = acs.run(redirected, choices)
        (by_iommu,) = iommu.run(translated, ONE, WITH_NIC, NO_PEERS, choices)
        assert by_acs.message.endswith(said) == by_iommu.message.endswith(said) == ends
        assert ("NCCL_P2P_DISABLE" in by_acs.message) == ends
