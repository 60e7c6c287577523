"""Explain our exit code under torchrun, which prints a traceback for every code but 0, below our report.

The last words of that traceback are those of the file that torchrun has each rank write for it
(torch/distributed/elastic/multiprocessing/errors/error_handler.py, record_exception).
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ncclprobe.model.findings import ExitCode
from ncclprobe.session.ranks.rank_files import FOLDER

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_MEANINGS = {
    ExitCode.BROKEN: "the fault of ncclprobe named above",
    ExitCode.USAGE: "the wrong usage named above, not a crash",
    ExitCode.INCONCLUSIVE: "the verdict UNKNOWN (inconclusive) above, not a crash",
    ExitCode.FAIL: "the verdict FAIL above, not a crash",
}


def explain_exit(code: int, variables: Mapping[str, str] = os.environ, *, fail_on: str = "fail") -> None:
    """Print on standard error what torchrun's ``exitcode: CODE`` will mean: once per node, for each has an agent.

    Every rank tells it to torchrun too, which ends its traceback with what the first one said. Nothing is done for 0,
    for another launcher, or where our own --nproc has started the ranks.
    """
    meaning = explanation(code, variables, fail_on=fail_on)
    if not meaning:
        return
    with contextlib.suppress(OSError, ValueError):
        _tell_torchrun(f"none: that is {meaning}", variables.get(_ERROR_FILE))
        if variables.get("LOCAL_RANK", "0") == "0":
            line = f'ncclprobe: torchrun will now print "exitcode  : {code}": that is {meaning}'
            print(line, file=sys.stderr, flush=True)


def explanation(code: int, variables: Mapping[str, str], *, fail_on: str = "fail") -> str:
    """Return what the exit code means; empty: there is nothing to explain to torchrun."""
    if not variables.get("TORCHELASTIC_RUN_ID") or FOLDER in variables or code not in _MEANINGS:
        return ""
    meaning = _MEANINGS[ExitCode(code)]
    return meaning.replace("FAIL", "FAIL or WARN") if fail_on == "warn" else meaning


def _tell_torchrun(text: str, path: str | None) -> None:
    """Write what torchrun will print as this rank's traceback. Raises OSError."""
    if path:
        more = {"py_callstack": text, "timestamp": str(int(time.time()))}
        Path(path).write_text(json.dumps({"message": {"message": text, "extraInfo": more}}), encoding="utf-8")
