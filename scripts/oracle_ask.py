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

import msgspec
from oracle_cases import Case, World, cases, drawn, worlds
from oracle_judge import Difference, effective, judge, predict

from ncclprobe.facts.interfaces import Address, Interfaces
from ncclprobe.facts.software import Version, parse_version
from ncclprobe.model.values import Struct, asdict, field

SERVER = Path(__file__).resolve().parent / "oracle_server.py"
SERVER_S = 240.0


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
    with ThreadPoolExecutor(workers) as pool:
        answers = pool.map(lambda each: served(str(library), *each, isolate=True), planned)
        for (world, asked), (lines, errors) in zip(planned, answers, strict=True):
            if len(lines) <= len(asked):
                tally.broken.append(f"server: {errors.strip()[-300:]}")
                continue
            _, network = network_of(lines[0])
            tally.worlds += 1
            for case, line in zip(asked, lines[1:], strict=True):
                tally.add(case, world, network.addresses, json.loads(line)[0])
    return tally


def network_of(line: str) -> tuple[Version, Interfaces]:
    """The release that a server says it has, and the interfaces that it sees."""
    number, _, text = line.partition(" ")
    version = int(number) // 10000, int(number) % 10000 // 100, int(number) % 100
    return version, msgspec.json.decode(text, type=Interfaces)


def served(library: str, world: World, asked: Sequence[Case], **more: object) -> tuple[list[str], str]:
    """The lines that scripts/oracle_server.py wrote, as far as it got, and its last words. `more` is of its request."""
    request = {"library": library, "driver": (), "init": False, "lo": world.lo, **more}
    request["links"] = [asdict(link) for link in world.links]
    request["cases"] = [{"env": case.env, "files": case.files} for case in asked]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, SERVER], stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        return _lines(*process.communicate(json.dumps(request), timeout=SERVER_S))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, errors = process.communicate(timeout=5.0)
        return _lines(out, f"{errors} no answer in {SERVER_S:g} s")


def _lines(out: str, errors: str) -> tuple[list[str], str]:
    return out.splitlines(), errors
