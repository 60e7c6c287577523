"""What a site expects of its data paths: what `doctor --path-rates` measured there before, kept in a baseline file."""

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from ncclprobe.errors import UsageError
from ncclprobe.expect.site.noise import spread
from ncclprobe.model.path_rates import PathExpectation, PathRate, RateKind, shown, words_of
from ncclprobe.units import plural

_MOST_NOISE = 0.5
"""What would have to lose half to be noticed is no expectation."""
_Key = tuple[str, RateKind, int, bool, str]


class PathRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One path and way of measuring, as a baseline file holds it. `per_s`: bytes, or reads or opens, per second."""

    path: str
    kind: RateKind
    at_once: int
    together: bool
    file_system: str
    per_s: float
    noise: float
    runs: int


def keep(runs: Sequence[Sequence[PathRate]]) -> tuple[list[PathRow], list[str]]:
    """Merge what several runs measured; return the rows, and which are refused and why."""
    values: dict[_Key, list[float]] = {}
    for run in runs:
        for key, nodes in _by_node(run).items():
            values.setdefault(key, []).append(median(nodes.values()))
    rows, refused = list[PathRow](), list[str]()
    for key, rates in values.items():
        value, _, noise = spread(rates)
        row = PathRow(*key, round(value, 3), round(noise, 4), len(rates))
        if noise > _MOST_NOISE:
            refused.append(
                f"{row.path}: {words_of(row.kind)}: too noisy for a baseline, its runs scatter by ±{noise:.0%}"
            )
        else:
            rows.append(row)
    return rows, refused


def _by_node(run: Sequence[PathRate]) -> Mapping[_Key, Mapping[str, float]]:
    """Return what each node reached at its best, by what was measured."""
    found: dict[_Key, dict[str, float]] = {}
    for row in run:
        if not row.why and row.per_s > 0 and not row.from_memory:
            nodes = found.setdefault((row.path, row.kind, row.at_once, row.together, row.file_system), {})
            nodes[row.node] = max(nodes.get(row.node, 0.0), row.per_s)
    return found


def expectations(rows: Sequence[PathRow], path: str) -> tuple[PathExpectation, ...]:
    """Return what `rows` of the file at `path` expect. Raises UsageError for a number out of range."""
    for row in rows:
        if not (
            0 < row.per_s < 1e15 and 0 <= row.noise < 0.999 and 0 < row.at_once < 1 << 31 and 0 < row.runs < 1 << 31
        ):
            raise UsageError(f"{path}: a rate of {row.path[:80]!r}: a number is out of its range")
    return tuple(PathExpectation(**msgspec.structs.asdict(row), source=path) for row in rows)


def in_words(row: PathRow) -> str:
    """Return one line on a row that was kept."""
    how = f"all {row.at_once} at once" if row.together else "a node apart"
    rate = f"{shown(row.kind, row.per_s)} -{100 * row.noise:.0f} %"
    return f"{row.path}: {words_of(row.kind)}, {how}: {rate}  {plural(row.runs, 'run')}"
