"""``ncclprobe checks``: every check there is; with ``--test`` whether a site's own keep what all promise."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncclprobe.commands import arguments
from ncclprobe.engine import promises, site, suppressions
from ncclprobe.engine.diagnose import accepted_by, every_check
from ncclprobe.errors import UsageError
from ncclprobe.model.additions import CHECKS, installed
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.rules import Check
from ncclprobe.report import delivery
from ncclprobe.report.lines import wrapped
from ncclprobe.units import plural

_EXIT_CODES = """\
exit codes:
  0  the checks are listed; with --test they keep all promises
  2  wrong usage, or a file that cannot be read
  4  with --test a promise is broken"""


def main(argv: Sequence[str]) -> int:
    """Print the catalogue, or what is wrong with a site's checks. Raises UsageError."""
    options = _parser().parse_args(argv)
    if options.test:
        return _test(options.test)
    checks = sorted(every_check(None, accepted_by(options.config).checks), key=lambda check: check.id)
    print(_json(checks) if options.json else _table(checks))
    return ExitCode.OK


def _test(name: str) -> int:
    """Print each check of a site with the promises that it breaks; returns the exit code. Raises UsageError."""
    found = [(check, list(promises.broken(check))) for check in _named(name)]
    for check, wrong in found:
        print(f"{'fails' if wrong else 'ok':<6} {check.id}  {check.title}")
        for each in wrong:
            print(f"       {each}")
    bad = sum(bool(wrong) for _, wrong in found)
    print(f"{plural(len(found), 'check')} of {found[0][0].origin}, {bad} {'breaks' if bad == 1 else 'break'} a promise")
    return ExitCode.FAIL if any(wrong for _, wrong in found) else ExitCode.OK


def _named(name: str) -> tuple[Check, ...]:
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise UsageError(f"--test {name[:80]}: there is no such file")
        return site.of_file(Path(name))
    for each in installed(CHECKS):
        if name in (each.name, each.module):
            return site.installed_as(each)
    known = ", ".join(each.name for each in installed(CHECKS)) or "none"
    raise UsageError(
        f"--test {name[:80]!r}: no installed distribution has an entry point of that name or module; known: "
        f"{known}; or name a .py file"
    )


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        "checks",
        "List every check: its id, its two titles, and whether a run is inconclusive without it (required).",
        _EXIT_CODES,
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    parser.add_argument("--config", type=Path, default=suppressions.NO_FILE, metavar="PATH",
        help="List the checks in the folder of this ncclprobe.toml too.")  # fmt: skip
    parser.add_argument("--test", metavar="NAME",
        help="Try the checks of an installed distribution, by the name or the module of its entry point, or those in "
        "NAME.py: examples, explanations, and that nothing passes unlooked.")  # fmt: skip
    return parser


def _table(checks: Sequence[Check]) -> str:
    width = delivery.width()
    lines: list[str] = []
    for check in checks:
        lines.append(f"{check.id}  {check.standing}")
        lines += wrapped("    fails   ", check.title, width)
        lines += wrapped("    passes  ", check.right, width)
    return "\n".join((*lines, "", f"{len(checks)} checks; `ncclprobe explain ID` explains one"))


def _json(checks: Sequence[Check]) -> str:
    return json.dumps({"checks": [_row(check) for check in checks]}, indent=2)


def _row(check: Check) -> dict[str, Any]:
    return {
        "id": check.id,
        "title": check.title,
        "right": check.right,
        "why": check.why,
        "fix": check.fix,
        "required": check.required,
        "privilege": check.privilege,
        "requires": check.requires,
        "applies": check.applies.words if check.applies else "",
        "facts": [need.fact.__name__ for need in check.needs],
        "since": check.since,
        "origin": check.origin,
    }
