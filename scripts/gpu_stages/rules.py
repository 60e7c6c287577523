"""Stage 7. NCCL's rules under real init: what it chose, said or refused in generated environments, beside what we say."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_stages import machine
from gpu_stages.notebook import Hour, Notebook, Outcome, Refused

REPLACED = ("a libnccl of scripts/oracle.py's cache in place of torch's: it is asked as far as it needs no GPU",)
NOT_RUN = (
    "ncclCommInitRank: what NCCL makes of NCCL_ALGO, NCCL_PROTO, NCCL_NET and numbers that only init reads",
    "the interfaces of NET/Socket, which only init lists",
)
WORLDS, CASES_EACH = 25, 8
_SERVER_S = 120.0
_SYSTEMS = "INIT,ENV,NET,BOOTSTRAP,GRAPH,TUNING"
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


@dataclass(frozen=True, slots=True)
class Asked:
    """One network and its cases; `isolated`: it was made for them, else it is the machine's."""

    world: Any
    cases: Sequence[Any]
    isolated: bool


def play(hour: Hour, notebook: Notebook) -> None:
    """Ask and compare."""
    notebook.step("library", lambda folder: _library(hour, folder))
    notebook.step("cases", lambda folder: _cases(hour, notebook.folder, folder), least_s=60.0)


def _library(hour: Hour, folder: Path) -> Outcome:
    """Which libnccl is asked."""
    path = _cached() if hour.rehearse else machine.nccl_library(hour, folder / "library.log")
    (folder / "path").write_text(str(path))
    return Outcome({"library": f"{path.parent.name}/{path.name}"})


def _cached() -> Path:
    from oracle_wheels import CACHE, cached

    found = cached(Path(os.environ.get("NCCLPROBE_ORACLE") or CACHE))
    if not found:
        raise Refused("scripts/oracle.py has no libnccl in its cache")
    return max(found.items(), key=lambda item: [int(part) for part in item[0].split(".")])[1]


def _cases(hour: Hour, stage: Path, folder: Path) -> Outcome:
    path = stage / "library" / "path"
    if not path.exists():
        raise Refused("there is no libnccl to ask")
    asked, workers = planned(not hour.rehearse), min(8, os.cpu_count() or 1)
    counts: Counter[str] = Counter()
    unlike: list[str] = []
    with ThreadPoolExecutor(workers) as pool, (folder / "answers.jsonl").open("w") as stream:
        for each, lines in pool.map(lambda one: (one, served(hour, path.read_text(), one, folder)), asked):
            for row in compared(each, lines):
                stream.write(json.dumps(row) + "\n")
                counts.update(("cases",), init=row["init"] == 0, refused=bool(row["refused"]), differ=bool(row["unlike"]))
                unlike += row["unlike"]
        counts["not answered"] = sum(len(each.cases) for each in asked) - counts["cases"]
    problems = [f"{counts['not answered']} cases were not answered"] if counts["not answered"] else []
    return Outcome({"networks": len(asked), **counts, "isolated": asked[0].isolated}, (*problems, *unlike[:20]))


def planned(extras: bool) -> list[Asked]:
    """The same cases at every run: in networks made for them where that is allowed, else in the machine's own."""
    try:
        from oracle import impossible
        from oracle_ask import plan
        from oracle_cases import Case, World
    except ImportError as error:
        raise Refused(f"cases cannot be generated: {error}") from error
    isolated = impossible() is None and subprocess.run(["unshare", "--net", "--mount", "true"], check=False).returncode == 0
    draw, found = random.Random(7), []
    for world, cases in plan(WORLDS, CASES_EACH):
        kept = [case for case in cases if isolated or not case.files]
        full = [Case({**case.variables, **(more(draw) if extras else {})}, case.files) for case in kept]
        found.append(Asked(world if isolated else World(()), full, isolated))
    return found


def more(draw: random.Random) -> dict[str, str]:
    """Up to three of the variables that only init reads."""
    names = draw.sample(sorted(EXTRAS), draw.randrange(4))
    return {name: draw.choice(EXTRAS[name]) for name in names}


