"""``scripts/freeze.py``: write down what this release promises, so that a test sees what a later one would break.

Run once for each release, when its version is set: it writes tests/data/released/VERSION/, which tests/test_released.py
compares every later state with. Before the first upload it may be run again.
"""

import gzip
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ncclprobe import __version__, api
from ncclprobe.commands import COMMANDS
from ncclprobe.engine.captures import of_captures
from ncclprobe.engine.diagnose import MACHINE, Judging, ask
from ncclprobe.model.findings import ExitCode
from ncclprobe.model.registry import Check, Collector, discover
from ncclprobe.model.report import Report
from ncclprobe.model.snapshot import Job
from ncclprobe.report import json as as_json
from ncclprobe.report import prometheus

FOLDER = ROOT / "tests" / "data" / "released"
CAPTURE = ROOT / "tests" / "captures" / "hgx-h100.jsonl"
"""A machine on which most checks have something to judge."""
_METRIC = re.compile(r"^# TYPE (\S+) (\S+)$", re.M)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of reports, without the descriptions, which may change."""
    return dict(_without_descriptions(as_json.schema()))


def _without_descriptions(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_descriptions(each) for key, each in value.items()}
        if isinstance(kept.get("description"), str):
            del kept["description"]
        return kept
    return [_without_descriptions(each) for each in value] if isinstance(value, list) else value


def signatures() -> dict[str, dict[str, str]]:
    """Return the parameters of each function of the API, with what they default to."""
    functions = {name: getattr(api, name) for name in api.__all__ if inspect.isfunction(getattr(api, name))}
    return {
        name: {
            each.name: f"{each.kind.name}: {each.annotation}{_default(each)}"
            for each in inspect.signature(function).parameters.values()
        }
        for name, function in functions.items()
    }


def _default(each: inspect.Parameter) -> str:
    return "" if each.default is each.empty else f" = {each.default!r}"


def names() -> dict[str, Any]:
    """Return the names that others have written down: ids, commands, metrics, exit codes, what the API holds."""
    return {
        "checks": sorted({check.id for check in discover("ncclprobe.checks", Check)}),
        "commands": sorted(COMMANDS),
        "exit_codes": {code.name: int(code) for code in ExitCode},
        "metrics": dict(_METRIC.findall(prometheus.render(report()))),
        "api": sorted(api.__all__),
        "signatures": signatures(),
    }


def report() -> Report:
    """Return what is said of the captured machine."""
    collectors = discover("ncclprobe.facts", Collector, MACHINE)
    return of_captures(ask(Judging(), ("doctor",), Job()), collectors, [CAPTURE])


def main() -> int:
    """Write the folder of this version."""
    folder = FOLDER / __version__
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"schema.json": schema(), "names.json": names(), "statuses.json": statuses(report())}
    for name, value in whole.items():
        (folder / name).write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    (folder / "capture.jsonl.gz").write_bytes(gzip.compress(CAPTURE.read_bytes(), mtime=0))
    print(f"wrote {folder.relative_to(ROOT)}")
    return 0


def statuses(said: Report) -> dict[str, str]:
    """Return the status of each check on the captured machine."""
    return {verdict.id: verdict.status.value for verdict in said.checks}


if __name__ == "__main__":
    sys.exit(main())
