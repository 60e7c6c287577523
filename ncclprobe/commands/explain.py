"""``ncclprobe explain FILE…``: why a job failed, from what it left; ``explain ID``: a check, a cause, or a variable."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ncclprobe import DOCS
from ncclprobe.commands import arguments
from ncclprobe.model.errors import UsageError
from ncclprobe.model.units import plural
from ncclprobe.report.progress import Waiting

if TYPE_CHECKING:
    from ncclprobe.model.report import Report


_SUFFIX = re.compile(r"\.(?:log|out|err|txt|jsonl?|gz|zst|xz|bz2|\d+)$", re.IGNORECASE)
"""File suffixes: no check, cause or variable ends so, and a missing file is meant."""
_PART = r"[a-z0-9-]+\.[a-z0-9-]+/[a-z0-9-]+"
"""A part of a check, such as env.hca/pkey; a file of such a name must exist."""


def main(argv: Sequence[str]) -> int:
    """Explain files, or print what is known of an id. Raises UsageError for anything else."""
    options = _parser().parse_args(argv)
    name = options.what[0].removeprefix(f"{DOCS}/checks/").rpartition("#")[2].strip("/")
    if len(options.what) == 1 and not _is_file(options.what[0], name):
        from ncclprobe.engine.diagnose import accepted_by
        from ncclprobe.engine.explain_pages import entry

        if " " in name:
            raise UsageError(
                f"{name[:40]!r}: no such file; to explain one line of a log, run `ncclprobe explain - <<< 'LINE'`"
            )
        if written := [f"--{each}" for each in (*arguments.output(options).files, *["report"] * bool(options.bundle))]:
            raise UsageError(
                f"{', '.join(written)}: only the answer to files is written; leave it out to explain {name}"
            )
        print("\n".join(entry(name, "check, cause, variable or file", accepted_by(options.config).checks)))
        return 0
    from ncclprobe.engine import diagnose
    from ncclprobe.engine.explain import explain
    from ncclprobe.host import job_files
    from ncclprobe.model.snapshot import Job
    from ncclprobe.report import delivery
    from ncclprobe.report import json as as_json

    redactor = arguments.redactor(options)
    files = job_files.named(options.what)
    question = diagnose.ask(arguments.judging(options), ("explain", *argv), Job(), diagnose.LEFT)
    with Waiting(f"reading {plural(len(files), 'file')}", wanted=not options.quiet, lines=True) as waiting:
        report = explain(question, files, as_json.read, waiting.say, asked=options.asked)
    report = redactor.report(report) if redactor else report
    if options.bundle:
        from ncclprobe.redact.redactor import Redactor, random_key  # and its hundred patterns

        _bundle(report if redactor else Redactor(random_key()).report(report), options.bundle)
    return delivery.deliver(report, arguments.output(options))


def _is_file(given: str, name: str) -> bool:
    """Return whether what was `given` is a file; otherwise it is the `name` of something known."""
    try:
        if given == "-" or given.startswith("/") or "*" in given or Path(given).exists():
            return True
        return ("/" in name and not re.fullmatch(_PART, name)) or bool(_SUFFIX.search(name))
    except (OSError, ValueError):
        return True


def _bundle(report: "Report", path: str) -> None:
    """Write the attachment for an issue. Raises UsageError if it cannot be written."""
    from ncclprobe.report import delivery

    delivery.write("json", report, path)
    print(
        f"ncclprobe: {path} contains the answer and the lines behind it, with pseudonyms for names and addresses; look "
        f"it through (`ncclprobe report {path}`) before you attach it to an issue",
        file=sys.stderr,
    )


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        "explain",
        "Explain why a job failed, from its files: logs of its ranks in any format, flight-recorder dumps, NCCL RAS "
        "output, the kernel log. Or explain a check, a cause or an NCCL variable.",
    )
    parser.add_argument("what", nargs="+", metavar="FILE|ID",
        help="Read these files, folders or patterns, compressed or not; - is standard input. A word that is not a file "
        "is a check, such as env.value (see `ncclprobe checks`), a cause, such as iface-missing, or a variable, such "
        "as NCCL_IB_TIMEOUT."
    )  # fmt: skip
    known = parser.add_mutually_exclusive_group()
    known.add_argument("--failed", action="store_const", dest="asked", const="failed",
        help="Treat the job as failed, even if its logs do not show it: the most likely line is then shown.",
    )  # fmt: skip
    known.add_argument("--hung", action="store_const", dest="asked", const="hung",
        help="Treat the job as hung: explanations of a hang come first.",
    )  # fmt: skip
    known.add_argument("--slow", action="store_const", dest="asked", const="slow",
        help="Treat the job as slow: explanations of slowness come first, and a named cause affects the exit code.",
    )  # fmt: skip
    parser.add_argument("--exit-code", action="store_true",
        help="Exit with 4 if a cause is named, and with 3 if something failed and the cause is "
        "unknown or is one of several.",
    )  # fmt: skip
    parser.add_argument("--report", dest="bundle", type=arguments.destination, metavar="PATH",
        help="Also write one file to attach to an issue: the answer, its lines, and the first line that was not "
        "understood, with pseudonyms for names and addresses. `ncclprobe report PATH` shows it.",
    )  # fmt: skip
    arguments.arguments(parser, judges=False)
    arguments.selection(parser)
    arguments.redaction(parser)
    parser.set_defaults(fail_on="fail")
    return parser
