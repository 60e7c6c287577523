"""A machine seen by its own facts alone: the captures of the zoo, healthy and with one fault each."""

from pathlib import Path

from expect.captured import CAPTURES, facts_of, named
from ncclprobe.expect.system import NodeSystem
from ncclprobe.expect.tables.machines import find
from ncclprobe.expect.visible import nics_of, processor, system_of
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.each_row import each_row


def seen(name: str) -> NodeSystem:
    system = system_of(named(name)[0])
    assert isinstance(system, NodeSystem)
    return system


@each_row("path", CAPTURES, ids=lambda path: path.stem)
def test_every_capture_is_a_system_or_says_why_not(path: Path) -> None:
    facts, _ = facts_of(path)
    system = system_of(facts)
    if isinstance(facts.gpus, Absent) or path.stem == "gpu-other":  # a GPU unlike its siblings: no number fits it
        assert isinstance(system, Absent)
        assert system.why
    else:
        assert isinstance(system, NodeSystem)
        assert system.gpus > 0
        assert system.pcie_GBps > 0
        assert (system.fabric == "none") == (system.nvlinks == 0) == (system.nvlink_GBps == 0)
        assert (system.network is None) == (system.nics == 0)


@each_row(
    ("name", "type_"),
    [("hgx-h100", "DGX H100"), ("dgx-a100", "DGX A100"), ("dgx-1v", "DGX-1V"), ("dgx-b200", "DGX B200")],
)
def test_a_healthy_machine_is_what_its_type_says(name: str, type_: str) -> None:
    system, known = seen(name), find(type_).system()
    as_known = replace(system, name=known.name, source=known.source, nic_path=known.nic_path)
    assert as_known == known


def test_of_a_cloud_the_links_are_seen_but_not_its_transport() -> None:
    system, known = seen("gcp-a3-mega"), find("a3-megagpu-8g").system()
    assert (system.nics, system.nic_gbps, system.gpus) == (known.nics, known.nic_gbps, known.gpus)
    assert (system.network, known.network) == ("sockets", "tcpxo")


def test_a_nic_that_is_down_or_slow_is_not_among_those_seen() -> None:
    assert (seen("hgx-h100").nics, seen("ib-down").nics, seen("ib-half-rate").nics) == (8, 7, 7)
    assert nics_of(named("ib-down")[0]).idle == 1


def test_the_gpu_with_the_fewest_links_paces_the_machine() -> None:
    assert (seen("hgx-h100").nvlinks, seen("nvlink-down").nvlinks) == (18, 17)


def test_a_lost_gpu_and_a_narrow_slot_are_seen() -> None:
    assert (seen("hgx-h100").gpus, seen("gpu-lost").gpus) == (8, 7)
    assert (seen("hgx-h100").pcie_GBps, seen("gpu-x8").pcie_GBps) == (48, 24)


def test_denied_p2p_and_missing_gpudirect_are_seen() -> None:
    assert (seen("l40s-8").p2p, seen("rtx4090-2").p2p) == (True, False)
    assert (seen("dgx-1v").gdr, seen("no-peermem").gdr) == (True, False)


def test_bridges_and_a_cpu_with_nvlink_are_told_from_switches() -> None:
    bridged, power = seen("a100-bridged"), seen("power9")
    assert (bridged.fabric, bridged.domain_gpus) == ("pairs", 2)
    assert (power.fabric, power.nvlinks, power.pcie_GBps, power.processor) == ("pairs", 3, 60, "power9")


def test_what_was_assumed_is_said() -> None:
    facts = replace(named("hgx-h100")[0], nvlinks=Absent("no"), cpus=Absent("no"))
    system = system_of(facts)
    assert isinstance(system, NodeSystem)
    assert (system.fabric, system.processor) == ("none", "unknown")
    assert "assumed: NVLinks, processor" in system.source


@each_row(
    ("model", "kind"),
    [
        ("Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz", "bdw"),
        ("Intel(R) Xeon(R) Platinum 8168 CPU @ 2.70GHz", "skl"),
        ("Intel(R) Xeon(R) Platinum 8360Y CPU @ 2.40GHz", "skl"),
        ("Intel(R) Xeon(R) Platinum 8480C", "spr"),
        ("INTEL(R) XEON(R) PLATINUM 8570", "emr"),
        ("Intel(R) Xeon(R) 6776P", "emr"),
        ("AMD EPYC 9654 96-Core Processor", "amd"),
        ("POWER9, altivec supported", "power9"),
        ("Intel(R) Xeon(R) Processor @ 2.00GHz", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_processor_is_classed_as_nccl_classes_it(model: str, kind: str) -> None:
    assert processor(model) == kind


def test_nodes_without_gpus_or_with_two_kinds_are_no_system() -> None:
    facts, _ = named("hgx-h100")
    gpus = facts.gpus
    assert not isinstance(gpus, Absent)
    mixed = replace(gpus, all=(replace(gpus.all[0], name="NVIDIA L40S"), *gpus.all[1:]))
    lost = replace(gpus, all=tuple(replace(gpu, lost="GPU is lost") for gpu in gpus.all))
    for broken, words in ((mixed, "several kinds: NVIDIA H100 80GB HBM3, NVIDIA L40S"), (lost, "every GPU is lost")):
        system = system_of(replace(facts, gpus=broken))
        assert isinstance(system, Absent)
        assert words in system.why
