"""A machine seen by its own facts: its links, the one type that it may be, and never a guess.

What each capture shows and is taken for is kept in tests/data/command_values/recognised.txt.
"""

from pathlib import Path

from expect.boxes import CAPTURES, facts_of, named
from ncclprobe.expect.recognise import MachineFacts, Recognised, recognise, seen, should_be
from ncclprobe.expect.system import NodeSystem
from ncclprobe.expect.tables.machines import MachineType, Match, find, table
from ncclprobe.expect.visible import nvlink_fabric, system_of
from ncclprobe.facts.nvlink import NvLink, NvLinks
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from tests.each_row import each_row

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
FAULTY = {(), ("DGX H100",), ("DGX A100",), ("GB200 NVL72",), ("DGX-1V",), ("p4d.24xlarge",)}


def ideal(machine: MachineType) -> MachineFacts:
    """Return what a machine of this type shows when nothing is wrong with it."""
    match, links = machine.match, machine.links
    return MachineFacts(
        cloud=match.cloud, vendor=match.vendor or ("Some Vendor" if match.elsewhere else ""),
        product=match.products[0] if match.products else "", cpu=" ".join(match.cpus[:1]),
        gpu_names=match.gpu_names[:1], gpus=links.gpus, nvlinks=links.nvlinks, nics=links.nics, nic_gbps=links.nic_gbps,
    )  # fmt: skip


def of(name: str) -> Recognised:
    return recognise(seen(*named(name)))


def system(name: str) -> NodeSystem:
    found = system_of(named(name)[0])
    assert isinstance(found, NodeSystem)
    return found


@each_row("machine", table().values(), ids=lambda machine: machine.name)
def test_a_types_own_facts_recognise_it_and_only_it_whatever_the_order_of_the_table(machine: MachineType) -> None:
    """Two types that fit are an error here, unless each names the other as its twin."""
    found = recognise(ideal(machine))
    assert found == recognise(ideal(machine), list(table().values())[::-1])
    if machine.match.by_name_only:
        assert machine.name not in found.candidates
        return
    assert set(found.candidates) == {machine.name, *machine.match.twins}, found.why
    assert ((found.machine is machine) != bool(machine.match.twins), found.differs) == (True, ())


@each_row("path", CAPTURES, ids=lambda path: path.stem)
def test_every_capture_is_a_system_or_says_why_and_of_one_type_at_most_which_a_fault_does_not_change(
    path: Path,
) -> None:
    facts, firmware = facts_of(path)
    found = recognise(seen(facts, firmware))
    if path.parent.name == "sick":
        assert found.candidates in FAULTY
    else:
        assert found.candidates == ((KNOWN[path.stem],) if path.stem in KNOWN else ())
        assert (bool(found.why), found.differs) == (True, ())
    links = system_of(facts)
    if isinstance(facts.gpus, Absent) or path.stem == "gpu-other":  # a GPU unlike its siblings: no number fits it
        assert isinstance(links, Absent)
        assert links.why
    else:
        assert isinstance(links, NodeSystem)
        assert (links.gpus > 0, links.pcie_GBps > 0) == (True, True)
        assert (links.fabric == "none") == (links.nvlinks == 0) == (links.nvlink_GBps == 0)
        assert (links.network is None) == (links.nics == 0)


MEGA, P5, BOARD = (ideal(find(name)) for name in ("a3-megagpu-8g", "p5.48xlarge", "HGX H100"))
BOARD = replace(BOARD, vendor="Supermicro", product="SYS-821GE-TNHR", nics=4, nic_gbps=200.0)
TWO = ("a3-edgegpu-8g", "a3-highgpu-8g")


@each_row(
    ("facts", "machine", "candidates", "differs", "why"),
    [
        # In a cloud a lost NIC is a loss, and half of them another type.
        (replace(MEGA, nics=7), "a3-megagpu-8g", None, ["200 Gb/s NICs: 7, expected 8"], ""),
        (replace(MEGA, nics=4), None, TWO, [], "ambiguous: a3-edgegpu-8g and a3-highgpu-8g fit; choose one with"),
        (replace(MEGA, nics=9), None, (), [], "a3-megagpu-8g (200 Gb/s NICs: 9, expected 8)"),
        # Firmware that names the type decides, and the rest is compared.
        (replace(P5, gpus=1, nics=0, nvlinks=0), "p5.48xlarge", None, 3, "though GPUs: 1, expected 8; NVLinks of"),
        (replace(P5, gpu_names=("NVIDIA H200",)), None, (), [], "GPUs: NVIDIA H200, expected NVIDIA H100 80GB HBM3"),
        (replace(P5, gpu_names=(), gpus=None), "p5.48xlarge", None, ["GPUs: not known, expected 8"], ""),
        *((replace(P5, product=name), None, (), [], "") for name in ("p5.48xlarg", "p5.48xlarge2", "xp5.48xlarge", "")),
        # A board of any maker is known by its GPUs, unless firmware is silent.
        (replace(BOARD, nvlinks=17), "HGX H100", None, ["NVLinks of a GPU: 17, expected 18"], ""),
        *((replace(BOARD, **each), None, (), [], "") for each in ({"gpus": 7}, {"vendor": ""}, {"vendor": "NVIDIA"})),
        (MachineFacts(), None, (), [], "the firmware names no machine, which has no GPU"),
        (MachineFacts(vendor="QEMU", unknown=("GPUs: no driver",)), None, (), [], "not known: GPUs: no driver"),
    ],
)  # fmt: skip
def test_a_loss_is_a_loss_and_more_is_another_type(
    facts: MachineFacts, machine: str | None, candidates: tuple[str, ...] | None, differs: list[str] | int, why: str
) -> None:
    found = recognise(facts)
    assert (found.machine.name if found.machine else None) == machine
    assert found.candidates == ((machine,) if candidates is None else candidates)
    told = [str(each) for each in found.differs]
    assert (len(told) if isinstance(differs, int) else told) == differs
    assert why in found.why


