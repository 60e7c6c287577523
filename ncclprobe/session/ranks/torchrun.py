"""Explain our exit code under torchrun, which prints a traceback for every code but 0, below our report."""

import contextlib
import os
import sys
from collections.abc import Mapping

from ncclprobe.model.findings import ExitCode
from ncclprobe.session.ranks.rank_files import FOLDER

_MEANINGS = {
    ExitCode.BROKEN: "the fault of ncclprobe named above",
    ExitCode.USAGE: "the wrong usage named above, not a crash",
    ExitCode.INCONCLUSIVE: "the verdict UNKNOWN (inconclusive) above, not a crash",
    ExitCode.FAIL: "the verdict FAIL above, not a crash",
}


def explain_exit(code: int, variables: Mapping[str, str] = os.environ, *, fail_on: str = "fail") -> None:
    """Print on standard error what torchrun's ``exitcode: CODE`` will mean: once per node, for each has an agent.

    Print nothing for 0, for another launcher, or where our own --nproc has started the ranks.
    """
    text = explanation(code, variables, fail_on=fail_on)
    if text:
        with contextlib.suppress(OSError, ValueError):
            print(f"ncclprobe: {text}", file=sys.stderr, flush=True)


def explanation(code: int, variables: Mapping[str, str], *, fail_on: str = "fail") -> str:
    """Return the sentence of :func:`explain_exit`; empty: there is nothing to explain, or another rank does it."""
    ours = not variables.get("TORCHELASTIC_RUN_ID") or FOLDER in variables
    if ours or variables.get("LOCAL_RANK", "0") != "0" or code not in _MEANINGS:
        return ""
    meaning = _MEANINGS[ExitCode(code)]
    if fail_on == "warn":
        meaning = meaning.replace("FAIL", "FAIL or WARN")
    return f'torchrun will now print "exitcode  : {code}": that is {meaning}'
