"""Start a case, hit it when its moment has come, and reduce what it left to what a golden holds."""

import json
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

import psutil
from launching import Launcher, Process, by_hand, free_port

from measuring import essence
from measuring.cases import Case, Hit

IMPORTING = "importing"
_SLOW_TORCH = f"""\
import os, pathlib, time
if os.environ.get("RANK") == "0":
    pathlib.Path(__file__).with_name("{IMPORTING}").touch()
time.sleep(1000)
"""


def played(case: Case, launcher: Launcher) -> dict[str, Any]:
    """Run `case` to its end: exit codes, what ncclprobe said on stderr, whether anything is left, the report."""
    started = _start(case, launcher)
    if case.hit:
        _strike(case.hit, started[0], launcher)
    codes: list[Any] = [process.wait() for process in started]
    launcher.until(lambda: not launcher.left(), "processes are left")
    own = {str(launcher.folder): "FOLDER", socket.gethostname(): "HOST"}
    document = _document(launcher)
    report = document and essence.of_report(document, own)
    if case.kind == "mpirun" and any(codes):
        codes = ["not 0"]  # which, depends on its version
    return {
        "argv": " ".join(("bandwidth", *case.argv)),
        "exit_codes": codes,
        "stderr": _said(started, own),
        "report": report,
    }


def _document(launcher: Launcher) -> dict[str, Any] | None:
    if not launcher.report_path.exists():
        return None
    found: dict[str, Any] = json.loads(launcher.report_path.read_text())
    return found


def _said(started: list[Process], own: Mapping[str, str]) -> list[str]:
    """Our own lines of each process; torchrun and mpirun add theirs, which change with their version."""
    lines = [line for process in started for line in process.err.splitlines()]
    return [essence.plain(line, own) for line in lines if line.startswith("ncclprobe: ")]


def _start(case: Case, launcher: Launcher) -> list[Process]:
    kept = ["--keep", str(launcher.folder / "kept")]  # whose run log tells how far they are
    argv = ["--backend", "gloo", "--json", str(launcher.report_path), *kept, *case.argv]
    module = ["-m", "ncclprobe.bandwidth"]
    if case.kind == "hand":
        seats = by_hand(free_port())
        return [launcher.start([*module, *argv], seats(rank)) for rank in range(2)]
    if case.kind == "torchrun":
        agent = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return [launcher.start([*agent, *module, *argv])]
    if case.kind == "mpirun":
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [launcher.run(["mpirun", *root, "--oversubscribe", "-np", "2", sys.executable, *module, *argv])]
    own = ["-m", "ncclprobe", "bandwidth", "--nproc", "2"]
    return [launcher.start([*own, *argv], _slow_import(case, launcher))]


def _slow_import(case: Case, launcher: Launcher) -> dict[str, str]:
    """A torch whose import takes for ever, where that is the moment that is wanted."""
    if not case.hit or case.hit.moment != "import":
        return {}
    (launcher.folder / "torch.py").write_text(_SLOW_TORCH)
    return {"PYTHONPATH": str(launcher.folder)}


def _strike(hit: Hit, started: Process, launcher: Launcher) -> None:
    if hit.moment == "import":
        launcher.until((launcher.folder / IMPORTING).exists, "torch is not imported")
    else:
        launcher.until_rows(1)
    parent = psutil.Process(started.popen.pid)
    (parent if hit.rank is None else launcher.rank_of(started, hit.rank)).send_signal(hit.number)
