"""Our tables, choices and channels beside those of NCCL's own code, release by release."""

import math

import pytest

from expect.nccl_vectors import Communicator, Function, communicators
from ncclprobe.expect.system import NcclVersion
from ncclprobe.expect.tuner import cost
from ncclprobe.expect.tuner.graphs import Graph, Graphs
from ncclprobe.expect.tuner.search import graphs
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import replace

RELEASES = sorted({release for each in communicators() for release in each.releases})
MADE_AFTER = "constructed, after the rules were made"
IRREGULAR = {
    "h100-phb": "which of two root ports a ring comes back by is not counted",
    "h100-1nic": "which GPU the only NIC is near is not known",
    "a100-1nic": "which GPU the only NIC is near is not known",
    "a100-8nic-alone": "Ampere's trees want two GPUs near each NIC, which GPUs share a switch is not known",
}
"""Machines of which NodeSystem does not hold what the search depends on."""


def known(release: NcclVersion) -> list[Communicator]:
    """Those that NCCL's tables are known of."""
    return [each for each in communicators() if release in each.releases and each.functions]


def searched(each: Communicator, release: NcclVersion) -> Graphs:
    """What our own search finds, with the latency that the plugin says."""
    found = graphs(each.system, each.shape, release)
    assert not isinstance(found, Absent), found.why
    late = {"latency_inter_us": each.latency_us}
    nvls = replace(found.nvls, **late) if found.nvls else None
    return replace(found, ring=replace(found.ring, **late), tree=replace(found.tree, **late), nvls=nvls)


@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_given_nccls_graphs_tables_and_choices_are_nccls(release: NcclVersion) -> None:
    for each in known(release):
        for function in each.functions:
            assert differences(each, each.graphs, function, release, within=1e-3) == []


def differences(
    each: Communicator, found: Graphs, function: Function, release: NcclVersion, within: float
) -> list[str]:
    """What differs by more than `within`, in words."""
    where = f"{each.name} {each.shape.gpus[0]}x{each.shape.nodes} {function.op}"
    cells = {
        f"{cell.algorithm}/{cell.protocol}": (cell.latency_us, cell.algbw_GBps)
        for cell in cost.cells(found, each.system, each.shape, function.op, release)
        if cell.algbw_GBps
    }
    wrong = [f"{where}: {name}" for name in cells.keys() ^ function.table.keys()]
    for name in cells.keys() & function.table.keys():
        if any(
            abs(ours - theirs) > within * theirs for ours, theirs in zip(cells[name], function.table[name], strict=True)
        ):
            wrong.append(f"{where}: {name} is {cells[name]}, NCCL's {function.table[name]}")
    for choice in function.choices:
        best = cost.best(found, each.system, each.shape, function.op, choice.nbytes, release)
        assert best is not None
        ours = best.algorithm, best.protocol, best.channels
        theirs = choice.algorithm, choice.protocol, choice.channels
        if ours != theirs or abs(math.log(best.time_us / choice.time_us)) > within:
            wrong.append(f"{where} of {choice.nbytes}: {ours} in {best.time_us}, NCCL {theirs} in {choice.time_us}")
    return wrong


@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_our_own_search_finds_nccls_channels_and_so_its_times(release: NcclVersion) -> None:
    for each in known(release):
        found = searched(each, release)
        assert shown(found) == shown(each.graphs), each.name
        for function in each.functions:
            assert differences(each, found, function, release, within=1e-2) == []


def test_machines_that_came_after_the_rules_are_searched_as_nccl_does() -> None:
    later = [each for each in communicators() if each.kind == MADE_AFTER]
    differing = {each.name for each in later if shown(searched(each, each.releases[0])) != shown(each.graphs)}
    assert differing == IRREGULAR.keys()
    assert len(later) > 70


def shown(found: Graphs) -> list[object]:
    """What counts of the graphs: how many switches lie between two GPUs does not."""
    return [_parameters(each) for each in (found.ring, found.tree, found.nvls) if each]


def _parameters(graph: Graph) -> tuple[object, ...]:
    near = {"PXB": "PIX"}
    words = (near.get(word, word) for word in (graph.type_intra, graph.type_inter))
    speeds = (round(speed, 3) for speed in (graph.bw_intra, graph.bw_inter))
    return graph.pattern, graph.channels, *speeds, *words, graph.same_channels


def test_the_releases_of_every_supported_torch_are_here() -> None:
    shipped = {(2, 20, 5), (2, 21, 5), (2, 26, 2), (2, 27, 3), (2, 27, 5), (2, 28, 9), (2, 29, 7), (2, 30, 7)}
    assert shipped <= set(RELEASES)
