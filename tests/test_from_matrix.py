"""What a matrix of `nvidia-smi topo` yields to the checks, and what they say of it."""

from collections.abc import Sequence

from fake_topo import Printed
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.commands.topo import judged
from ncclprobe.facts.infiniband import Fabric
from ncclprobe.facts.nvlink import NvLinks
from ncclprobe.facts.nvml import Gpus
from ncclprobe.facts.pci import Pci
from ncclprobe.facts.topo_matrix import Matrix, parse
from ncclprobe.model.findings import Severity, Status
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace
from ncclprobe.nccl.from_matrix import facts_of
from ncclprobe.nccl.paths import machine_topology
from tests.each_row import each_row

Links = Sequence[Sequence[str]]


def server(gpus: int = 8, word: str = "NV18") -> list[list[str]]:
    """The words of a server of two sockets, with a NIC behind the PCIe switch of each GPU."""

    def between(one: int, two: int) -> str:
        if one == two:
            return "X"
        if one < gpus and two < gpus:
            return word
        near = "NODE" if one % gpus * 2 // gpus == two % gpus * 2 // gpus else "SYS"
        return "PXB" if one % gpus == two % gpus else near

    return [[between(one, two) for two in range(2 * gpus)] for one in range(2 * gpus)]


def changed(links: Links, change: dict[tuple[int, int], str]) -> list[list[str]]:
    found = [list(row) for row in links]
    for (one, two), word in change.items():
        found[one][two] = found[two][one] = word
    return found


def matrix(links: Links, gpus: int) -> Matrix:
    tails = ((),) * gpus
    return Printed(gpus, len(links) - gpus, tuple(map(tuple, links)), tails).matrix()


def said(links: Links, gpus: int = 8) -> list[str]:
    """Severity, check, subject and message of what is found."""
    verdicts = judged((matrix(links, gpus),), "FILE")
    assert not [verdict.why for verdict in verdicts if verdict.status is Status.UNKNOWN]
    return [f"{f.severity.value} {v.id} {f.subject}: {f.message}" for v in verdicts for f in v.findings]


def test_nothing_is_said_of_a_healthy_server() -> None:
    assert said(server()) == []
    assert said(server(4, "NV4"), 4) == []
    assert said(server(2, "SYS"), 2) == ["note nvl.links 2 GPUs: no NVLink connects them: every pair is SYS"]


def test_a_gpu_with_fewer_nvlinks_than_its_siblings_is_found_behind_nvswitches() -> None:
    weak = {(3, other): "NV16" for other in range(8) if other != 3}
    assert said(changed(server(), weak)) == ["fail nvl.links GPU3: 16 NVLinks are up; its siblings have 18"]


def test_a_pair_with_fewer_nvlinks_is_found_though_no_nvswitch_makes_such_a_pair() -> None:
    found = said(changed(server(), {(3, 5): "NV16"}))
    assert [line.partition(":")[0] for line in found] == ["fail nvl.links GPU3", "fail nvl.links GPU5"]


def test_a_gpu_without_nvlinks_is_found() -> None:
    off = {(5, other): "SYS" for other in range(8) if other != 5}
    assert said(changed(server(), off)) == ["fail nvl.links GPU5: 0 NVLinks are up; its siblings have 18"]
    mesh = {(2, other): "SYS" for other in range(4) if other != 2}
    assert said(changed(server(4, "NV4"), mesh), 4) == ["warn nvl.links GPU2: 0 NVLinks are up; its siblings have 8"]


def test_a_pair_of_a_mesh_with_fewer_nvlinks_is_found_at_both_ends() -> None:
    found = said(changed(server(4, "NV4"), {(0, 2): "NV3"}), 4)
    assert [line.partition(":")[0] for line in found] == ["warn nvl.links GPU0", "warn nvl.links GPU2"]


@each_row(
    "links",
    [
        {(0, 1): "NV1", (0, 2): "NV1", (1, 2): "NV2"},  # three of the eight V100s of a server
        {(0, 1): "NV4", (0, 2): "SYS", (1, 2): "SYS"},  # a pair with a bridge, and one without
    ],
)
def test_gpus_that_are_linked_unequally_by_design_are_no_fault(links: dict[tuple[int, int], str]) -> None:
    assert not [line for line in said(changed(server(3, "SYS"), links), 3) if not line.startswith("note")]


def test_of_part_of_a_hybrid_mesh_it_is_not_known_which_links_are_missing() -> None:
    part = changed(server(4, "SYS"), {(0, 1): "NV1", (1, 2): "NV2", (2, 3): "NV1", (1, 3): "NV1"})
    assert isinstance(facts_of(matrix(part, 4))[NvLinks], Absent)


def test_a_nic_that_is_behind_the_other_processor_is_found_at_its_gpu() -> None:
    far = {(8 + 3, other): "SYS" for other in range(16) if other != 8 + 3}
    assert said(changed(server(), far)) == [
        "warn ib.gdr GPU3: the nearest NIC is mlx5_2 at PHB; most GPUs have a NIC below their own switch"
    ]


