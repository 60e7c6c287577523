"""Texts and bytes that readers take: what scripts/fuzz.py spoils. From captures, from tests, and made here."""

import ast
import json
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from ncclprobe.checks.run.rows import ROW
from ncclprobe.expect import baselines
from ncclprobe.model.measurement import Measurement, TimeStats
from ncclprobe.model.values import replace
from ncclprobe.nccl_tests import Run
from ncclprobe.report import json as as_json

CAPTURES = ROOT / "tests" / "captures"
LISTENER = {"role": "nccl", "interface": "eth0", "address": "10.0.0.2", "port": 4000}
CALL = {"to": 1, "role": "nccl", "address": "10.0.0.2", "port": 4000}
MESSAGES = (
    {"hello": {"id": "ab" * 8, "node_rank": 1, "name": "n1", "listeners": [LISTENER]}},
    {"capture": '{"capture": 1}\n', "more": True},
    {"plan": {"me": 0, "names": {"1": "n1"}, "calls": [CALL], "rates": [CALL]}, "seconds": 5.0},
    {"samples": {"paths": {"tried": [{"to": 1, "outcome": "ok"}]}, "clock": {"offset_s": 0.1}}},
    {"leave": {"exit_code": 0, "line": "n1 passes"}},
)
LAUNCHES = (
    {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1",
     "MASTER_PORT": "29500", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "7", "TORCHELASTIC_USE_AGENT_STORE": "True"},
    {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
     "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "n[0-1]"},
    {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
    {"PET_NNODES": "2:2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "8", "PET_RDZV_ENDPOINT": "h:29400", "RANK": "0",
     "WORLD_SIZE": "2", "MASTER_ADDR": "m", "MASTER_PORT": "1"},
)  # fmt: skip
MACHINES = (
    "8 x L40S, 2 sockets, no P2P",
    "2 x H200",
    "8 x H200, 2 sockets, 8 NICs x 400 Gb/s ib",
    "8 x H200, 8 NICs x 200 Gb/s roce",
    "4 x H200, 1 sockets, 4 NICs x 100 Gb/s roce",
)
BANDS = """[[expect]]
op = "all_reduce"
min_bytes = "1M"
max_bytes = "1G"
busbw_GBps = 360.0
tolerance = 0.1
source = "acceptance test"
why = "median of 20 nodes"
"""
IGNORES = """[[ignore]]
check = "ib.state"
subject = "mlx5_9:1"
reason = "storage port"
"""


def literals(*names: str) -> Callable[[], Sequence[str]]:
    """Return the longer literal texts of test modules: they were seen on real machines."""

    def found() -> list[str]:
        trees = [ast.parse((ROOT / "tests" / name).read_text()) for name in names]
        nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        texts = [node.value for node in nodes if isinstance(node.value, str) and len(node.value) > 60]
        return texts or ["x"]

    return found


def captured(*kinds: tuple[str, ...]) -> Callable[[], Sequence[str]]:
    """Return the answers to questions that begin with one of `kinds`, in all captures."""

    def found() -> list[str]:
        rows = [json.loads(line) for path in sorted(CAPTURES.glob("*.jsonl")) for line in path.read_text().splitlines()]
        said = [(tuple(row.get("ask", ())), row["said"]) for row in rows if isinstance(row.get("said"), str)]
        return list(dict.fromkeys(text for ask, text in said for kind in kinds if ask[: len(kind)] == kind))

    return found


@cache
def report_text() -> str:
    """Return a report with something in nearly every part."""
    from report.html.made import FULL

    return as_json.render(FULL)


@cache
def rows() -> list[Measurement]:
    """Return rows whose time, size and bandwidths fit each other."""
    sizes = [1 << 20, 1 << 24, 1 << 28]
    return [
        replace(
            ROW,
            nbytes=n,
            count=n // 4,
            ranks=8,
            nodes=1,
            time_us=TimeStats(n / 1e5),
            algbw_GBps=100.0,
            busbw_GBps=175.0,
        )
        for n in sizes
    ]


@cache
def tables() -> tuple[str, str]:
    """Return rows as nccl-tests writes them, as text and as JSON."""
    folder = ROOT / "tests" / "data" / "nccl_tests"
    text, json_ = ((folder / f"all_reduce.{end}").read_text(encoding="utf-8") for end in ("txt", "json"))
    return text, json_


def libraries() -> list[bytes]:
    """Return two small libraries: this interpreter's own modules, or itself."""
    folder = Path(json.__file__).parents[1] / "lib-dynload"
    found = sorted(folder.glob("*.so"), key=lambda path: path.stat().st_size)[:2] or [Path(sys.executable)]
    return [path.read_bytes()[: 256 << 10] for path in found]


def cache_file() -> bytes:
    """Return a loader's cache as glibc writes it, of two libraries."""
    from test_elf import cache

    return cache((b"libnccl.so.2", b"/usr/lib/libnccl.so.2"), (b"libc.so.6", b"/usr/lib/libc.so.6"))


def flights() -> list[bytes]:
    """Return a flight recorder's dump as JSON and as pickle, in the shape that torch writes."""
    from tests.facts.made_up_records import ENTRY, whole

    found = whole("2.4", entries=[ENTRY] * 3)
    return [json.dumps(found).encode(), pickle.dumps(found, 2)]


def baseline() -> str:
    kept = baselines.keep([Run(name, "", tuple(rows())) for name in "ab"], accept_low=True)
    origins = [baselines.Origin("a", "")]
    return baselines.render(baselines.Site("0.1.0", "2026-11-22", baselines.Print(), origins, list(kept.rows)))
