"""Stage 7. NCCL's rules under real init: what it chose, said or refused in generated environments, and what we say."""

import json
import os
import random
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_stages import machine
from gpu_stages.steps import Context, Outcome, Refused, StepLog

REPLACED = ("a libnccl of scripts/oracle.py's cache in place of torch's: it is asked as far as it needs no GPU",)
NOT_RUN = (
    "ncclCommInitRank: what NCCL makes of NCCL_ALGO, NCCL_PROTO, NCCL_NET and numbers that only init reads",
    "the interfaces of NET/Socket, which only init lists",
)
WORLDS, CASES_EACH = 25, 8
_DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")
EXTRAS: dict[str, tuple[str, ...]] = {
    "NCCL_ALGO": ("Ring", "Tree", "^Ring", "ring,tree", "allreduce:tree;broadcast:ring", "NVLS", "Rnig", "^Ring,Tree"),
    "NCCL_PROTO": ("LL", "Simple", "^LL128", "LL,Simple", "simple", "LL256"),
    "NCCL_NET": ("Socket", "socket", "IB", "nosuch"),
    "NCCL_BUFFSIZE": ("4194304", "4M", "0x100000", "-1", "1e6", "0"),
    "NCCL_NTHREADS": ("128", "512", "1024", "100", "abc"),
    "NCCL_MIN_NCHANNELS": ("1", "4", "64", "-2"),
    "NCCL_MAX_NCHANNELS": ("1", "2", "0"),
    "NCCL_SHM_DISABLE": ("0", "1", "true"),
    "NCCL_P2P_DISABLE": ("0", "1", "yes"),
    "NCCL_NSOCKS_PERTHREAD": ("1", "8", "99"),
    "NCCL_SOCKET_NTHREADS": ("1", "4", "17"),
    "NCCL_CUMEM_ENABLE": ("0", "1"),
}
"""Values as people write them, wrong ones among them; each case gets up to three."""
_WORDS = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NET")
_ALWAYS = {"NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,BOOTSTRAP,GRAPH,TUNING", "NCCL_HOSTID": "hour-0"}
_ONE_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


@dataclass(frozen=True, slots=True)
class Asked:
    """One network and its cases; `isolated`: it was made for them, else it is the machine's."""

    world: Any
    cases: Sequence[Any]
    isolated: bool


def run_steps(context: Context, log: StepLog) -> None:
    """Ask and compare."""
    log.run("library", _library)
    log.run("cases", _cases, least_s=60.0)


def _library(context: Context, folder: Path) -> Outcome:
    """Which libnccl is asked."""
    path = _cached() if context.rehearse else machine.libraries(context, folder / "library.log")["libnccl"]
    (folder / "path").write_text(str(path))
    return Outcome({"library": f"{path.parent.name}/{path.name}"})


def _cached() -> Path:
    from oracle_wheels import CACHE, cached

    found = cached(Path(os.environ.get("NCCLPROBE_ORACLE") or CACHE))
    if not found:
        raise Refused("scripts/oracle.py has no libnccl in its cache")
    return max(found.items(), key=lambda item: [int(part) for part in item[0].split(".")])[1]


def _cases(context: Context, folder: Path) -> Outcome:
    path = folder.parent / "library" / "path"
    if not path.exists():
        raise Refused("there is no libnccl to ask")
    asked = planned(not context.rehearse, WORLDS)
    workers = min(8, os.cpu_count() or 1)
    counts: Counter[str] = Counter()
    differences: list[str] = []
    of_gpu = {"driver": () if context.rehearse else _DRIVER, "init": not context.rehearse}
    from oracle_ask import served

    def ask(each: Asked) -> tuple[list[str], str]:
        return served(path.read_text(), each.world, each.cases, isolate=each.isolated, **of_gpu)

    with ThreadPoolExecutor(workers) as pool, (folder / "answers.jsonl").open("w") as stream:
        for each, (lines, errors) in zip(asked, pool.map(ask, asked), strict=True):
            if errors.strip():
                with (folder / "errors.txt").open("a") as said:
                    said.write(errors[-2000:])
            for row in compared(each, lines):
                stream.write(json.dumps(row) + "\n")
                counts.update(
                    ("cases",), init=row["init"] == 0, refused=bool(row["refused"]), differ=bool(row["differences"])
                )
                differences += row["differences"]
        counts["not answered"] = sum(len(each.cases) for each in asked) - counts["cases"]
    problems = [f"{counts['not answered']} cases were not answered"] if counts["not answered"] else []
    return Outcome({"networks": len(asked), **counts, "isolated": asked[0].isolated}, (*problems, *differences[:20]))


def planned(extras: bool, worlds: int) -> list[Asked]:
    """The same cases at every run: in networks made for them where that is allowed, else in the machine's own.

    There files are not laid, and a name in NCCL_COMM_ID is not ours to resolve.
    """
    try:
        from oracle_ask import plan
        from oracle_cases import Case, World
    except ImportError as error:
        raise Refused(f"cases cannot be generated: {error}") from error
    isolated, draw, found = may_isolate(), random.Random(7), []
    for world, cases in plan(worlds, CASES_EACH if isolated else 4 * CASES_EACH):
        kept = [case for case in cases if isolated or not (case.files or "NCCL_COMM_ID" in case.variables)]
        full = [
            Case({**_ALWAYS, **case.variables, **(more(draw) if extras else {})}, case.files)
            for case in kept[:CASES_EACH]
        ]
        found.append(Asked(world if isolated else World(()), full, isolated))
    return found


