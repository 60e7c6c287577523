"""``ncclprobe compare OLD NEW``: two runs side by side, with their noise, or two captures of one node."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from ncclprobe.commands import arguments
from ncclprobe.commands.run_files import printable_lines, schema_of, whole_runs
from ncclprobe.expect import baselines
from ncclprobe.expect.bands import parse_tolerance
from ncclprobe.expect.baselines import Point, RowDifference, RowKey, differences
from ncclprobe.host import files
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode, Status
from ncclprobe.model.layout import wrap
from ncclprobe.model.measurement import Conditions, Fingerprint, changes
from ncclprobe.model.report import Report
from ncclprobe.model.units import plural, size
from ncclprobe.model.values import Result, Struct, asdict, field, grouped, replace
from ncclprobe.report import delivery, digest
from ncclprobe.report import json as as_json

_ABOUT = """\
Compare two runs: their bandwidths, row by row with intervals, the findings that are new or gone, the machine and its
software. OLD and NEW are JSON reports, baselines, or JSON (-J) or text output of nccl-tests. For two captures of one
node, findings, versions, settings, links and counters are compared. For two reports without measurements, findings
and settings are compared."""

_MORE = """\
A row is slower or faster only if the intervals of both runs differ by more than --tolerance, or for a baseline by
more than its noise."""

_COLUMNS = "{:<14} {:>8} {:<3} {:>9} {:>9} {:>7} {:>11} {:<12}"
_MOST_LISTED = 20
_OF_THE_LAUNCH = ("TORCHELASTIC_", "MASTER_PORT", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")
"""Settings that differ at every start without a meaning, or repeat WORLD_SIZE."""
_WORDS = {"same": "within noise", "unsure": "unsure"}


class _Side(Struct, frozen=True):
    """One side: its points by key, and the other data of a report.

    `failed`: its own verdict against its data. `cut`: it ended early, or may have. `about`: which machines, and when.
    `measured`: it has numbers, perhaps none that are compared.
    """

    path: str
    points: dict[RowKey, Point]
    fingerprint: Fingerprint | None = None
    findings: dict[tuple[str, str, str], str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    report: bool = False
    failed: tuple[str, ...] = ()
    cut: bool = False
    about: str = ""
    capture: bool = False
    measured: bool = True


class Comparison(Result, frozen=True):
    """Two runs or captures side by side, as :func:`main` shows them. `captures`: also two reports without numbers."""

    rows: tuple[RowDifference, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    new_findings: tuple[str, ...]
    new_failures: tuple[str, ...]
    fixed_findings: tuple[str, ...]
    changed: tuple[str, ...]
    notes: tuple[str, ...]
    cut: bool = False
    captures: bool = False

    def __repr__(self) -> str:
        """Return a one-line summary."""
        worse = len(self.new_failures) + sum(row.change == "slower" for row in self.rows)
        return f"<Comparison of {len(self.rows)} rows: {worse} worse, exit {self.exit_code}>"

    @property
    def exit_code(self) -> ExitCode:
        """docs/reference/exit-codes.md: 4 for what got worse beyond noise."""
        if self.new_failures or any(row.change == "slower" for row in self.rows):
            return ExitCode.FAIL
        if (
            not (self.rows or self.captures)
            or any(row.change == "unsure" for row in self.rows)
            or (self.cut and (self.captures or self.only_old))
        ):
            return ExitCode.INCONCLUSIVE
        return ExitCode.OK


def main(argv: Sequence[str]) -> int:
    """Print the comparison. Raises UsageError."""
    options = _parser().parse_args(argv)
    old, new = side(options.old), side(options.new)
    found = compared(old, new, options.tolerance)
    if options.json:
        arguments.write_json(
            options,
            "comparison",
            {"old": old.path, "new": new.path, "exit_code": int(found.exit_code), **asdict(found)},
        )
    if options.json != "-":
        print(printable_lines(list(_text(old, new, found, quiet=options.quiet))))
    return found.exit_code


def side(path: str) -> _Side:
    """Read one side from `path`. Raises UsageError."""
    if files.read_start(Path(path), limit=_HEADER_BYTES).lstrip().startswith('{"capture"'):
        return _side_of_capture(path)
    text = files.read(Path(path), limit=bounds.RUN_FILE_BYTES)
    schema = schema_of(text, path) if text.lstrip().startswith("{") else "nccl-tests"
    if schema == baselines.SCHEMA:
        site = baselines.parse(text, path)
        return _Side(path, baselines.site_points(site), site.print(), about=f"baseline, {digest.when(site.written)}")
    if schema == "nccl-tests":
        runs = whole_runs(path)
        rows = [row for run in runs for row in run.rows]
        failed = tuple(run.failed for run in runs if run.failed)
        cut = any(run.cut for run in runs)
        return _Side(path, baselines.row_points(rows), runs[0].fingerprint, failed=failed, cut=cut)
    report = as_json.read(path)
    return _Side(
        path,
        baselines.row_points(report.measurements),
        report.fingerprint,
        dict(_findings(report)),
        dict(_environment(report)),
        report=True,
        cut=bool(report.skipped_rows) or report.status is Status.UNKNOWN,  # as after a signal
        measured=bool(report.measurements or report.pairs or report.copies),
        failed=tuple(f"{row.op} {size(row.nbytes)}: {row.wrong} wrong" for row in report.measurements if row.wrong),
        about=f"{digest.folded([node.name for node in report.nodes])}, {digest.when(report.started)}",
    )


_HEADER_BYTES = 64


def _side_of_capture(path: str) -> _Side:
    """Judge a capture as the doctor does, without the node's name in the compared parts. Raises UsageError."""
    from ncclprobe.engine import devices, diagnose
    from ncclprobe.engine.captures import judge_snapshots
    from ncclprobe.engine.collect import replayed
    from ncclprobe.model.registry import Collector, discover
    from ncclprobe.model.snapshot import Job

    question = diagnose.ask(diagnose.Judging(), ("compare", path), Job())
    snapshots = replayed([Path(path)], discover("ncclprobe.facts", Collector, diagnose.MACHINE))
    report, node = judge_snapshots(question, snapshots), snapshots[0].node
    found = dict(_environment(report)) | {area.name: area.values for area in report.areas if area.name == "transport"}
    found |= devices.states(snapshots[0].facts)
    return _Side(
        path,
        {},
        findings={(name, "", subject): text for (name, _, subject), text in _findings(report)},
        environment=found,
        report=True,
        cut=any(verdict.status is Status.UNKNOWN and verdict.required for verdict in report.checks),
        about=f"{node}, {digest.looked(report)}" if report.taken else node,
        capture=True,
    )


