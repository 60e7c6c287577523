"""``ncclprobe fleet``: keep reports, and name the nodes that got worse: since when, and what changed."""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ncclprobe.commands import arguments
from ncclprobe.commands.run_files import printable_lines
from ncclprobe.fleet import store
from ncclprobe.fleet.extract import by, refuse, told
from ncclprobe.fleet.node_health import aged
from ncclprobe.host import files
from ncclprobe.model import bounds
from ncclprobe.model.errors import UsageError, unknown
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.fleet import Added, NodeReport, NodeStanding, SharedLoss
from ncclprobe.model.units import plural, printable
from ncclprobe.model.values import replace
from ncclprobe.report import delivery
from ncclprobe.report import fleet as shown
from ncclprobe.report import json as as_json

_ABOUT = """\
Keep the reports of many nodes and days in one file, and name the nodes that got worse: failing, degraded, flapping or
watched, since when, and what changed on them at that time. Reports may come from any command with --json."""

_MORE = """\
  ncclprobe fleet add FILE …      add reports or folders; duplicates are skipped
  ncclprobe fleet                 show the state of all nodes, worst first
  ncclprobe fleet node NAME       show what changed on one node, and when
  ncclprobe fleet page --html F   write a page of all nodes by day
  ncclprobe fleet accept NAME     treat a node's present rates as normal
  ncclprobe fleet rename OLD NEW  give a node's history another name
  ncclprobe fleet forget NAME     drop a retired node

Each has its own --help.

examples:
  ncclprobe accept --json accept.json
  ncclprobe fleet add accept.json --fleet /shared/fleet.db
  ncclprobe fleet --fleet /shared/fleet.db
  ncclprobe fleet node n37 --fleet /shared/fleet.db"""

_WORDS = {
    "add": "Add reports that commands wrote with --json. A report counts once, no matter who adds it, when, or how "
    "often.",
    "node": "Show one node: its state and rates, what changed on it and when, and the sources of its reports.",
    "page": "Write a page that opens offline, with a row per node, worst first, and a column per day.",
    "accept": "Treat a node's present rates as normal. Its history is kept.",
    "rename": "Give a node another name. If both names have a history, the two are merged.",
    "forget": "Drop a retired node. Its reports may be added again.",
}
_TIMEOUT_S = 60.0
_MOST_ADDED = 20
_MOST_RENAMED = 10
PAGE_DAYS, _DAY_S = 90, 86400.0


def main(argv: Sequence[str]) -> int:
    """Add reports, or show all nodes or one. Raises UsageError."""
    takes = {name for name, action in _parser("")._option_string_actions.items() if action.nargs != 0}
    values = {at + 1 for at, each in enumerate(argv) if each in takes}
    at = next((at for at, each in enumerate(argv) if not each.startswith("-") and at not in values), None)
    if at is not None and argv[at] not in _WORDS:
        raise unknown(argv[at], "word after `ncclprobe fleet`", _WORDS, "`ncclprobe fleet --help` explains them")
    do = "" if at is None else argv[at]
    parser, rest = _parser(do), [each for place, each in enumerate(argv) if place != at]
    explains = {*rest} & {"-h", "--help", "--help-all"}  # the other way hides operands while it reads options
    options = parser.parse_args(rest) if explains else parser.parse_intermixed_args(rest)
    if do == "add":
        return _add(options, options.reports)
    if do == "page":
        return _page(options)
    if not do and (options.html or options.trust):
        raise UsageError("--html is for `ncclprobe fleet page`, and --trust for `ncclprobe fleet add`")
    return _node(options, do) if do else _all(options)


