"""``ncclprobe checks``: list all checks, or a group's; ``--test``: whether a site's own checks keep the promises of
all.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncclprobe.commands import arguments
from ncclprobe.engine import promises, site, suppressions
from ncclprobe.engine.diagnose import accepted_by, every_check
from ncclprobe.engine.judge import selected
from ncclprobe.model.additions import CHECKS, installed
from ncclprobe.model.errors import UsageError, unknown
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.registry import Check, by_id, title_of
from ncclprobe.model.units import plural
from ncclprobe.report import delivery


def main(argv: Sequence[str]) -> int:
    """Print the catalogue, or what is wrong with a site's checks. Raises UsageError."""
    options = _parser().parse_args(argv)
    if options.test:
        return _test(options.test)
    known = sorted(every_check(None, accepted_by(options.config).checks), key=lambda check: check.key)
    found: dict[str, Check] = {}
    for group in options.groups:
        mine = selected(known, [group if "." in group or "*" in group else f"{group}.*"])
        if not mine:
            raise unknown(group, "group of checks", dict.fromkeys(check.id.partition(".")[0] for check in known))
        found |= {check.key: check for check in mine}
    checks = sorted(found.values(), key=lambda check: check.key) if options.groups else known
    if options.json:
        arguments.write_json(options, "checks", {"checks": [_row(check) for check in checks]})
    if options.json != "-":
        print(_table(checks))
    return ExitCode.OK


def _test(name: str) -> int:
    """Print each of a site's checks with the promises that it breaks; return the exit code. Raises UsageError."""
    found = [(check, list(promises.broken(check))) for check in _checks_named(name)]
    for check, wrong in found:
        print(f"{'fails' if wrong else 'ok':<6} {check.id}  {check.title}")
        for each in wrong:
            print(f"       {each}")
    bad = sum(bool(wrong) for _, wrong in found)
    print(f"{plural(len(found), 'check')} of {found[0][0].origin}, {bad} {'breaks' if bad == 1 else 'break'} a promise")
    return ExitCode.FAIL if any(wrong for _, wrong in found) else ExitCode.OK


def _checks_named(name: str) -> tuple[Check, ...]:
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise UsageError(f"--test {name[:80]}: no such file")
        return site.load_file(Path(name))
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
        "List the checks by group, one line each: the id, * if the check is required, and what is wrong if it fails.",
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="List only these, such as ib, or 'gpu.*' (default: "
        "all).")  # fmt: skip
    arguments.json_option(parser)
    parser.add_argument("--config", type=Path, default=suppressions.NO_FILE, metavar="PATH",
        help="List the checks in the folder of this ncclprobe.toml too.")  # fmt: skip
    parser.add_argument("--test", metavar="NAME",
        help="Test the checks of an installed distribution (NAME is its entry point or module), or those in NAME.py: "
        "their examples and explanations must be right, and no check may pass without evidence.")  # fmt: skip
    return parser


def _table(checks: Sequence[Check]) -> str:
    """Return a line per check under its group, no wider than the terminal."""
    wide, lines = delivery.width(), list[str]()
    parts = by_id(checks)
    for group, names in itertools.groupby(parts, key=lambda name: name.partition(".")[0]):
        rows = [(f"  {n}{' *' * any(each.required for each in parts[n])}", title_of(parts[n])) for n in names]
        room = max(len(name) for name, _ in rows) + 2
        about = getattr(sys.modules.get(f"ncclprobe.checks.{group}"), "__doc__", None) or ""  # a site's own has none
        first = about.partition("\n")[0].rstrip(".")
        lines += ["", _fitting(f"{group}: {first}".removesuffix(": "), wide)]
        lines += [_fitting(f"{name:<{room}}{title}", wide) for name, title in rows]
    last = f"{plural(len(parts), 'check')}, * required; `ncclprobe explain ID` explains one"
    return "\n".join((*lines[1:], "", last))


def _fitting(text: str, wide: int) -> str:
    return text if len(text) <= wide else f"{text[: wide - 1].rstrip()}…"


def _row(check: Check) -> dict[str, Any]:
    return {
        "id": check.id,
        "part": check.part,
        "title": check.title,
        "right": check.right,
        "why": check.why,
        "fix": check.fix,
        "required": check.required,
        "privilege": check.privilege,
        "requires": check.requires,
        "applies": check.applies.words if check.applies else "",
        "facts": [need.fact.__name__ for need in check.needs],
        "origin": check.origin,
    }