def _findings(report: Report) -> Iterator[tuple[tuple[str, str, str], str]]:
    for verdict in report.checks:
        for each in verdict.findings:
            where = f" on {verdict.node}" if verdict.node else ""
            yield (
                (verdict.id, verdict.node or "", each.subject),
                f"{each.severity.value} {verdict.id}{where}: {each.line}",
            )


def _environment(report: Report) -> Iterator[tuple[str, str]]:
    """Yield versions and settings by name; with several nodes, prefixed with the node."""
    alone = len(report.environment) == 1
    for node, environment in report.environment.items():
        prefix = "" if alone else f"{node} "
        for name, version in environment.versions.items():
            yield prefix + name, version or "none"
        for setting in environment.settings:
            yield prefix + setting.name, "(not recorded)" if setting.value is None else setting.value


def compared(old: _Side, new: _Side, tolerance: float) -> Comparison:
    """Compare `old` and `new`."""
    both, captures = old.report and new.report, old.capture and new.capture
    if old.capture is not new.capture:
        raise UsageError(f"{old.path} and {new.path}: give two captures, or two runs")
    fresh = [text for key, text in new.findings.items() if both and _is_worse(text, old.findings.get(key))]
    return Comparison(
        rows=tuple(differences(old.points, new.points, tolerance)),
        only_old=tuple(_name(key) for key in old.points if key not in new.points),
        only_new=tuple(_name(key) for key in new.points if key not in old.points),
        new_findings=tuple(fresh),
        new_failures=(*(each for each in fresh if each.startswith("fail ")), *(new.failed if not old.failed else ())),
        fixed_findings=tuple(text for key, text in old.findings.items() if both and key not in new.findings),
        changed=tuple(dict.fromkeys((*_machine_changes(old, new, both=both), *_setting_changes(old, new)))),
        notes=() if captures else tuple(_remarks(old, new)),
        cut=new.cut,
        captures=captures or (both and not old.measured and not new.measured),
    )


def _is_worse(now: str, before: str | None) -> bool:
    """Return whether a finding is new, or fails and did not before."""
    return before is None or (now.startswith("fail ") and not before.startswith("fail "))


def _machine_changes(old: _Side, new: _Side, *, both: bool) -> Iterator[str]:
    """Yield how the fingerprints differ; if `both` are reports, settings are compared one by one."""
    found = changes(old.fingerprint, new.fingerprint)
    yield from (each for each in found if not (both and each.startswith("settings: ")))


def _setting_changes(old: _Side, new: _Side) -> Iterator[str]:
    """Yield how the environments differ; a setting of only one of two reports is set only there."""
    if not (old.report and new.report):
        return
    for name in dict.fromkeys((*old.environment, *new.environment)):
        before, after = old.environment.get(name, "(unset)"), new.environment.get(name, "(unset)")
        if before != after and not name.rpartition(" ")[2].startswith(_OF_THE_LAUNCH):  # behind the node's name
            yield f"{name}: {before} -> {after}"


