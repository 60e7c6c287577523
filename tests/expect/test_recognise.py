"""Recognising a type: every type by its own facts and only it, every capture by at most one, and never by a guess."""

from pathlib import Path

from expect.captured import CAPTURES, facts_of, named
from ncclprobe.expect.recognise import MachineFacts, Recognised, recognise, seen, should_be
from ncclprobe.expect.system import NodeSystem
from ncclprobe.expect.tables.machines import MachineType, Match, find, table
from ncclprobe.expect.visible import nvlink_fabric, system_of
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.each_row import each_row, some

every_type = each_row("machine", table().values(), ids=lambda machine: machine.name)
KNOWN = {
    "aws-p4d": "p4d.24xlarge",
    "dgx-1v": "DGX-1V",
    "dgx-a100": "DGX A100",
    "dgx-b200": "DGX B200",
    "gb200-tray": "GB200 NVL72",
    "gcp-a3-mega": "a3-megagpu-8g",
    "hgx-h100": "DGX H100",
    "hgx-h100-user": "DGX H100",
    "hgx-h200": "HGX H200",
}
"""The captures that are of a known type; all others of tests/captures are not."""


def ideal(machine: MachineType) -> MachineFacts:
    """Return what a machine of this type shows when nothing is wrong with it."""
    match, links = machine.match, machine.links
    return MachineFacts(
        cloud=match.cloud,
        vendor=match.vendor or ("Some Vendor" if match.elsewhere else ""),
        product=match.products[0] if match.products else "",
        cpu=" ".join(match.cpus[:1]),
        gpu_names=match.gpu_names[:1],
        gpus=links.gpus,
        nvlinks=links.nvlinks,
        nics=links.nics,
        nic_gbps=links.nic_gbps,
    )


def of(name: str) -> Recognised:
    return recognise(seen(*named(name)))


@every_type
def test_a_types_own_facts_recognise_it_and_only_it(machine: MachineType) -> None:
    """Two types that fit are an error here, unless each names the other as its twin."""
    found = recognise(ideal(machine))
    if machine.match.by_name_only:
        assert machine.name not in found.candidates
        return
    assert set(found.candidates) == {machine.name, *machine.match.twins}, found.why
    assert (found.machine is machine) != bool(machine.match.twins)
    assert not found.differs


@each_row("path", [p for p in CAPTURES if p.parent.name != "sick"], ids=lambda path: path.stem)
def test_every_capture_is_recognised_by_at_most_one_type(path: Path) -> None:
    found = recognise(seen(*facts_of(path)))
    assert found.candidates == ((KNOWN[path.stem],) if path.stem in KNOWN else ())
    assert found.why
    assert not found.differs


@each_row("path", [p for p in CAPTURES if p.parent.name == "sick"], ids=lambda path: path.stem)
def test_a_fault_makes_no_other_type_of_a_machine(path: Path) -> None:
    found = recognise(seen(*facts_of(path)))
    assert found.candidates in {(), ("DGX H100",), ("DGX A100",), ("GB200 NVL72",), ("DGX-1V",), ("p4d.24xlarge",)}


def test_what_is_missing_is_named() -> None:
    assert of("ib-half-rate").why == "DGX H100, though 400 Gb/s NICs: 7, expected 8"
    assert of("nvlink-down").why == "DGX H100, though NVLinks of a GPU: 17, expected 18"


def test_an_order_of_the_table_changes_nothing() -> None:
    for machine in some(table().values()):
        facts = ideal(machine)
        forwards, backwards = recognise(facts, table().values()), recognise(facts, list(table().values())[::-1])
        assert forwards == backwards


MEGA = ideal(find("a3-megagpu-8g"))
TWO = {"a3-highgpu-8g", "a3-edgegpu-8g"}


def test_in_a_cloud_a_lost_nic_is_a_loss_and_half_of_them_another_type() -> None:
    seven = recognise(replace(MEGA, nics=7))
    assert seven.machine == find("a3-megagpu-8g")
    assert [str(difference) for difference in seven.differs] == ["200 Gb/s NICs: 7, expected 8"]
    four = recognise(replace(MEGA, nics=4))
    assert (four.machine, set(four.candidates)) == (None, TWO)
    assert four.why == "ambiguous: a3-edgegpu-8g and a3-highgpu-8g fit; choose one with --machine"


def test_unknown_nics_leave_every_type_that_may_be() -> None:
    found = recognise(replace(MEGA, nics=None, nic_gbps=None))
    assert set(found.candidates) == {"a3-megagpu-8g", *TWO}
    assert found.machine is None


def test_more_parts_than_a_type_has_are_another_type() -> None:
    found = recognise(replace(MEGA, nics=9))
    assert found.candidates == ()
    assert "a3-megagpu-8g (200 Gb/s NICs: 9, expected 8)" in found.why