def _add(options: argparse.Namespace, names: Sequence[str]) -> int:
    """Add each report; an unreadable one does not keep the others from being added."""
    names = [str(path) for name in names for path in (_reports(Path(name)) if Path(name).is_dir() else [name])]
    if len(names) > bounds.FLEET_REPORTS:
        raise UsageError(f"{len(names)} reports; give {bounds.FLEET_REPORTS} at most")
    read, refused = _read(names, time.time(), options.trust)
    for why in refused:
        print(f"ncclprobe: {printable_lines([why])}", file=sys.stderr)
    added = tried = 0
    if read:
        try:
            with store.opened(options.fleet, options.timeout, create=True) as fleet:
                for nodes, digest, name, command in sorted(read, key=lambda each: each[0][0].time_s):
                    added += fleet.add(nodes, digest, Added(time.time(), by(), str(Path(name).absolute()), command))
                    tried += 1
                if tried > 1:
                    fleet.settle()
        except UsageError as error:
            raise UsageError(f"{error}{f'; {tried:,} of {len(read):,} reports are in it' * bool(tried)}") from None
        except KeyboardInterrupt:
            print(f"ncclprobe: {tried:,} of {plural(len(read), 'report')} are in the store", file=sys.stderr)
            raise
    known = len(read) - added
    if options.json:
        arguments.write_json(options, "fleet", {"added": added, "known": known, "refused": refused})
    if options.json != "-" and read and not options.quiet:
        there = f", {known:,} there already" if known else ""
        print(printable_lines([f"{plural(added, 'report')} added to {options.fleet}{there}"]))
    return ExitCode.USAGE if refused else ExitCode.OK


_Read = tuple[Sequence[NodeReport], str, str, str]


def _read(names: Sequence[str], now_s: float, trust: bool) -> tuple[list[_Read], list[str]]:
    """Return each report's data, digest, file and command; and why others are refused."""
    found: list[_Read] = []
    refused = []
    for name in names:
        try:
            files.refuse_links(Path(name))
            report, digest = as_json.read_with_digest(name, partial(_refuse_owner, name, trust))
            nodes = told(report, name)
            refuse(nodes, name, now_s)
            found.append((nodes, digest, name, report.command[: bounds.NAME_CHARACTERS]))
        except OSError as error:
            refused.append(f"{name}: cannot be read: {error.strerror}")
        except UsageError as error:
            refused.append(str(error))
    return found, refused


def _refuse_owner(name: str, trust: bool, found: os.stat_result) -> None:
    if not trust and found.st_uid not in (0, os.geteuid()):
        raise UsageError(
            f"{name}: belongs to uid {found.st_uid}, which is neither you nor root; --trust adds it anyway"
        )


def _reports(folder: Path) -> list[Path]:
    """Return the reports in a folder in which several users leave them."""
    return sorted(path for path in folder.glob("*.json") if path.is_file())


def _all(options: argparse.Namespace) -> int:
    with store.opened(options.fleet, options.timeout) as fleet:
        nodes = [aged(each, time.time()) for each in fleet.standings()]
        _say_unsettled(fleet)
        losses = fleet.shared()
        code = _exit_code(nodes, fleet.unsettled, losses) if options.exit_code else ExitCode.OK
        lines = [shown.counts(nodes)] if options.quiet else shown.lines(nodes, delivery.width())
        lines = [*shown.shared_lines(losses, delivery.width()), *lines]
        answer = shown.as_json(nodes, losses, code) if options.json else {}
    _tell(options, answer, lines)
    return code


