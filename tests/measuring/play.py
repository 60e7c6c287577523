"""Start a case, hit it when its moment has come, and reduce what it left to what a golden holds."""

import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

import psutil
from launching import Launcher, Process, by_hand, free_port

from measuring import essence
from measuring.cases import BANDS, Case, Hit

IMPORTING = "importing"
_SLOW_TORCH = f"""\
import pathlib, time
pathlib.Path(__file__).with_name("{IMPORTING}").touch()
time.sleep(1000)
"""
_CALLING_S = 0.5
"""Of a rank's processor time, after it has connected to its peers: then it is in its first row."""


def played(case: Case, launcher: Launcher) -> dict[str, Any]:
    """Run `case` to its end: exit codes, what ncclprobe said on stderr, whether anything is left, the report."""
    started = _start(case, launcher)
    if case.hit:
        _strike(case.hit, started, launcher)
    codes: list[Any] = [process.wait() for process in started]
    launcher.until(lambda: not launcher.left(), "processes are left")
    own = {str(launcher.folder): "FOLDER", socket.gethostname(): "HOST"}
    document = _document(launcher)
    report = document and essence.of_report(document, own, case.free)
    if report and report["exit_code"] == essence.FREE:
        assert document
        assert codes == [document["exit_code"]] * len(codes)
        codes = []
    if case.kind == "mpirun" and any(codes):
        codes = ["not 0"]  # which, depends on its version
    return {
        "argv": " ".join((case.command, *case.argv)),
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
    argv = ["--backend", "gloo", "--json", str(launcher.report_path), *case.argv]
    if case.bands:
        (launcher.folder / BANDS).write_text(case.bands)
        argv += ["--expect", str(launcher.folder / BANDS)]
    command, module = ["-m", "ncclprobe", case.command], ["-m", f"ncclprobe.{case.command}"]
    count = str(case.ranks)
    if case.kind == "hand":
        seats = by_hand(free_port(), case.ranks)
        return [launcher.start([*module, *argv], seats(rank)) for rank in range(case.ranks)]
    if case.kind == "torchrun":
        return [
            launcher.start(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count, *module, *argv])
        ]
    if case.kind == "mpirun":
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [launcher.run(["mpirun", *root, "--oversubscribe", "-np", count, sys.executable, *module, *argv])]
    own = ["--nproc", count] if case.kind == "self" else []
    return [launcher.start([*command, *own, *argv], _slow_import(case, launcher))]


def _slow_import(case: Case, launcher: Launcher) -> dict[str, str]:
    """A torch whose import takes for ever, where that is the moment that is wanted."""
    if not case.hit or case.hit.moment != "import":
        return {}
    (launcher.folder / "torch.py").write_text(_SLOW_TORCH)
    return {"PYTHONPATH": str(launcher.folder)}


def _strike(hit: Hit, started: list[Process], launcher: Launcher) -> None:
    if isinstance(hit.moment, int):
        launcher.until_rows(hit.moment)
    elif hit.moment == "import":
        launcher.until((launcher.folder / IMPORTING).exists, "torch is not imported")
    else:
        _until_calling(started, launcher)
    _target(hit, started, launcher).send_signal(hit.number)


def _target(hit: Hit, started: list[Process], launcher: Launcher) -> psutil.Process:
    if hit.rank is None:
        return psutil.Process(started[0].popen.pid)
    if len(started) > 1:
        return psutil.Process(started[hit.rank].popen.pid)
    return launcher.rank_of(started[0], hit.rank)


def _until_calling(started: list[Process], launcher: Launcher) -> None:
    """Wait until rank 1 has used processor time since it connected to rank 0."""
    ranks: list[psutil.Process] = []

    def connected() -> bool:
        with contextlib.suppress(ValueError, psutil.NoSuchProcess):
            ranks[:] = [launcher.rank_of(started[0], rank) for rank in range(2)]
            return bool(_peers(ranks[0]) & _peers(ranks[1]))
        return False

    launcher.until(connected, "the ranks are not connected")
    before = _used_s(ranks[1])
    launcher.until(lambda: _used_s(ranks[1]) > before + _CALLING_S, "rank 1 calls nothing")


def _peers(process: psutil.Process) -> set[frozenset[Any]]:
    """The TCP connections of `process`, each as its two ends."""
    return {
        frozenset((tuple(each.laddr), tuple(each.raddr)))
        for each in process.net_connections(kind="tcp")
        if each.status == psutil.CONN_ESTABLISHED
    }


def _used_s(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)
