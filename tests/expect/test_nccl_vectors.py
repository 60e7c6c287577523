"""Our tables, choices and channels beside those of NCCL's own code, release by release."""

from expect.nccl_vectors import communicators, differences, release_settings, same_channels, searched
from ncclprobe.expect.system import NcclVersion
from tests.each_row import each_row, some

RELEASES = sorted({release for each in communicators() for release in each.releases})
MADE_AFTER = "constructed, after the rules were made"
IRREGULAR = {
    "h100-phb": "which of two root ports a ring comes back by is not counted",
    "h100-1nic": "which GPU the only NIC is near is not known",
    "a100-1nic": "which GPU the only NIC is near is not known",
    "a100-8nic-alone": "Ampere's trees want two GPUs near each NIC, which GPUs share a switch is not known",
}
"""Machines of which NodeSystem does not hold what the search depends on."""


@each_row("release", RELEASES, ids=str)
def test_given_nccls_graphs_tables_and_choices_are_nccls(release: NcclVersion) -> None:
    for each in some(release_settings(release)):
        for function in each.functions:
            assert differences(each, each.graphs, function, release, within=1e-3) == []


@each_row("release", RELEASES, ids=str)
def test_our_own_search_finds_nccls_channels_and_so_its_times(release: NcclVersion) -> None:
    for each in some(release_settings(release)):
        found = searched(each, release)
        assert same_channels(each, release), each.name
        for function in each.functions:
            assert differences(each, found, function, release, within=1e-2) == []


def test_machines_that_came_after_the_rules_are_searched_as_nccl_does() -> None:
    later = [each for each in communicators() if each.kind == MADE_AFTER]
    differing = {each.name for each in later if not same_channels(each, each.releases[0])}
    assert differing == IRREGULAR.keys()
    assert len(later) > 70


def test_the_releases_of_every_supported_torch_are_here() -> None:
    shipped = {(2, 20, 5), (2, 21, 5), (2, 26, 2), (2, 27, 3), (2, 27, 5), (2, 28, 9), (2, 29, 7), (2, 30, 7)}
    assert shipped <= set(RELEASES)
