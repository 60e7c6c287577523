"""What is learned of captured machines, and what the commands print of recorded input, without the wording.

A fact is kept by its fields; a long collection by its length, its first items and its last. A line of a report is kept
as its words with a digit or in capitals. `scripts/golden.py` writes them to tests/data/command_values; to add an input,
add it to a function of `COMMANDS`.
"""

import contextlib
import gzip
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from unittest import mock

from ncclprobe.commands import main
from ncclprobe.engine.collect import collect
from ncclprobe.host.capture import load
from ncclprobe.model.registry import Collector, discover
from ncclprobe.model.snapshot import Absent
from ncclprobe.model.values import Struct
from tests import recorded_jobs
from tests.checks.cases import written

TESTS = Path(__file__).parent
DATA, CAPTURES = TESTS / "data", TESTS / "captures"
KEPT = DATA / "command_values"
LEARNED = ("hgx-h100", "dgx-1v", "aws-p4d", "gb200-tray", "power9", "h100-vm", "guest-rxe-root", "one-gpu")
FIRST_ITEMS, LONG = 2, 60
EVERY_NTH_OF_NCCL = 40
EVERY_NTH_REPORT = 3
SICK = ("acs", "cpu-quota", "gid-link-local", "gpu-lost", "ib-down", "ib-half-rate", "nvlink-down", "pcie-narrow")
MACHINES = ("dgx-h100", "dgx-a100", "a3-megagpu-8g", "p5.48xlarge", "gb200-nvl72", "8 x L40S, 2 sockets, no P2P")
ALL_OPERATIONS = "all_reduce,all_gather,reduce_scatter,all_to_all,broadcast,reduce,gather,scatter,sendrecv"
_NOW = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S*|sha256-\S*")
_VALUE = re.compile(r"[A-Z]{4,}[A-Z_0-9=]*|[^\s,;()'\"<>|]*\d[^\s,;()'\"<>|]*")