def _tell(options: argparse.Namespace, answer: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Write `answer` to --json, and print `lines` unless it takes standard output."""
    if options.json:
        arguments.write_json(options, "fleet", answer)
    if options.json != "-":
        print(printable_lines(lines))


def _say_unsettled(fleet: store.Store) -> None:
    for old, new, what in fleet.renamed()[:_MOST_RENAMED]:
        rename = f"`ncclprobe fleet rename {old} {new}` merges them"
        words = f"{new} has the {what} of {old}, which is older: {rename}"
        print(f"ncclprobe: {printable(words)}", file=sys.stderr)
    for name in fleet.damaged[:_MOST_RENAMED]:
        words = f"the row of {name} is damaged and left out; `ncclprobe fleet forget {name}` lets it be added again"
        print(f"ncclprobe: {printable(words)}", file=sys.stderr)
    if fleet.unsettled:
        late = plural(fleet.unsettled, "number")
        print(f"ncclprobe: {late} from late reports left out: raise --timeout, or let it write to the file",
              file=sys.stderr)  # fmt: skip


def _node(options: argparse.Namespace, do: str) -> int:
    """Show one node, after accepting or renaming it if asked; or forget it, and show the others."""
    name = options.name
    with store.opened(options.fleet, options.timeout) as fleet:
        known = fleet.names()
        if name not in known:
            raise unknown(name, "node of this store", known, "`ncclprobe fleet --json -` lists all")
        if do == "accept":
            fleet.accept(name, by(), time.time())
        if do == "rename":
            if not 0 < len(options.new) <= bounds.NAME_CHARACTERS or options.new != printable(options.new):
                raise UsageError(f"{printable(options.new)[:60]!r} is not a valid node name")
            fleet.rename(name, name := options.new)
        if do == "forget":
            fleet.forget(name)
        found = fleet.history(name, _MOST_ADDED)
        _say_unsettled(fleet)
        if found is None:
            return _all(options)
        history = replace(found, standing=aged(found.standing, time.time()))
        code = _exit_code([history.standing], fleet.unsettled) if options.exit_code else ExitCode.OK
        lost = [each for each in fleet.shared() if name in each.nodes]
        lines = list(shown.node_lines(history, delivery.width()))[: 1 if options.quiet else None]
        lines += [] if options.quiet else shown.shared_lines(lost, delivery.width())
        answer = shown.node_json(history, code) if options.json else {}
    _tell(options, answer, lines)
    return code


def _page(options: argparse.Namespace) -> int:
    """Write the page of all nodes by day."""
    from ncclprobe.report.html import days as page  # imports that text does without

    now_s = time.time()
    with store.opened(options.fleet, options.timeout) as fleet:
        found = [replace(each, standing=aged(each.standing, now_s)) for each in fleet.days(now_s - PAGE_DAYS * _DAY_S)]
        _say_unsettled(fleet)
        unsettled = fleet.unsettled
    nodes = [each.standing for each in found]
    delivery.put(page.render(found, now_s, PAGE_DAYS, printable(str(options.fleet))), options.html)
    if not options.quiet and options.html != "-":
        print(printable_lines([f"{plural(len(nodes), 'node')} written to {options.html}"]))
    return _exit_code(nodes, unsettled) if options.exit_code else ExitCode.OK


def _exit_code(nodes: Sequence[NodeStanding], unsettled: int, losses: Sequence[SharedLoss] = ()) -> ExitCode:
    """Return the exit code (docs/reference/exit-codes.md): 4 for what was lost or fails, 3 for what is unknown.

    Unknown also while `unsettled` numbers are left out, or for what all nodes have lost, which no node is to blame for.
    """
    states = {each.state for each in nodes}
    if states & {"failing", "degraded", "flapping"}:
        return ExitCode.FAIL
    return ExitCode.OK if states == {"ok"} and not unsettled and not losses else ExitCode.INCONCLUSIVE


def _parser(do: str = "") -> arguments.Parser:
    """Return the parser of a sub-command; empty: that of the overview."""
    parser = arguments.Parser("fleet", _WORDS.get(do, _ABOUT), "" if do else _MORE)
    add = parser.add_argument
    if do:
        parser.prog = f"{parser.prog} {do}"
    if do == "add":
        add("reports", nargs="+", metavar="FILE", help="Add these reports, or all of these folders.")
    elif not do:
        add(
            "words",
            nargs="*",
            metavar="add FILE|node NAME",
            help="Run this action; all actions are listed below (default: show all nodes).",
        )
    elif do != "page":
        add("name", metavar="OLD" if do == "rename" else "NAME", help="The node's name in its reports.")
    if do == "rename":
        add("new", metavar="NEW", help="The node's name in newer reports.")
    if do in ("", "page"):
        add("--html", type=arguments.destination, metavar="PATH", required=bool(do),
            help="Write the HTML of `fleet page` to PATH.")  # fmt: skip
    if do in ("", "add"):
        add("--trust", action="store_true", help="Add reports that another user wrote, too.")
    add("--fleet", type=Path, default=Path("fleet.db"), metavar="PATH",
        help="Keep the reports in this file, which many nodes may share (default: %(default)s).")  # fmt: skip
    add("--timeout", type=arguments.positive, default=_TIMEOUT_S, metavar="SECONDS",
        help="Wait at most this long for other processes that write to the file (default: %(default)g).")  # fmt: skip
    if do != "add":
        add("--exit-code", action="store_true",
            help="Exit with 4 if a node is failing, degraded or flapping, and with 3 if one is watched or unknown.",
        )  # fmt: skip
    if do != "page":
        arguments.json_option(parser)
    add("-q", "--quiet", action="store_true", help="Print one line only.")
    return parser