def served(hour: Hour, library: str, asked: Asked, folder: Path) -> list[dict[str, Any]]:
    """The server's answers, as far as it got."""
    request = {
        "library": library,
        "driver": () if hour.rehearse else _DRIVER,
        "init": not hour.rehearse,
        "isolate": asked.isolated,
        "lo": asked.world.lo,
        "links": [asdict(link) for link in asked.world.links],
        "cases": [{"env": {**case.env, "NCCL_DEBUG_SUBSYS": _SYSTEMS}, "files": case.files} for case in asked.cases],
    }
    command = [sys.executable, "-m", "gpu_stages.rules_server"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, env=hour.variables, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        out, errors = process.communicate(json.dumps(request), timeout=_SERVER_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate(timeout=5.0)
    if errors.strip():
        with (folder / "errors.txt").open("a") as stream:
            stream.write(errors[-2000:])
    return [json.loads(line) for line in out.splitlines() if line.endswith(("}", "]"))]


def compared(asked: Asked, lines: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Each case with what NCCL did and where we differ."""
    from oracle_judge import judge
    from ncclprobe.facts.interfaces import Address

    if not lines:
        return
    addresses = [Address(**row) for row in lines[0]["addresses"]]
    number = lines[0]["version"]
    version = (number // 10000, number % 10000 // 100, number % 100)
    for case, answers in zip(asked.cases, lines[1:], strict=False):
        first = answers[0]
        said = {**first, "rc": first["id"], "log": "\n".join(_without_extras(first["log"]))}
        unlike = [str(difference) for difference in judge(case, asked.world, addresses, said, version)]
        unlike += list(of_init(case.variables, addresses, first, version)) if first["init"] is not None else []
        refused = [text for text in (first["id"], first["init"]) if isinstance(text, str)]
        yield {"variables": case.variables, "files": case.files, "init": first["init"], "refused": refused,
               "unlike": unlike, "logs": [answer["log"] for answer in answers]}  # fmt: skip


def _without_extras(log: str) -> Iterator[str]:
    """The lines that are not about variables which only init reads: scripts/oracle_judge.py knows none of them."""
    yield from (line for line in log.splitlines() if not any(f"{name} set by" in line for name in EXTRAS))


def of_init(
    variables: dict[str, str], addresses: Sequence[Any], answer: dict[str, Any], version: tuple[int, int, int]
) -> Iterator[str]:
    """What init did with the variables that only it reads, where we say something else."""
    from ncclprobe.nccl.algorithms import ALGORITHMS, PROTOCOLS, parse_pin

    log, went_well = answer["log"], answer["init"] == 0
    for name, words in (("NCCL_ALGO", ALGORITHMS), ("NCCL_PROTO", PROTOCOLS)):
        error = parse_pin(variables.get(name, ""), words, version).error
        if error and went_well:
            yield f"{name}={variables[name]}: we say that NCCL refuses it ({error}), and it does not"
    for name in EXTRAS.keys() - set(_WORDS):
        if name in variables and (differs := _number(name, variables[name], log)):
            yield differs
    if went_well and (differs := _sockets(variables, addresses, log, version)):
        yield differs


def _number(name: str, text: str, log: str) -> str:
    """How NCCL reads a number, by its own echo; empty where we agree or it says nothing."""
    import re

    from ncclprobe.nccl.values import read_int

    echoed = re.search(rf"{name} set by environment to (-?\d+)\.", log)
    reading = read_int(text, 0)
    if echoed and reading.note != "overflow" and int(echoed[1]) != reading.value:
        return f"{name}={text}: NCCL reads {echoed[1]}, we {reading.value}"
    return ""


def _sockets(
    variables: dict[str, str], addresses: Sequence[Any], log: str, version: tuple[int, int, int]
) -> str:
    """Which interfaces carry data, by NET/Socket's own line."""
    from ncclprobe.nccl.interfaces import find_interfaces, forced_family
    from ncclprobe.nccl.lists import MAX_INTERFACES
    from ncclprobe.nccl.log import read

    said = [device.name for device in read(log).interfaces]
    chosen = find_interfaces(
        addresses,
        ifname=variables.get("NCCL_SOCKET_IFNAME", ""),
        family=forced_family(variables.get("NCCL_SOCKET_FAMILY", "")),
        limit=MAX_INTERFACES,
        version=version,
    ).interfaces
    ours = [each.name for each in chosen]
    return f"NET/Socket uses {said}, we say {ours}" if said and said != ours else ""
