"""Stop or slow real jobs in many ways, look at each with `ncclprobe attach`, and print what it said.

    python scripts/hangs.py [--only sleep,fifo] [--mode server,both,stacks,bare] [--at-once N] [--out DIR]

Each job has three ranks (scripts/hang_rank.py); rank 1 of them does what is named, after some steps. Modes: torch's
worker server alone, with the stacks too, stacks alone, neither; with NCCL its RAS alone, and torch's pipe too. Ways of
ON_HOSTS are played on three hosts of network namespaces, each of which keeps what it sees, and `explain` reads these
together; they need root. A healthy job must not be called stuck, and no rank may be named that is not the one. With
--rows each answer is appended to a file. With --out the looks are kept, for
`ncclprobe explain` and for tests.
"""

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]

from hang_rank import CPU_GROUPS, HANGS, HEALTHY, HELPERS, RANKS, START_S, VICTIM

from ncclprobe.commands.attach import PREPARE
from tests.lab.processes import LabError

RANK_PROGRAM = ROOT / "scripts/hang_rank.py"
MODES = {"server": "server", "both": "server and stacks", "stacks": "stacks", "bare": "neither"}
EXPECTED = {
    "another collective": "desync",
    "another order": "desync",
    "another group": "desync",
    "another size": "desync",
    "left": "dead or gone",
    "no message": "desync",
    "end of its data": "desync",
    "throttled cgroup": "slow, not stuck",
    "one direction dropped": "stuck inside",
    "NIC at a hundredth": "slow, not stuck",
    "host gone": "dead or gone",
}
PLACES = {
    "sigstop": ("stopped by a signal",),
    "while True": ("in loop",),
    "deadlock": ("in deadlock",),
    "loader worker stopped": ("pt_data_worker", "in loader"),
    "queue of a dead worker": ("its process", "in dead_worker"),
    "file lock": ("(flock of ", "in file_lock"),
    "silent server": ("a connection to", "in silent_server"),
    "uploader at exit": ("a connection to", "in silent_server", "in uploader"),
    "child process": ("its process",),
    "pipe of a grandchild": ("its process",),
    "forked lock": ("pt_data_worker", "in forked_lock"),
    "exception handler": ("in handler",),
    "pdb": ("in debugger",),
    "polls for a file": ("in polled_file",),
    "signal handler": ("in signal_handler",),
    "signal wait": ("in <lambda>",),
    "sleep": ("in <lambda>",),
    "gil held in C": ("in <lambda>",),
    "store key": ("in missing_key", "a connection to"),
    "store gone": ("in missing_key", "in store_gone", "a connection to"),
    "fifo": ("data.fifo", "in fifo"),
    "pipe": ("of pipe:", "in pipe"),
    "full pipe": ("of pipe:", "in full_pipe"),
    "left": ("rank 1",),
    "throttled cgroup": ("quota of its cgroup", "in computing"),
    "frozen file system": ("/data)", "in frozen_files"),
    "one direction dropped": ("rank 1 sends to rank 0", "rank 0 sends to rank 1", "over eth0"),
    "NIC at a hundredth": ("over eth0",),
    "host gone": ("over eth0",),
    **dict.fromkeys(("another collective", "another order", "another group"), ("rank 1",)),
    **dict.fromkeys(("another size", "end of its data"), ("rank 1",)),
    "no message": ("in recv (", "rank 1"),
}
"""A frame, or what it waits for: one of these words, in what is said of the rank."""
SETTLE_S = {"while True": 185.0, "one direction dropped": 15.0, "NIC at a hundredth": 40.0, "host gone": 20.0}
"""A loop that may be work is called stuck when others have waited for three minutes."""
Job = list["subprocess.Popen[str]"]


