"""What the page draws. No browser is needed."""

import re

from ncclprobe.model.values import replace
from ncclprobe.report.html import matrix, render
from tests.each_row import each_row

from .. import samples
from . import made


def test_an_expectation_is_drawn_in_steps_where_it_is_known_and_not_between() -> None:
    rows = made.sweep().measurements[:3]
    known = [replace(row, nbytes=1 << (10 + n), place="in") for n, row in enumerate((rows[0],) * 3)]
    assert all(row.expectation for row in known)
    gap = (known[0], replace(known[1], expectation=None), known[2])
    counts = [render(replace(samples.HEALTHY, measurements=tuple(each))).count('class="band"') for each in (known, gap)]
    assert counts == [6, 4]  # two pictures, a step per row


def test_a_frame_is_around_what_the_blamed_sender_sends_and_around_the_suspected_pair() -> None:
    report = made.pairs()
    ends = matrix._ends(report.pairs)
    assert report.localisation
    blamed = matrix._culprits_and_suspects(report.localisation)
    frames = list(matrix._frames(list(ends), ends, blamed, report.localisation.culprits))
    plain = render(replace(report, localisation=None))
    assert ['class="cell confirmed"' in page for page in (plain, render(report))] == [False, True]
    assert frames == [matrix.Frame(0, 3, 8, 1, "confirmed"), matrix.Frame(1, 5, 1, 1, "suspected")]


def test_a_fast_transport_within_nodes_does_not_pale_the_slow_one_between_them() -> None:
    first = made.pairs().pairs[0]
    rates = {(0, 1): 40.0, (0, 2): 1.0, (0, 3): 1.0, (1, 2): 0.25}
    pairs = [replace(first, src=a, dst=b, GBps=rate, inside=rate > 2) for (a, b), rate in rates.items()]
    picture = str(matrix.maps(pairs, None)[0].picture)
    assert [picture.count(f'class="h{shade}"') for shade in (10, 2)] == [3, 1]
    assert picture.count('class="unmeasured"') == 8


@each_row(
    ("end", "cause", "expected"),
    [
        ("n3", ("n3", None), True),
        ("n31", ("n3", None), False),
        ("n3 rail 1 (mlx5_1)", ("n3", 1), True),
        ("n3 rail 1 (mlx5_1)", ("n3", 0), False),
        ("n3 (mlx5_0)", ("n3", 0), True),
        ("n4 rail 1", ("n3", 1), False),
        ("rank 5", ("rank 5", None), True),
    ],
)
def test_an_end_belongs_to_its_node_and_rail(end: str, cause: tuple[str, int | None], expected: bool) -> None:
    blamed = replace(made.pairs().localisation.culprits[0], nodes=(cause[0],), rail=cause[1])  # type: ignore[union-attr]
    assert matrix._is_of(end, blamed) is expected


def test_a_map_of_many_ends_keeps_the_blamed_and_says_what_it_leaves_out() -> None:
    report = made.pairs(70)
    shown = matrix.maps(report.pairs, report.localisation)[0]
    assert shown.ends == matrix.MOST_ENDS
    assert ">n3<" in str(shown.picture)
    assert shown.note.startswith("6 of 70 are left out")


def test_the_timeline_has_a_common_axis_only_where_every_line_has_a_time() -> None:
    report = made.causes()
    text = render(report)
    assert "Seconds since 2023-11-14" in text
    untimed = render(replace(report, timeline=tuple(replace(each, time_s=None) for each in report.timeline)))
    assert "No common clock" in untimed
    assert "Seconds since" not in untimed
    assert "first divergence" not in untimed
    assert len(set(re.findall(r'<circle cx="([0-9.]+)"', untimed))) == 1  # each lane begins at the left


def test_what_a_finding_names_stands_with_the_nodes_that_have_it_and_with_no_others() -> None:
    text = render(made.fleet(8))
    figures = re.findall(r'<figure class="kind">.*?</figure>', text, re.DOTALL)
    marks = [re.findall(r'<p class="mark">.*?<code>(.*?)</code></p>', each) for each in figures]
    assert marks == [["ib.rate"], ["nvl.links"], []]
    assert all("NUMA 1" in each and '<th scope="col">mlx5_7</th>' in each for each in figures)
