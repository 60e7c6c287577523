"""Rails as people and programs see them: the grid, the page's table and the rows of the JSON."""

from fake_rails import names, played

from ncclprobe.checks.rail.fixtures import World, only
from ncclprobe.engine.doctor import rail_ways
from ncclprobe.facts.reach import Rails
from ncclprobe.localise.pairs.samples import End
from ncclprobe.model.findings import Status, Verdict, fail, warn
from ncclprobe.model.pair_results import RailWay
from ncclprobe.model.snapshot import Absent, Snapshot
from ncclprobe.model.values import replace
from ncclprobe.report import json as as_json
from ncclprobe.report.html.tables import tables
from ncclprobe.report.rails import MOST_NODES, blocks, ends
from report.samples import HEALTHY

BAD = End("n1", 2)


def ways(nodes: int = 4, rails: int = 4, **changes: object) -> tuple[RailWay, ...]:
    seen = played(World(names(nodes), rails, **changes))  # type: ignore[arg-type]
    return rail_ways([Snapshot(node, {Rails: each}) for node, each in seen.items()])


def text(rows: tuple[RailWay, ...], width: int = 100) -> str:
    return "\n\n".join("\n".join(block) for block in blocks(rows, width))


def test_a_dead_rail_stands_out_in_the_grid_and_its_partners_do_not() -> None:
    shown = text(ways(carries=only(BAD)))
    assert "rails: 46 paths tested, 42 carry data" in shown
    (row,) = [line for line in shown.splitlines() if line.startswith("n1")]
    assert row.split() == ["n1", "48.5", "48.5", "DEAD", "48.5"]
    assert shown.count("DEAD") == 1


def test_a_rail_that_only_sends_slowly_shows_both_rates() -> None:
    shown = text(ways(carries=only(BAD, share=0.5, into=False)))
    assert "24.2 / 48.5" in shown


def test_more_rails_than_fit_go_on_below() -> None:
    lines = text(ways(2, 12), width=60).splitlines()
    heads = [line.split() for line in lines if line.strip().startswith("rail ")]
    assert [word for head in heads for word in head if word.isdigit()] == [str(rail) for rail in range(12)]
    assert max(len(line) for line in lines if line.startswith(("n0", "n1", " "))) <= 60


def test_of_many_nodes_those_with_dead_rails_are_shown() -> None:
    rows = ways(MOST_NODES + 6, 2, carries=only(End("n29", 1)))
    shown = text(rows)
    assert any(line.startswith("n29") and "DEAD" in line for line in shown.splitlines())
    assert "6 more nodes are not worse" in shown


def test_nothing_is_shown_where_nothing_was_tried() -> None:
    assert rail_ways([Snapshot("n0", {Rails: Absent("not asked")})]) == ()
    assert text(()) == ""


def test_each_way_has_its_rates_and_the_choices_of_both_ends() -> None:
    way = next(way for way in ways() if (way.src, way.dst, way.src_rail) == ("n0", "n3", 1))
    assert way.state == "ok"
    assert way.GBps == way.alone_GBps == way.both_GBps == 48.5
    assert way.gpu_GBps is None
    assert "n0 mlx5_1:1 GID 3 ::ffff:10.1.0.1 (RoCE v2)" in way.src_choices
    assert "n3 mlx5_1:1" in way.dst_choices


def test_a_report_with_rails_is_read_back_as_it_was_written() -> None:
    report = replace(HEALTHY, rails=ways(3, 2, carries=only(End("n1", 1))))
    assert as_json.parse(as_json.render(report), "report.json").rails == report.rails


def test_the_page_lists_every_rail_the_bad_ones_first() -> None:
    report = replace(HEALTHY, rails=ways(carries=only(BAD)))
    (table,) = [each for each in tables(report) if each.title == "Rails"]
    assert len(table.rows) == len(ends(report.rails)) == 16
    assert table.rows[0][:2] == ("fail", "n1 rail 2 (mlx5_2:1)")
    assert "transport retry counter exceeded" in table.rows[0][-1]
    assert {row[0] for row in table.rows[1:]} == {"pass"}


def test_the_page_takes_a_rails_state_from_the_findings_and_tells_what_all_have_in_common_once() -> None:
    slow = fail("out of n1 rail 2 (mlx5_2:1)", "sends 40 % of the usual", nodes=("n1",))
    pair = fail("n0 rail 1 <-> n3 rail 1", "is dead", nodes=("n0", "n3"))
    several = warn("n2 rail 0-1", "is far", nodes=("n2",))
    checks = tuple(
        Verdict(f"rail.{n}", None, Status.FAIL, "t", findings=(each,)) for n, each in enumerate((slow, pair, several))
    )
    report = replace(HEALTHY, checks=checks, rails=ways(carries=only(BAD, share=0.4, into=False)))
    (table,) = [each for each in tables(report) if each.title == "Rails"]
    assert [row[:2] for row in table.rows[:3]] == [
        ("fail", "n1 rail 2 (mlx5_2:1)"),
        ("warn", "n2 rail 0 (mlx5_0:1)"),
        ("warn", "n2 rail 1 (mlx5_1:1)"),
    ]
    assert table.rows[0][-1] == "sends 40 % of the usual"
    assert {row[0] for row in table.rows[3:]} == {"pass"}
    assert "MTU 4096" in table.muted
    assert not any("MTU" in row[-2] for row in table.rows)