def started(way: str, server: bool) -> Job:
    """Return the ranks of a job, once they have made their first steps. Raises TimeoutError."""
    folder = tempfile.mkdtemp()
    path = Path(folder) / "port"
    (Path(folder) / "prepared.py").write_text(PREPARE)
    name = {"MASTER_ADDR": Path(folder).name, "MASTER_PORT": "1", "OMP_NUM_THREADS": "1"}  # what tells it from others
    sizes = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
    name |= {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/pipe_", "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/records_"}
    own = [sys.executable, str(RANK_PROGRAM), way, str(path)]
    ranks = [
        _process([*own, *["--server"] * server], {**name, **sizes, "RANK": str(n), "LOCAL_RANK": str(n)})
        for n in range(RANKS)
    ]
    helpers = [_process([*own, "--helper"], {})] if way in HELPERS else []
    deadline = time.monotonic() + START_S
    for each in ranks:
        assert each.stdout
        if not select.select([each.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            ended([*ranks, *helpers])
            raise TimeoutError(f"{way}: a rank made no step within {START_S:g} s")
        each.stdout.readline()
    return [*ranks, *helpers]


def _process(command: Sequence[str], variables: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def settled(ranks: Job, seconds: float) -> None:
    """Let a job stand for so long, if it does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(each.poll() is None for each in ranks):
        time.sleep(0.1)


def ended(ranks: Job) -> None:
    """End a job, with all that it has started."""
    for each in reversed(ranks):
        try:
            os.killpg(each.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        finally:
            each.wait()
            assert each.stdout
            each.stdout.close()
            with suppress(OSError):
                (CPU_GROUPS / f"ncclprobe-hangs-{each.pid}").rmdir()


def looked(ranks: Job, mode: str, keep: Path | None) -> tuple[dict[str, Any], float]:
    """Return the report on a job, and how long it took."""
    command = [sys.executable, "-m", "ncclprobe", "attach", "--pid", str(ranks[0].pid), "--json", "-", "--no-config"]
    command += ["--stacks"] if mode in ("both", "stacks") else []
    command += ["--dumps"] if mode == "dumps" else []
    command += ["--keep", str(keep)] if keep else []
    began = time.monotonic()
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    return _report(said.returncode, said.stdout, said.stderr), time.monotonic() - began


def _report(code: int, out: str, err: str) -> dict[str, Any]:
    return {"standing": {"word": "REFUSED", "message": err.strip()}, "classes": []} if code else json.loads(out)


def judged(way: str, report: dict[str, Any]) -> tuple[str, str]:
    """Return whether the answer is right, and the answer in words."""
    standing, classes = report["standing"], report["classes"]
    found = {(each["name"], *each["ranks"]): each["doing"] for each in classes}
    rest = [f"{name} {ranks}: {text}" for (name, *ranks), text in found.items() if name not in ("waiting", "working")]
    text = f"{standing['word']}: {'; '.join(rest) or standing['message']}"
    wanted = EXPECTED.get(way, "stuck outside")
    of_two = wanted == "stuck inside" or way == "NIC at a hundredth"  # the ranks at both ends of a connection
    bad = [ranks for (name, *ranks) in found if name in ("stuck outside", "stuck inside", "desync", "dead or gone")]
    if way in HEALTHY:
        return "WRONG" if standing["word"] == "STUCK" or bad else "right", text
    if any(ranks != [VICTIM] and not (of_two and VICTIM in ranks) for ranks in bad):
        return "WRONG RANK", text
    word = "SLOW" if wanted == "slow, not stuck" else "STUCK"
    named = any(name == wanted and VICTIM in ranks for (name, *ranks) in found)
    if standing["word"] == word and named:
        return "right", text
    return ("cannot tell" if standing["word"] == "CANNOT TELL" else "missed"), text


def placed(way: str, report: dict[str, Any]) -> bool:
    """Return whether what is said of rank 1 has its line in the program, or what it waits for."""
    said = [
        text
        for each in report["classes"]
        if VICTIM in each["ranks"]
        for text in (each["doing"], *(f"{one['source']} {one['text']}" for one in each["evidence"]))
    ]
    return any(word in text for word in PLACES.get(way, ()) for text in said)


# Hosts of network namespaces, each with processes of its own.


def _faults(way: str, lab: Any) -> AbstractContextManager[None]:
    from tests.lab import faults

    first, second = lab.hosts[:2]
    if way == "one direction dropped":
        return faults.rules(second, [f"ip daddr {first.address()} drop"], "out")
    if way == "NIC at a hundredth":
        return faults.shaped(second, 1.0)
    return faults.cable_pulled(second) if way == "host gone" else nullcontext()


WITH_NCCL = ("another size",)
"""Gloo ends a job in which sizes differ; NCCL hangs."""
ON_HOSTS = ("one direction dropped", "NIC at a hundredth", "host gone")


@contextmanager
def on_hosts(way: str, server: bool, settle_s: float) -> Iterator[Callable[[str, Path], tuple[dict[str, Any], float]]]:
    """Start a job of a rank on each of three hosts, stop or slow it, and give what looks at it."""
    from tests.lab import Lab

    folder = Path(tempfile.mkdtemp())
    (folder / "prepared.py").write_text(PREPARE)
    with Lab(hosts=RANKS, nics=1) as lab:
        inside = [_own_processes(host) for host in lab.hosts]
        variables = {"MASTER_ADDR": folder.name, "MASTER_PORT": "1", "OMP_NUM_THREADS": "1", "LOCAL_RANK": "0"}
        variables |= {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": "1", "STORE_HOST": lab.hosts[0].address()}
        variables |= {"GLOO_SOCKET_IFNAME": "eth0"}
        own = [sys.executable, str(RANK_PROGRAM), way, str(folder / "port"), *["--server"] * server]
        jobs = [
            host.start([*enter, *own], {**variables, "RANK": str(n)})
            for n, (host, enter) in enumerate(zip(lab.hosts, inside, strict=True))
        ]
        for each in jobs:
            each.until_says("ready", START_S)
        with _faults(way, lab):
            time.sleep(SETTLE_S.get(way, settle_s))
            seen = [n for n in range(RANKS) if way != "host gone" or n != VICTIM]

            def look(mode: str, keep: Path) -> tuple[dict[str, Any], float]:
                command = [sys.executable, "-m", "ncclprobe", "attach", "--no-config", "--quiet", "--keep", str(keep)]
                command += ["--stacks"] if mode in ("both", "stacks") else []
                began = time.monotonic()
                looks = [lab.hosts[n].start([*inside[n], *command]) for n in seen]
                for each in looks:
                    each.wait(60.0)
                took_s = time.monotonic() - began
                explain = [sys.executable, "-m", "ncclprobe", "explain", str(keep), "--json", "-", "--no-config"]
                said = subprocess.run(explain, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
                return _report(said.returncode, said.stdout, said.stderr), took_s

            yield look


def _own_processes(host: Any) -> list[str]:
    """Return the beginning of a command that runs its rest on `host`, where only the processes of this are seen."""
    job = host.start(
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", "echo up; exec sleep 999"]
    )
    job.until_says("up")
    first = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()[0]
    return ["nsenter", "-t", first, "-p", "-m", "--", "env", f"--chdir={ROOT}"]


# Playing and writing.


def played(way: str, modes: Sequence[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield how each mode judged a way, of one job with torch's worker server and one without."""
    for server in (True, False):
        wanted = [mode for mode in modes if (mode in ("server", "both")) == server]
        if not wanted:
            continue
        hosts = options.hosts or way in ON_HOSTS
        with on_hosts(way, server, options.settle) if hosts else _on_this_node(way, server, options) as look:
            for mode in wanted:
                keep = (options.out or Path(tempfile.mkdtemp())) / f"{way} {mode}".replace(" ", "-")
                report, seconds = look(mode, keep)
                verdict, text = judged(way, report)
                row = {"way": way, "mode": mode, "verdict": verdict, "place": placed(way, report)}
                yield {**row, "seconds": round(seconds, 1), "said": text, "load": os.getloadavg()[0]}


@contextmanager
def _on_this_node(
    way: str, server: bool, options: argparse.Namespace
) -> Iterator[Callable[[str, Path], tuple[dict[str, Any], float]]]:
    ranks = started(way, server)
    try:
        settled(ranks, max(options.settle, SETTLE_S.get(way, 0.0)))
        yield lambda mode, keep: looked(ranks, mode, keep)
    finally:
        ended(ranks)


def main() -> int:
    """Play the ways that were asked for; return 1 where an answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default=",".join(way for way in (*HANGS, *ON_HOSTS, *HEALTHY) if way not in WITH_NCCL)
    )
    parser.add_argument("--mode", default="both")
    parser.add_argument("--settle", type=float, default=12.0)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--hosts", action="store_true", help="play each way on three hosts")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=Path)
    options = parser.parse_args()
    wrong, lock = [], threading.Lock()

    def play(way: str) -> None:
        try:
            for row in played(way, options.mode.split(","), options):
                with lock:
                    wrong.extend([way] * row["verdict"].startswith("WRONG"))
                    print(
                        "{way:<26} {mode:<7} {verdict:<10} {place:1} {seconds:4.1f} s  {said}".format(**row), flush=True
                    )
                    if options.rows:
                        with options.rows.open("a") as file:
                            print(json.dumps(row), file=file)
        except (
            OSError,
            ValueError,
            TimeoutError,
            subprocess.SubprocessError,
            LabError,
        ) as error:  # one way that cannot be played leaves the others
            print(f"{way:<26} NOT PLAYED: {type(error).__name__}: {error}", flush=True)

    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(play, options.only.split(",")))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
