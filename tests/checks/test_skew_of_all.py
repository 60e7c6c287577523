"""Ranks that come late, where a log that was edited does not say it of each rank."""

from ncclprobe.checks.run.ranks import LATECOMER, rungs_of, straggler
from ncclprobe.model.values import replace
from tests.each_row import each_row


@each_row("left", [7, 8, 9])
@each_row("what", ["late_us", "late_rounds", "hosts"])
def test_a_row_counts_where_it_speaks_of_every_rank(what: str, left: int) -> None:
    rows, who = rungs_of(LATECOMER)
    (row,) = rows.measured
    assert row.skew
    if what == "hosts":
        who = replace(who, hosts=("n0",) * left)
    else:
        rows = replace(
            rows, measured=(replace(row, skew=replace(row.skew, **{what: (9000.0,) * 1 + (7,) * (left - 1)})),)
        )
    found = list(straggler.run(rows, who))
    assert left == 8 or found == []
    assert list(straggler.run(*rungs_of(LATECOMER))) != []