def _remarks(old: _Side, new: _Side) -> Iterator[str]:
    if not old.fingerprint or not new.fingerprint:
        silent = " and ".join(dict.fromkeys(each.path for each in (old, new) if not each.fingerprint))
        yield f"{silent} does not name the machine, so a change of machine cannot be seen"
    for each in (old, new):
        yield from (f"{each.path}: {why}" for why in each.failed)
    if new.cut and set(old.points) - set(new.points):
        yield f"{new.path}: was cut short or is inconclusive, so rows that it lacks may be slower"


def _name(key: RowKey) -> str:
    op, nbytes, how = key
    return f"{op} {size(nbytes)} ({_describe_conditions(how)})"


def _describe_conditions(how: Conditions, *, place: bool = True) -> str:
    """Describe how a row was measured: ``float32, in place, 2 ranks, blocking, gloo``."""
    redop = "" if how.redop in (None, "sum") else f" {how.redop}"
    where = ["in place" if how.place == "in" else "out of place"] if place else []
    return ", ".join((f"{how.dtype}{redop}", *where, plural(how.ranks, "rank"), how.mode, how.backend))


def _text(old: _Side, new: _Side, found: Comparison, *, quiet: bool) -> Iterator[str]:
    if not quiet:
        yield from (f"{name}: {side.path}  {side.about}".rstrip() for name, side in (("old", old), ("new", new)))
    if found.rows and not quiet:
        before = None
        for row in found.rows:
            if (common := _describe_conditions(replace(row.how, place="in"), place=False)) != before:
                before = common
                yield f"{common}:"
                yield _COLUMNS.format("op", "size", "at", "old", "new", "change", "between", "verdict").rstrip()
                yield _COLUMNS.format("", "", "", "(GB/s)", "(GB/s)", "(%)", "(%)", "").rstrip()
            yield _COLUMNS.format(
                row.op,
                size(row.nbytes),
                row.how.place,
                f"{row.old.value:#.4g}",
                f"{row.new.value:#.4g}",
                f"{100 * row.share:+.1f}",
                f"{100 * row.low:+.0f} to {100 * row.high:+.0f}",
                _WORDS.get(row.change, row.change),
            ).rstrip()
    if not quiet:
        for title, texts in _lists(old, new, found):
            for text in texts[:_MOST_LISTED]:
                yield from wrap(f"{title}: ", text, delivery.width())
            if texts[_MOST_LISTED:]:
                yield f"{title}: {len(texts) - _MOST_LISTED} more"
    yield from [_last_line(found)] if quiet else wrap("", _last_line(found), delivery.width())


def _lists(old: _Side, new: _Side, found: Comparison) -> Iterator[tuple[str, Sequence[str]]]:
    yield "new", found.new_findings
    yield "fixed", found.fixed_findings
    yield "changed", found.changed
    yield "only in the old", _fold_rows([key for key in old.points if key not in new.points])
    yield "only in the new", _fold_rows([key for key in new.points if key not in old.points])
    yield "note", found.notes


def _fold_rows(keys: Sequence[RowKey]) -> list[str]:
    """Return one line per operation, with its sizes."""
    sizes = grouped(((op, how), nbytes) for op, nbytes, how in keys)
    return [_several(op, how, each) for (op, how), each in sizes.items()]


def _several(op: str, how: Conditions, sizes: Sequence[int]) -> str:
    if len(sizes) == 1:
        return _name((op, sizes[0], how))
    return f"{op} {size(min(sizes))} to {size(max(sizes))}, {len(sizes)} sizes ({_describe_conditions(how)})"


def _last_line(found: Comparison) -> str:
    """Summarise the comparison in one line, with the exit code."""
    code = found.exit_code
    counts = {
        change: sum(row.change == change for row in found.rows) for change in ("slower", "unsure", "faster", "same")
    }
    words = ", ".join(f"{number} {_WORDS.get(change, change)}" for change, number in counts.items() if number)
    if found.captures:
        words = f"{len(found.new_findings)} new, {len(found.fixed_findings)} fixed, {len(found.changed)} changed"
    elif not found.rows:
        words = "no collective was measured in both under the same conditions, so there is nothing to compare"
        words += "; pairs and copies are not compared"
    failed = len(found.new_failures)
    failures = f", {failed} new failure{'s' * (failed > 1)}" if failed else ""
    head = {ExitCode.OK: "PASS", ExitCode.FAIL: "FAIL"}.get(code, "UNKNOWN")
    return f"{head}  {words}{failures}  (exit {int(code)})"


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser("compare", _ABOUT, _MORE)
    add = parser.add_argument
    add("old", metavar="OLD", help="Read the earlier run from this file.")
    add("new", metavar="NEW", help="Read the later run from this file.")
    add("--tolerance", type=parse_tolerance, default=baselines.TOLERANCE, metavar="SHARE",
        help="Ignore differences up to this fraction; set it to the usual difference between runs on an unchanged "
        "machine (default: %(default)s).")  # fmt: skip
    arguments.json_option(parser)
    add("-q", "--quiet", action="store_true", help="Print one line only.")
    return parser
