"""The table of links."""

import pytest

from ncclprobe.expect.tables import links

every_link = pytest.mark.parametrize("link", links.table().values(), ids=lambda link: link.name)


@every_link
def test_a_link_has_a_source_and_carries_no_more_than_its_line(link: links.LinkKind) -> None:
    assert link.source
    if link.high_GBps is not None and link.line_GBps is not None and "NVLS" not in link.name:
        assert 0 < link.high_GBps <= link.line_GBps
    if link.high_GBps is not None:
        assert link.measured


def test_links_are_found_by_their_name() -> None:
    assert links.table()["InfiniBand 4x NDR"].line_GBps == 50
    assert links.table()["PCIe Gen5 x16"].high_GBps == 56.8
    assert "PCIe Gen5 x3" not in links.table()