def test_what_was_not_read_is_told_and_two_types_without_a_word_about_each_other_are_ambiguous() -> None:
    blind = seen(replace(named("hgx-h100")[0], gpus=Absent("no driver")), Absent("denied"))
    assert (blind.unknown, blind.gpus) == (("firmware: denied", "GPUs: no driver"), 8)
    one = find("HGX H100")
    other = replace(one, name="HGX H100 copy", match=Match(one.match.gpu_names, elsewhere=True))
    found = recognise(ideal(one), [one, other])
    assert (found.machine, found.candidates) == (None, ("HGX H100", "HGX H100 copy"))
    assert recognise(ideal(one), [one, replace(other, origin="a site")]).machine == replace(other, origin="a site")


def test_a_machine_should_be_as_its_type_and_a_board_has_the_nics_that_are_here() -> None:
    assert should_be(of("ib-down"), system("ib-down")) == find("DGX H100").system()
    here = system("hgx-h200")
    board = should_be(of("hgx-h200"), here)
    assert isinstance(board, NodeSystem)
    assert (board.name, board.nics, board.nic_gbps) == ("HGX H200", here.nics, here.nic_gbps)
    assert should_be(of("l40s-8"), here) is here
    assert should_be(of("dgx-b200"), Absent("no")) == find("DGX B200").system()
    healthy = {"hgx-h100": "DGX H100", "dgx-a100": "DGX A100", "dgx-1v": "DGX-1V", "dgx-b200": "DGX B200"}
    for name, type_ in healthy.items():
        made = find(type_).system()
        assert replace(system(name), name=made.name, source=made.source, nic_path=made.nic_path) == made


def test_what_is_assumed_is_said_and_unlike_or_lost_gpus_are_no_system() -> None:
    facts, _ = named("hgx-h100")
    unsaid = system_of(replace(facts, nvlinks=Absent("no"), cpus=Absent("no")))
    assert isinstance(unsaid, NodeSystem)
    assert (unsaid.fabric, unsaid.processor, "assumed: NVLinks, processor" in unsaid.source) == (
        "none",
        "unknown",
        True,
    )
    gpus = facts.gpus
    assert not isinstance(gpus, Absent)
    mixed = (replace(gpus.all[0], name="NVIDIA L40S"), *gpus.all[1:])
    gone = tuple(replace(gpu, lost="GPU is lost") for gpu in gpus.all)
    for broken, words in ((mixed, "several kinds: NVIDIA H100 80GB HBM3, NVIDIA L40S"), (gone, "every GPU is lost")):
        none = system_of(replace(facts, gpus=replace(gpus, all=broken)))
        assert isinstance(none, Absent)
        assert words in none.why


def test_bridges_of_four_are_told_from_a_mesh_and_from_a_dgx_1() -> None:
    four = [[peer for peer in range(gpu // 4 * 4, gpu // 4 * 4 + 4) if peer != gpu] for gpu in range(8)]
    shapes = {
        ("mesh", 18, 4): ([each * 6 for each in four], [each * 6 for each in four[:4]]),
        ("pairs", 4, 2): ([[gpu ^ 1] * 4 for gpu in range(8)],),
        ("cube-mesh", 4, 8): ([[*each, gpu ^ 4] for gpu, each in enumerate(four)],),
    }
    facts, _ = named("hgx-h200")
    for wanted, laid in shapes.items():
        for joined in laid:
            rows = ([NvLink(n, "active", remote="gpu", remote_pci=f"{end:02x}") for n, end in enumerate(ends)]
                    for ends in joined)  # fmt: skip
            assert nvlink_fabric(replace(facts, nvlinks=NvLinks(tuple(map(tuple, rows))))) == wanted