def values(argv: list[str], folder: Path) -> Iterator[str]:
    """Yield the exit code of a command, and the values of each line that it prints.

    It runs beside its files and has short names for them: lines are wrapped, and a checkout may be anywhere.
    """
    out, beside = io.StringIO(), folder if any(str(folder) in word for word in argv) else TESTS
    clean = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    with (
        mock.patch.dict(os.environ, {**clean, "COLUMNS": "9999"}, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        working_in(beside),
    ):
        code = main([word.replace(f"{beside}/", "") for word in argv])
    yield f"exit {code}"
    for line in out.getvalue().splitlines():
        if words := _VALUE.findall(_NOW.sub("", line)):
            yield " ".join(words)


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Change the working directory for a while, as contextlib.chdir does since Python 3.11."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def text(file: str) -> str:
    """Return the values of all commands of one file; "facts": those of captured machines."""
    if file == "facts":
        return "".join(f"== {name}\n{''.join(_of_facts(CAPTURES / f'{name}.jsonl'))}" for name in LEARNED)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        commands = COMMANDS[file](folder)
        return "".join(f"{row}\n" for each, argv in commands for row in (f"== {each}", *values(argv, folder)))


def _of_facts(path: Path) -> Iterator[str]:
    host = load(path)
    for kind, fact in collect(host, discover("ncclprobe.facts", Collector, {"machine"})).items():
        for name, value in fields(fact, kind.__name__):
            yield f"{name} = {value}\n"


def fields(value: object, name: str) -> Iterator[tuple[str, str]]:
    """Yield the simple values of a fact with their names."""
    if isinstance(value, Absent):
        yield name, f"absent, {value.refused}"
    elif isinstance(value, Struct):
        for each in value.__struct_fields__:
            yield from fields(getattr(value, each), f"{name}.{each}")
    elif isinstance(value, Mapping):
        yield f"len({name})", str(len(value))
        for key in sorted(value, key=str)[:FIRST_ITEMS]:
            yield from fields(value[key], f"{name}[{key}]")
    elif isinstance(value, tuple | list | set | frozenset):
        yield f"len({name})", str(len(value))
        for number, each in enumerate(sorted(value) if isinstance(value, set | frozenset) else value):
            if number < FIRST_ITEMS or number == len(value) - 1:
                yield from fields(each, f"{name}[{number}]")
    else:
        yield name, str(value)[:LONG].replace("\n", " ")


def _of_jobs(folder: str) -> Iterator[tuple[str, list[str]]]:
    for job in sorted(DATA.glob(folder)):
        if logs := sorted(job.glob("*.gz")):
            yield job.name, ["explain", *map(str, logs)]


def _expect_nccl(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for release in sorted((DATA / "nccl_failures").glob("*.gz")):
        for name, row in list(recorded_jobs.read(release).items())[::EVERY_NTH_OF_NCCL]:
            path = folder / f"{release.name}-{re.sub('[^a-z0-9]+', '-', name)}.log"
            path.write_text("\n".join(row["logs"].values()))
            yield path.stem, ["explain", str(path)]


def _of_cases(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The last bad case of each check of logs as a whole log: which of all causes is named, and what to do."""
    for key, cases in written().items():
        if key.startswith("log.") and cases.bad and isinstance(text := cases.bad[-1][1], str):
            path = folder / f"{key.replace('/', '-')}.log"
            path.write_text(text)
            yield key, ["explain", str(path)]


def _of_captures(_: Path) -> Iterator[tuple[str, list[str]]]:
    sick = [str(CAPTURES / "sick" / f"{name}.jsonl") for name in SICK if (CAPTURES / "sick" / f"{name}.jsonl").exists()]
    for path in [str(CAPTURES / "hgx-h100.jsonl"), *sick]:
        yield Path(path).stem, ["doctor", path, "--no-config"]
    yield "apart", ["doctor", *sick, "--no-config"]
    yield "one job", ["doctor", *sick, "--one-job", "--no-config", "-v"]


def _of_attached(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for packed in sorted([*DATA.glob("attach-*.gz"), *DATA.glob("attach-init/*.gz"), *DATA.glob("on_cpu/attach-*.gz")]):
        path = folder / packed.stem
        path.write_bytes(gzip.decompress(packed.read_bytes()))
        yield packed.stem, ["explain", str(path)]
    yield "3 nodes", ["explain", *map(str, sorted((DATA / "attach-3-nodes").glob("*.jsonl")))]


def _of_reports(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for packed in sorted(DATA.glob("on_cpu/*/report.json.gz")):
        path = folder / f"{packed.parent.name}.json"
        path.write_bytes(gzip.decompress(packed.read_bytes()))
    for path in sorted(folder.glob("*.json"))[::EVERY_NTH_REPORT]:
        yield path.stem, ["report", str(path), "-v"]
    for form in ("--markdown", "--junit", "--prometheus", "--html"):
        yield form, ["report", str(folder / "pairs-2.json"), form, "-"]


def _of_machines(_: Path) -> Iterator[tuple[str, list[str]]]:
    for machine in MACHINES:
        for nodes in ("1", "4"):
            argv = ["expect", "--machine", machine, "--nodes", nodes, "--op", ALL_OPERATIONS, "-b", "1K", "-e", "1G"]
            yield f"{machine}, {nodes}", argv


def _of_matrices(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for capture in sorted(CAPTURES.glob("*.jsonl")):
        for row in map(json.loads, capture.read_text(encoding="utf-8").splitlines()):
            if row.get("ask", [])[:3] == ["run", "nvidia-smi", "topo"] and "said" in row:
                path = folder / f"{capture.stem}.txt"
                path.write_text(row["said"])
                yield capture.stem, ["topo", str(path)]


COMMANDS: Mapping[str, Callable[[Path], Iterator[tuple[str, list[str]]]]] = {
    "explain-desync": lambda _: _of_jobs("failures/desync-*"),
    "explain-silent": lambda _: _of_jobs("failures/[n-z]*"),
    "explain-others": lambda _: _of_jobs("failures/[!dn-z]*"),
    "explain-cuda": lambda _: _of_jobs("on_cpu/job-*"),
    "explain-nccl": _expect_nccl,
    "explain-cases": _of_cases,
    "doctor": _of_captures,
    "attach": _of_attached,
    "report": _of_reports,
    "expect": _of_machines,
    "topo": _of_matrices,
}
"""The commands of each file with what they look at; what is compressed is unpacked into a folder."""
FILES = (*COMMANDS, "facts")
