"""What the page draws, and the colours and widths in which it does. No browser is needed."""

import re

from ncclprobe.model.values import replace
from ncclprobe.report.html import matrix, render
from ncclprobe.report.html.page import HERE
from tests.each_row import each_row

from .. import samples
from . import made


def test_every_colour_of_a_picture_is_a_variable_of_the_page() -> None:
    style = (HERE / "style.css").read_text()
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", style)) - {"--w"}  # of one drawing
    assert len(used) > 20
    assert all(f"{name}:" in style for name in used)
    drawn = render(made.sweep()) + render(made.pairs())
    shapes = set(" ".join(re.findall(r'<(?:rect|line|polyline|g|text|svg) class="([^"]+)"', drawn)).split())
    assert {"band", "least", "interval", "curve1", "h10", "confirmed", "suspected"} <= shapes
    plain = {"pass", "unjudged", "point", "x", "cell", "grid"}
    assert [name for name in shapes - plain if f".{name}" not in style] == []


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


def test_the_word_cause_stands_above_its_dot_where_no_other_dot_covers_it() -> None:
    dot = r'cy="([0-9.]+)" r="6"[^>]*><title>[^<]*</title></circle>'
    cy, y = re.findall(rf'{dot}<text x="[^"]*" y="([0-9.]+)"[^>]*>cause<', render(made.causes()))[0]
    assert float(y) <= float(cy) - 6


def test_a_legend_has_only_the_signs_of_its_picture() -> None:
    plain = render(replace(made.pairs(), localisation=None))
    assert 'class="cell confirmed"' not in plain
    assert 'class="cell confirmed"' in render(made.pairs())


def test_what_a_finding_names_stands_with_the_nodes_that_have_it_and_with_no_others() -> None:
    text = render(made.fleet(8))
    figures = re.findall(r'<figure class="kind">.*?</figure>', text, re.DOTALL)
    marks = [re.findall(r'<p class="mark">.*?<code>(.*?)</code></p>', each) for each in figures]
    assert marks == [["ib.rate"], ["nvl.links"], []]
    assert all("NUMA 1" in each and '<th scope="col">mlx5_7</th>' in each for each in figures)


def _themes() -> dict[str, dict[str, str]]:
    css = (HERE / "style.css").read_text()
    blocks = {"light": ":root {", "dark": ':root[data-theme="dark"] {', "system": ":root:not([data-theme]) {"}
    return {
        name: dict(re.findall(r"(--[a-z0-9-]+): ([^;]+);", css.partition(start)[2].partition("}")[0]))
        for name, start in blocks.items()
    }


def _luminance(colour: str) -> float:
    channels = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    """As the Web Content Accessibility Guidelines 2.2 define it."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@each_row("theme", ["light", "dark"])
def test_every_text_has_a_contrast_of_at_least_4_5(theme: str) -> None:
    of = _themes()[theme]
    inks = ["ink", "muted", "link", "fail", "warn", "unknown", "pass", "note", "skip"]
    pairs = [(ink, ground) for ink in inks for ground in ("page", "surface", "raised")]
    pairs += [(kind, f"{kind}-soft") for kind in ("fail", "warn", "unknown", "pass", "note", "skip")]
    pairs += [
        (ink, ground) for ink in ("ink", "muted") for ground in ("warn-soft", "unknown-soft", "fail-soft", "note-soft")
    ]
    pairs += [("surface", kind) for kind in ("fail", "unknown", "warn")]
    pairs += [("nvlink", "surface"), ("ink", "heat0"), ("ink", "heat1"), ("ink", "heat2")]
    weak = {pair: round(_contrast(of[f"--{pair[0]}"], of[f"--{pair[1]}"]), 2) for pair in pairs}
    assert not {pair: value for pair, value in weak.items() if value < 4.5}


def test_the_chosen_dark_is_the_systems_dark() -> None:
    assert _themes()["dark"] == _themes()["system"]
    assert set(_themes()["light"]) == set(_themes()["dark"])


def test_on_a_telephone_the_tables_take_the_whole_width_and_paper_is_light_without_scripts() -> None:
    style = (HERE / "style.css").read_text()
    small = style.partition("@media screen and (max-width: 720px) {")[2].partition("\n}\n")[0]
    tables = "table:is(.checks, .blind, .names, .chosen, .which, .areas, .facts, .ranks)"
    assert f"{tables} {{ display: block; width: 100%; }}" in small
    assert "200px" not in small
    assert style.count("prefers-color-scheme: dark") == style.count("@media screen and (prefers-color-scheme: dark)")