def test_firmware_that_names_the_type_decides_and_the_rest_is_compared() -> None:
    p5 = ideal(find("p5.48xlarge"))
    container = recognise(replace(p5, gpus=1, nics=0, nvlinks=0))
    assert container.machine == find("p5.48xlarge")
    assert len(container.differs) == 3
    wrong = recognise(replace(p5, gpu_names=("NVIDIA H200",)))
    assert wrong.machine is None
    assert "GPUs: NVIDIA H200, expected NVIDIA H100 80GB HBM3" in wrong.why
    assert recognise(replace(p5, gpu_names=(), gpus=None)).machine == find("p5.48xlarge")


@each_row("product", ["p5.48xlarg", "p5.48xlarge2", "xp5.48xlarge", "DGXH1000", "DGX", ""])
def test_a_product_is_no_other_because_one_begins_with_or_contains_it(product: str) -> None:
    for name in ("p5.48xlarge", "DGX H100"):
        assert recognise(replace(ideal(find(name)), product=product)).candidates == ()


def test_a_board_of_any_maker_is_known_by_its_gpus_unless_firmware_is_silent() -> None:
    board = replace(ideal(find("HGX H100")), vendor="Supermicro", product="SYS-821GE-TNHR", nics=4, nic_gbps=200.0)
    assert recognise(board).machine == find("HGX H100")
    assert recognise(replace(board, nvlinks=17)).differs[0].seen == 17
    assert recognise(replace(board, gpus=7)).machine is None
    assert recognise(replace(board, vendor="")).machine is None
    assert recognise(replace(board, vendor="NVIDIA")).machine is None


def test_a_machine_nobody_knows_is_told_what_was_seen_and_what_not() -> None:
    assert recognise(MachineFacts()).why == "the firmware names no machine, which has no GPU"
    found = recognise(MachineFacts(vendor="QEMU", unknown=("GPUs: no driver",)))
    assert found.why == "no machine type fits; not known: GPUs: no driver"
    facts, firmware = named("hgx-h100")
    blind = seen(replace(facts, gpus=Absent("no driver")), Absent("denied"))
    assert blind.unknown == ("firmware: denied", "GPUs: no driver")
    assert blind.gpus == 8
    assert not isinstance(firmware, Absent)


def test_two_types_without_a_word_about_each_other_are_ambiguous() -> None:
    one = find("HGX H100")
    other = replace(one, name="HGX H100 copy", match=Match(one.match.gpu_names, elsewhere=True))
    found = recognise(ideal(one), [one, other])
    assert (found.machine, found.candidates) == (None, ("HGX H100", "HGX H100 copy"))


def test_a_machine_should_be_as_its_type_and_a_board_has_the_nics_that_are_here() -> None:
    facts, _ = named("ib-down")
    lost = should_be(of("ib-down"), system_of(facts))
    assert lost == find("DGX H100").system()
    here = system_of(named("hgx-h200")[0])
    board = should_be(of("hgx-h200"), here)
    assert isinstance(here, NodeSystem)
    assert isinstance(board, NodeSystem)
    assert (board.name, board.nics, board.nic_gbps) == ("HGX H200", here.nics, here.nic_gbps)
    assert should_be(of("l40s-8"), here) is here
    assert should_be(of("dgx-b200"), Absent("no")) == find("DGX B200").system()


def test_bridges_of_four_are_told_from_a_mesh_and_from_a_dgx_1() -> None:
    def laid(joined: list[list[int]]) -> NvLinks:
        return NvLinks(
            tuple(
                tuple(NvLink(link, "active", remote="gpu", remote_pci=f"{end:02x}") for link, end in enumerate(ends))
                for ends in joined
            )
        )

    facts, _ = named("hgx-h200")
    bridges = [[peer for peer in range(gpu // 4 * 4, gpu // 4 * 4 + 4) if peer != gpu] * 6 for gpu in range(8)]
    pairs = [[gpu ^ 1] * 4 for gpu in range(8)]
    cube = [[*(p for p in range(gpu // 4 * 4, gpu // 4 * 4 + 4) if p != gpu), gpu ^ 4] for gpu in range(8)]
    assert nvlink_fabric(replace(facts, nvlinks=laid(bridges))) == ("mesh", 18, 4)
    assert nvlink_fabric(replace(facts, nvlinks=laid(bridges[:4]))) == ("mesh", 18, 4)
    assert nvlink_fabric(replace(facts, nvlinks=laid(pairs))) == ("pairs", 4, 2)
    assert nvlink_fabric(replace(facts, nvlinks=laid(cube))) == ("cube-mesh", 4, 8)
