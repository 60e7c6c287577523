"""``ncclprobe baseline FILE…``: keep runs as this site's expectation of machines like those that they were made on."""

import argparse
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from ncclprobe import __version__
from ncclprobe.commands import arguments
from ncclprobe.commands.run_files import printable_lines, whole_runs
from ncclprobe.expect import baselines
from ncclprobe.host import files
from ncclprobe.model.errors import UsageError
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.layout import wrap
from ncclprobe.model.measurement import Fingerprint, Measurement
from ncclprobe.model.units import plural, size
from ncclprobe.nccl_tests import Run
from ncclprobe.report import delivery

_ABOUT = """\
Write a baseline of this site from runs: JSON reports of `ncclprobe bandwidth`, or JSON (-J) or text output of
nccl-tests. Several runs are merged into their median, with their spread as the noise that later runs are judged by."""

_MORE = """\
examples:
  ncclprobe baseline run1.json run2.json run3.json -o site.json
  ncclprobe baseline nccl-tests.log --machine dgx-h100 -o site.json
  torchrun … -m ncclprobe.bandwidth --baseline site.json

Rows are refused if they failed, were inconclusive or carried wrong data, or are below the
rate that the report or --machine expects: a faulty machine must not be the baseline."""


def main(argv: Sequence[str]) -> int:
    """Merge the runs and write the baseline. Raises UsageError."""
    options = _parser().parse_args(argv)
    site, kept, twice = merged(options.file, options.machine, accept_low=options.accept_low)
    fit = bool(kept.rows)
    if fit and options.output != "-":
        files.write(Path(options.output), baselines.render(site), ours=baselines.recognises)
    print(baselines.render(site).rstrip() if options.output == "-" and fit else
          _summary(site, kept, options.output, twice))  # fmt: skip
    return ExitCode.OK if fit else ExitCode.INCONCLUSIVE


def merged(
    paths: Sequence[str], machine: str | None, *, accept_low: bool = False
) -> tuple[baselines.Site, baselines.Kept, Sequence[str]]:
    """Return the baseline of the runs in `paths`, the kept and refused rows, and runs given twice.

    Raises UsageError.
    """
    runs, twice = baselines.distinct([run for path in paths for run in whole_runs(path)])
    if not any(run.rows for run in runs):
        raise UsageError(
            f"{paths[0]}: contains no collective; give reports of `ncclprobe bandwidth`, or logs of nccl-tests"
        )
    kept = baselines.keep(runs, _row_limit(machine), accept_low=accept_low)
    fingerprint = next((run.fingerprint for run in runs if run.fingerprint), None)
    return _site(runs, kept, fingerprint), kept, twice


def _site(runs: Sequence[Run], kept: baselines.Kept, fingerprint: Fingerprint | None) -> baselines.Site:
    known = fingerprint and baselines.Print(fingerprint.machine, fingerprint.topology, fingerprint.software)
    return baselines.Site(
        tool=f"ncclprobe {__version__}",
        written=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        fingerprint=known or None,
        runs=[baselines.Origin(run.source, run.started) for run in runs],
        rows=list(kept.rows),
    )


def _row_limit(machine: str | None) -> baselines.Allowed:
    """Return the limit that a row must reach to be kept: its own expectation's, or that of the named machine."""

    def allowed(row: Measurement) -> float | None:
        said = row.expectation
        if said and said.basis in ("model", "published", "datasheet"):
            return said.threshold or None  # 0: too loosely known to say that a run is low
        return by_name(row) if by_name else None

    by_name = _machine_numbers(machine) if machine else None
    return allowed


def _machine_numbers(machine: str) -> baselines.Allowed:
    """Return the limits of a machine type. Raises UsageError for an unknown type."""
    from ncclprobe.expect import composed
    from ncclprobe.expect.expected import expectation
    from ncclprobe.expect.system import Shape

    found = composed.machine_called(machine)
    system = found.system()

    def allowed(row: Measurement) -> float | None:
        if row.backend != "nccl" or row.ranks % row.nodes:
            return None
        shape = Shape((row.ranks // row.nodes,) * row.nodes)
        said = expectation(row.op, row.nbytes, shape, system, machine=found)
        return (said.threshold or None) if said else None

    return allowed


def _summary(site: baselines.Site, kept: baselines.Kept, path: str, twice: Sequence[str]) -> str:
    """Describe what was kept, of what, and what was refused."""
    lines = [
        *twice,
        *(line for each in kept.refused for line in wrap("refused: ", each, delivery.width())),
        *(f"kept although it is low: {each}" for each in kept.flagged),
    ]
    if not kept.rows:
        return printable_lines([*lines, "no row is fit for a baseline, so none was written"])
    mine = site.print()
    if mine:
        parts = [
            *mine.machine.items(),
            *mine.software.items(),
            *([("topology", mine.topology)] if mine.topology else []),
        ]
        lines += wrap("of: ", ", ".join(f"{name} {value}" for name, value in parts), delivery.width())
    else:
        lines.append("of: an unknown machine, because the runs do not name it; a change of machine will not be noticed")
    for row in kept.rows:
        lines.append(
            f"{row.op:<15}{size(row.nbytes):>10} {row.place:>4} {row.ranks:>5} ranks {row.busbw_GBps:#10.4g} GB/s "
            f"-{100 * row.noise:.0f} %  {plural(row.runs, 'run')}"
        )
    runs = "one run" if len(site.runs) == 1 else f"{len(site.runs)} runs"
    return printable_lines([*lines, f"{plural(len(kept.rows), 'row')} of {runs} written to {path}"])


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser("baseline", _ABOUT, _MORE)
    add = parser.add_argument
    add("file", nargs="+", metavar="FILE", help="Read this JSON report, or JSON or text output of nccl-tests.")
    add("-o", dest="output", type=arguments.destination, default="site.json", metavar="PATH",
        help="Write the baseline to PATH; use - for standard output (default: %(default)s).")  # fmt: skip
    add("--machine", metavar="NAME",
        help="Refuse rows below what this machine type should reach (see `ncclprobe expect --list`).")  # fmt: skip
    add("--accept-low", action="store_true", help="Keep rows below what the machine should reach, and list them.")
    return parser