def may_isolate() -> bool:
    """Whether networks and an /etc of their own can be made here."""
    from oracle import impossible

    return (
        impossible() is None
        and shutil.which("unshare") is not None
        and subprocess.run(["unshare", "--net", "--mount", "true"], check=False).returncode == 0
    )


def more(draw: random.Random) -> dict[str, str]:
    """Up to three of the variables that only init reads."""
    names = draw.sample(sorted(EXTRAS), draw.randrange(4))
    return {**_ONE_GPU, **{name: draw.choice(EXTRAS[name]) for name in names}}


def compared(asked: Asked, lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Each case with what NCCL did and where we differ."""
    if not lines:
        return
    from oracle_ask import network_of

    network = Network(*network_of(lines[0]))
    for case, line in zip(asked.cases, lines[1:], strict=False):
        answers = json.loads(line)
        first = answers[0]
        differences = [*network.of_id(case, asked.world, first)]
        differences += network.of_init(case, first) if first["init"] is not None else []
        refused = [result for result in (first["id"], first["init"]) if isinstance(result, str)]
        yield {"variables": case.variables, "files": case.files, "init": first["init"], "refused": refused,
               "differences": differences, "logs": [answer["log"] for answer in answers]}  # fmt: skip


class Network:
    """The interfaces that a server has, and what NCCL of a version does there by our rules."""

    def __init__(self, version: tuple[int, int, int], interfaces: Any) -> None:
        self._version, self._interfaces = version, interfaces

    def of_id(self, case: Any, world: Any, answer: dict[str, Any]) -> Iterator[str]:
        """Where the id's making differs: interface or refusal, configuration files, echoes, a number."""
        from oracle_judge import judge

        said = {**answer, "log": "\n".join(_without_extras(answer["log"]))}
        yield from map(str, judge(case, world, self._interfaces.addresses, said, self._version))

    def of_init(self, case: Any, answer: dict[str, Any]) -> Iterator[str]:
        """Where init differs, in what only it reads and in the interfaces that carry data."""
        log, went_well, variables = answer["log"], answer["init"] == 0, case.variables
        for name, error in self._refusals(variables):
            if went_well:
                yield f"{name}={variables[name]}: we say that NCCL refuses it ({error}), and it does not"
        for name in sorted(EXTRAS.keys() - set(_WORDS)):
            if name in variables and (differs := _number(name, variables[name], log)):
                yield differs
        said, ours = [device.name for device in _read(log).interfaces], self._sockets(case)
        unlabelled = [name.partition(":")[0] for name in ours or ()]  # as our reader of logs has them
        if went_well and ours is not None and said and said != unlabelled:
            yield f"NET/Socket uses {said}, we say {ours}; {variables}"

    def _refusals(self, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        from ncclprobe.nccl.algorithms import ALGORITHMS, PROTOCOLS, parse_pin

        for name, words in (("NCCL_ALGO", ALGORITHMS), ("NCCL_PROTO", PROTOCOLS)):
            if error := parse_pin(variables.get(name, ""), words, self._version).error:
                yield name, error

    def _sockets(self, case: Any) -> list[str] | None:
        """The interfaces of NET/Socket in the report's `choices`; None where it does not tell."""
        from oracle_judge import effective

        from ncclprobe.facts.interfaces import Interfaces
        from ncclprobe.facts.nccl_conf import Settings
        from ncclprobe.facts.software import NcclLibrary, Software
        from ncclprobe.model.snapshot import Snapshot
        from ncclprobe.nccl.selection import choose

        software = Software({}, nccl=(NcclLibrary(self._version, "loaded"),))
        facts: dict[type, Any] = {
            Interfaces: self._interfaces,
            Settings: effective(case, self._version),
            Software: software,
        }
        chosen = choose(Snapshot("here", facts)).sockets.chosen
        return None if chosen is None else [each.name for each in chosen]


def _without_extras(log: str) -> Iterator[str]:
    """The lines that are not about variables which only init reads: scripts/oracle_judge.py knows none of them."""
    yield from (line for line in log.splitlines() if not any(f"{name} set by" in line for name in (*EXTRAS, *_ONE_GPU)))


def _number(name: str, text: str, log: str) -> str:
    """How NCCL reads a number, by its own echo; empty where we agree or it says nothing."""
    from ncclprobe.nccl.values import read_int

    echoed = re.search(rf"{name} set by environment to (-?\d+)\.", log)
    reading = read_int(text, 0)
    if echoed and reading.note != "overflow" and int(echoed[1]) != reading.value:
        return f"{name}={text}: NCCL reads {echoed[1]}, we {reading.value}"
    return ""


def _read(log: str) -> Any:
    from ncclprobe.nccl.log import read

    return read(log)