def test_a_nic_that_only_its_gpu_calls_far_is_found_though_no_tree_is_so() -> None:
    found = said(changed(server(), {(3, 8 + 3): "SYS"}))
    assert [line.partition(":")[0] for line in found] == ["warn ib.gdr GPU3"]


def test_findings_rest_on_the_text_and_on_no_file_of_a_machine() -> None:
    (verdict, *_rest) = judged((matrix(changed(server(), {(0, 1): "NV16"}), 8),), "topo.txt")
    assert {evidence.source for finding in verdict.findings for evidence in finding.evidence} == {"topo.txt"}
    assert all(finding.remedy for finding in verdict.findings)


def test_words_that_no_tree_has_are_not_judged() -> None:
    odd = changed(server(), {(0, 9): "PIX", (1, 8): "PIX", (0, 8): "SYS"})
    tree = facts_of(matrix(odd, 8))[Pci]
    assert isinstance(tree, Absent)
    assert "no PCI tree has these words" in tree.why


def test_what_a_matrix_cannot_show_is_unknown_and_never_passed() -> None:
    pcie = replace(matrix(server(8, "SYS"), 8), kind="topo-mp")
    status = {verdict.id: (verdict.status, verdict.why) for verdict in judged((pcie,), "FILE")}
    assert status["nvl.links"] == (Status.UNKNOWN, "a matrix of -mp shows no NVLinks")


def test_gpus_whose_rows_are_cut_off_are_not_said_to_have_lost_their_links() -> None:
    text = Printed(8, 0, tuple(tuple(row[:8]) for row in server()[:8]), ((),) * 8).text()
    (cut,) = parse(text.partition("\nGPU6")[0] + "\n")
    links = facts_of(cut)[NvLinks]
    assert [isinstance(row, Absent) for row in links.gpus] == [False] * 5 + [
        True
    ] * 3  # of GPU5 the last cell is unsure
    assert not [f for v in judged((cut,), "FILE") for f in v.findings if f.severity is not Severity.NOTE]


P2P = "$ nvidia-smi topo -p2p {}\n \tGPU0\tGPU1\t\n GPU0\tX\t{}\t\n GPU1\t{}\tX\t\n"


def test_a_table_of_peer_to_peer_status_is_judged_with_the_matrix_above_it() -> None:
    bridged = Printed(2, 0, (("X", "NV4"), ("NV4", "X")), ((),) * 2).text()
    verdicts = judged(parse(f"{bridged}\n{P2P.format('r', 'CNS', 'CNS')}"), "FILE")
    assert [v.id for v in verdicts] == ["nvl.links", "ib.gdr", "ib.gdr", "gpu.p2p"]
    (finding,) = verdicts[-1].findings
    assert (finding.severity, finding.subject) == (Severity.FAIL, "GPU0 and GPU1")
    assert judged(parse(f"{bridged}\n{P2P.format('r', 'OK', 'OK')}"), "FILE")[-1].status is Status.PASS


@each_row("letter", ["n", "a", "p"])
def test_a_table_of_another_capability_denies_no_access(letter: str) -> None:
    (verdict,) = judged(parse(P2P.format(letter, "NS", "NS")), "FILE")
    assert verdict.status is Status.UNKNOWN
    assert f"-p2p {letter} does not say" in verdict.why


def test_two_machines_in_one_text_are_judged_apart() -> None:
    weak = matrix(changed(server(), {(3, other): "NV16" for other in range(8) if other != 3}), 8)
    found = [(v.node, v.status) for v in judged((matrix(server(), 8), weak), "FILE") if v.id == "nvl.links"]
    assert found == [("1", Status.PASS), ("2", Status.FAIL)]


@each_row("gpus", [("GPU" + "1" * 5000,), tuple(f"GPU{n}" for n in range(1000))])
def test_a_matrix_of_no_machine_is_not_judged(gpus: tuple[str, ...]) -> None:
    huge = Matrix("topo-m", gpus, (), {gpu: {gpu: "X"} for gpu in gpus}, (), (), ())
    assert {verdict.status for verdict in judged((huge,), "FILE")} == {Status.UNKNOWN}


@st.composite
def trees(draw: st.DrawFn) -> tuple[int, list[list[str]]]:
    """The words of a machine whose tree is known: a device's place is its NUMA node, bridge, port and two switches."""
    gpus, nics = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    places = [[draw(st.integers(0, 1)) for _ in range(4)] for _ in range(gpus + nics)]
    words = ("SYS", "NODE", "PHB", "PXB", "PIX")

    def between(one: int, two: int) -> str:
        same = next((n for n in range(4) if places[one][n] != places[two][n]), 4)
        return "X" if one == two else words[same]

    size = range(gpus + nics)
    return gpus, [[between(one, two) for two in size] for one in size]


@given(trees())
def test_the_tree_of_a_matrix_prints_the_matrix(machine: tuple[int, list[list[str]]]) -> None:
    gpus, links = machine
    shown = matrix(links, gpus)
    facts = facts_of(shown)
    assert isinstance(facts[Pci], Pci)
    assert isinstance(facts[Gpus], Gpus)
    own = machine_topology(facts[Pci], facts[Gpus], facts[NvLinks], facts[Fabric]).smi
    assert {one: {two: own[one, two] for two in row} for one, row in shown.links.items()} == shown.links
