"""Runs worlds of cases against one release, and counts."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from oracle_cases import Case, World, cases, drawn, worlds
from oracle_judge import Difference, effective, judge, predict

from ncclprobe.facts.interfaces import Address
from ncclprobe.facts.software import parse_version
from ncclprobe.model.values import Struct, asdict, field

SERVER = Path(__file__).resolve().parent / "oracle_server.py"
WORLD_DEADLINE_S = 240


class Tally(Struct):
    """What one release said. `kinds` counts cases by what they were about, `outcomes` by what NCCL was to do."""

    release: str
    cases: int = 0
    worlds: int = 0
    disagreeing: int = 0
    differences: list[Difference] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def add(self, case: Case, world: World, addresses: Sequence[Address], answer: dict[str, object]) -> None:
        """Count one answer."""
        version = parse_version(self.release)
        found = judge(case, world, addresses, answer, version)
        self.cases += 1
        self.disagreeing += bool(found)
        self.differences += found
        settings = effective(case, version)
        self.kinds["chosen" if ":" in predict(settings, world, addresses, version) else "refused"] += 1
        self.kinds["with NCCL_SOCKET_IFNAME"] += settings.get("NCCL_SOCKET_IFNAME") is not None
        self.kinds["with NCCL_COMM_ID"] += settings.get("NCCL_COMM_ID") is not None
        self.kinds["with files"] += bool(case.files)


def plan(worlds_count: int, cases_each: int) -> list[tuple[World, list[Case]]]:
    """The same networks, each with cases of its own, at every run and for every release."""
    every = drawn(cases(), worlds_count * cases_each)
    each = len(every) // worlds_count
    networks = drawn(worlds(), worlds_count)
    return [(world, every[i * each : (i + 1) * each]) for i, world in enumerate(networks)]


def ask(release: str, library: Path, planned: Sequence[tuple[World, list[Case]]], workers: int) -> Tally:
    """Ask `release` everything. A server that fails is in `broken`, and its cases are not counted."""
    tally = Tally(release)

    def one(item: tuple[World, list[Case]]) -> tuple[World, list[Case], str]:
        return *item, _served(library, *item)

    with ThreadPoolExecutor(workers) as pool:
        for world, asked, text in pool.map(one, planned):
            if not text.startswith("{"):
                tally.broken.append(text)
                continue
            answer = json.loads(text)
            addresses = [Address(**row) for row in answer["addresses"]]
            tally.worlds += 1
            for case, said in zip(asked, answer["answers"], strict=True):
                tally.add(case, world, addresses, said)
    return tally


def _served(library: Path, world: World, asked: Sequence[Case]) -> str:
    """The server's JSON, or the last words of one that failed."""
    request = {
        "library": str(library),
        "lo": world.lo,
        "links": [asdict(link) for link in world.links],
        "cases": [{"env": case.env, "files": case.files} for case in asked],
    }
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, SERVER], stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(json.dumps(request), timeout=WORLD_DEADLINE_S)
    except subprocess.TimeoutExpired:
        err = f"no answer in {WORLD_DEADLINE_S} s"
        out = ""
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return out if process.returncode == 0 else f"server: {err.strip()[-300:]}"
