"""The PCI bus: what is too narrow, what only idles, and where sysfs and nvidia-smi tell different things."""

from ncclprobe.checks.env.fixtures import over
from ncclprobe.checks.gpu.siblings import METAL, TREE, TWO
from ncclprobe.checks.gpu.state import HEALTHY, box
from ncclprobe.checks.pci.links import FULL, HALF, cards, gpu_gen, gpu_width, nic, nic_fits, nic_link
from ncclprobe.checks.pci.tree import (
    NO_LINKS,
    NO_PEERS,
    ONE,
    WITH_NIC,
    acs,
    below_a_switch,
    iommu,
    printed,
    topology_agree,
)
from ncclprobe.engine.judge import judge
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.machine import Machine
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci, PcieLink
from ncclprobe.model.findings import Severity, Status
from ncclprobe.model.nccl_selection import Choices, Decision, PeerChoice
from ncclprobe.model.snapshot import Absent, Job, Snapshot
from ncclprobe.model.values import replace
from tests.checks.cases.pci import GUEST, UNTOLD

GRACE = Absent("NVML nvmlDeviceGetCurrPcieLinkWidth: Not Supported", "Failed")


def test_grace_has_no_pcie_link_to_judge() -> None:
    chip = replace(HEALTHY, pcie_width=GRACE, pcie_max_width=GRACE, pcie_generation=GRACE, pcie_max_generation=GRACE)
    verdicts = judge([Snapshot("n", {Gpus: box(chip, chip)})], [gpu_width, gpu_gen], Job())
    assert {v.status for v in verdicts} == {Status.SKIP}


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


def test_acs_and_iommu_of_a_guest_are_the_hosts() -> None:
    facts = {Machine: GUEST, Pci: below_a_switch("ReqRedir", iommu="DMA"), Gpus: ONE}
    verdicts = judge([Snapshot("n", facts)], [acs, iommu], Job())
    assert {v.status for v in verdicts} == {Status.SKIP}


def test_words_that_mean_the_same_to_nccl_are_a_note_that_names_both() -> None:
    (finding,) = topology_agree.run(printed("PXB"), TREE, TWO, NO_LINKS, Fabric(), METAL)
    assert (finding.severity, finding.subject) == (Severity.NOTE, "GPU0 and GPU1")
    assert finding.message == "PIX according to sysfs and NVML, but PXB according to nvidia-smi"


def test_the_old_name_of_another_socket_is_its_new_one() -> None:
    (finding,) = topology_agree.run(printed("SOC"), TREE, TWO, NO_LINKS, Fabric(), METAL)
    assert finding.message == "PIX according to sysfs and NVML, but SYS according to nvidia-smi"


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
