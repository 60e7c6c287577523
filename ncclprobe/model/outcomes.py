"""How each command may end: its exit code and its report's status, by findings and options.

This is the only table. Its lines are the text of `--help` and docs/reference/exit-codes.md, and tests/test_outcomes.py
produces every one of them. The rule behind it: the worst word that is printed decides the code, in every command and
every format.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ncclprobe.model.findings import ExitCode, Status

FAIL_ON_WARN, REQUIRE_JUDGED, EXIT_CODE = "--fail-on warn", "--require-judged", "--exit-code"
"""Options that change the exit code for the same findings."""


class Outcome(NamedTuple):
    """One way to end: in words, with its `code` and the `status` of the report (None: no report).

    `under`: codes that options replace it with; the words stay the same.
    """

    words: str
    code: ExitCode
    status: Status | None = None
    under: Mapping[str, ExitCode] = {}


_OK, _USAGE, _UNKNOWN, _FAIL = ExitCode.OK, ExitCode.USAGE, ExitCode.INCONCLUSIVE, ExitCode.FAIL

_TYPO = {"typo": Outcome("wrong usage, or a file that cannot be read or written", _USAGE)}
_CLEAN = {
    "clean": Outcome("nothing failed, and all required checks ran", _OK, Status.PASS),
    "advisory unknown": Outcome("an advisory check could not be done", _OK, Status.PASS),
    "warns": Outcome("a check gave a warning", _OK, Status.WARN, {FAIL_ON_WARN: _FAIL}),
}
_BLAMES = ("node", "link", "fabric", "image", "job", "unknown")
_FAILS = {f"fails: {blame}": Outcome("a check failed", _FAIL, Status.FAIL) for blame in _BLAMES}
_BLIND = {"required unknown": Outcome("a required check could not be done", _UNKNOWN, Status.UNKNOWN)}
_MISSING = {
    "missing node": Outcome("a node did not join, and the wait for it was interrupted", _UNKNOWN, Status.UNKNOWN),
    "absent node": Outcome("a node did not join in time", _FAIL, Status.FAIL),
}

_LOOKS = {**_CLEAN, **_TYPO, **_BLIND, **_MISSING, **_FAILS}
_MEASURES = {
    **_CLEAN,
    "required unknown": Outcome("a check of the machine could not be done", _OK, Status.PASS),
    "idle device": Outcome("a check failed on a device that the run did not use (a NOTE)", _OK, Status.PASS),
    **_TYPO,
    "cut short": Outcome("the run was cut short, or a requested part was not measured", _UNKNOWN, Status.UNKNOWN),
    "late rank": Outcome("a rank had not joined before the timeout", _UNKNOWN, Status.UNKNOWN),
    **_FAILS,
    "lost": Outcome("a rank did not join, or was lost", _FAIL, Status.FAIL),
}
_SIZED = {"too large": Outcome("not enough memory for the requested messages", _USAGE)}
_JUDGED = {"unjudged": Outcome("no number was judged", _OK, Status.PASS, {REQUIRE_JUDGED: _UNKNOWN})}
_NOISE = {"noise": Outcome("a number was too noisy to judge", _UNKNOWN, Status.UNKNOWN)}
_ACCEPTS = {
    **{name: outcome for name, outcome in _MEASURES.items() if name != "idle device"},
    **_BLIND,
    **_JUDGED,
    **_NOISE,
}
_EXPLAINS = {
    "ended well": Outcome("the files could be read", _OK, Status.PASS),
    "named": Outcome("a cause is named", _OK, Status.FAIL, {EXIT_CODE: _FAIL}),
    "untold": Outcome(
        "the cause is unknown, or could not be narrowed to one", _OK, Status.UNKNOWN, {EXIT_CODE: _UNKNOWN}
    ),
    **_TYPO,
}  # fmt: skip
_ATTACHES = {
    "working": Outcome("ranks were found and examined", _OK, Status.PASS),
    "named": Outcome("the rank that blocks the others is named", _OK, Status.FAIL, {EXIT_CODE: _FAIL}),
    "untold": Outcome("it is unknown which rank blocks the others", _OK, Status.UNKNOWN, {EXIT_CODE: _UNKNOWN}),
    "nothing": Outcome("no rank was found", _USAGE),
    **_TYPO,
}

OUTCOMES: Mapping[str, Mapping[str, Outcome]] = {
    "accept": _ACCEPTS,
    "doctor": _LOOKS,
    "bandwidth": {**_MEASURES, **_SIZED, **_JUDGED, **_NOISE},
    "pairs": {**_MEASURES, **_SIZED, **_JUDGED},
    "copies": {**_MEASURES, **_JUDGED},
    "workload": {**_MEASURES, **_SIZED},
    "rails": _LOOKS,
    "explain": _EXPLAINS,
    "attach": _ATTACHES,
    "expect": {
        "clean": Outcome("numbers were shown, and no row failed (with --judge)", _OK),
        "unjudged": Outcome("no row could be judged (with --judge)", _OK, None, {REQUIRE_JUDGED: _UNKNOWN}),
        **_TYPO,
        "nothing": Outcome("no expectation is known for this machine", _UNKNOWN),
        "noise": Outcome("a row was too noisy to judge, or faster than the machine can be (with --judge)", _UNKNOWN),
        "fails": Outcome("a row failed (with --judge)", _FAIL),
    },
    "baseline": {
        "clean": Outcome("the baseline was written; the output lists the rejected rows and the reasons", _OK),
        **_TYPO,
        "refused": Outcome("every row was rejected, and nothing was written", _UNKNOWN),
    },
    "compare": {
        "clean": Outcome("nothing is slower", _OK),
        **_TYPO,
        "nothing": Outcome("nothing can be compared", _UNKNOWN),
        "noise": Outcome("a row may be slower but is too noisy", _UNKNOWN),
        "cut short": Outcome("NEW was cut short or inconclusive and lacks rows", _UNKNOWN),
        "slower": Outcome("a row is slower beyond noise", _FAIL),
        "fails": Outcome("a check failed that did not fail before", _FAIL),
    },
    "fleet": {
        "clean": Outcome("the reports were added, or the nodes were shown", _OK),
        "named": Outcome("a node is failing, degraded or flapping", _OK, None, {EXIT_CODE: _FAIL}),
        "untold": Outcome(
            "a node is watched for a fault, or the state of one or of all nodes is unknown",
            _OK,
            None,
            {EXIT_CODE: _UNKNOWN},
        ),
        "typo": Outcome(
            "wrong usage, or a report or the store cannot be read; the other reports are still added", _USAGE
        ),
    },
    "checks": {
        "clean": Outcome("the checks were listed, and passed (with --test)", _OK),
        **_TYPO,
        "broken": Outcome("a check did not pass (with --test)", _FAIL),
    },
    "report": {code.name: Outcome(f"the report's exit code is {int(code)}", code) for code in (_OK, _UNKNOWN, _FAIL)}
    | {"typo": Outcome("wrong usage, a file that is not a report, or the report's exit code is 2", _USAGE)},
    **{
        name: {"clean": Outcome(words, _OK), **_TYPO}
        for name, words in {
            "capture": "the capture was written",
            "topo": "the topology was shown",
            "completion": "the script was printed",
            "deploy": "the files were written",
            "demo": "the demo was shown, regardless of its verdict",
            "mcp": "standard input ended",
        }.items()
    },
}


def lines(command: str) -> dict[ExitCode, str]:
    """Return the meanings of a command's codes, ordered by code: each outcome once, those of options last."""
    found: dict[ExitCode, dict[str, None]] = {}
    for outcome in OUTCOMES[command].values():
        found.setdefault(outcome.code, {})[outcome.words] = None
    for outcome in OUTCOMES[command].values():
        for option, code in outcome.under.items():
            found.setdefault(code, {})[f"{outcome.words} ({option})"] = None
    return {code: next(iter(found[code])) if code is _OK else "; ".join(found[code]) for code in sorted(found)}


def epilog(command: str) -> str:
    """Return the `--help` text on a command's exit codes."""
    return "\n".join(("exit codes:", *(f"  {int(code)}  {words}" for code, words in lines(command).items())))
