"""What the stages of the hour on a GPU ask NCCL itself, of a stand-in for its library."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.each_row import each_row

SCRIPTS = Path(__file__).parents[2] / "scripts"
PYTHON_PATH = {**os.environ, "PYTHONPATH": f"{SCRIPTS.parent}:{SCRIPTS}"}


@pytest.fixture(autouse=True, scope="module")
def _scripts() -> Iterator[None]:
    """The scripts' folder on the path, as the scripts have it."""
    sys.path.insert(0, str(SCRIPTS))
    yield
    sys.path.remove(str(SCRIPTS))


def stages(name: str) -> ModuleType:
    return importlib.import_module(f"gpu_stages.{name}")


@pytest.fixture(scope="module")
def nccl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libnccl."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed: the stand-in for libnccl.so.2 cannot be built")
    folder = tmp_path_factory.mktemp("standins")
    stages("standins").build(SCRIPTS.parent, folder)
    path: Path = folder / "nccl" / "libnccl.so.2"
    return path


def test_estimates_are_asked_with_the_sizes_that_nccl_tests_prints(nccl: Path) -> None:
    calls = stages("nccl_calls")
    library = calls.Nccl(nccl)
    assert library.version() == 22907
    comm = library.communicator(library.unique_id(), 0, 4)
    times = {op: library.estimate_us(op, 4_000_000, 4, comm, 4096) for op in calls.OPS}
    assert times == dict.fromkeys(calls.OPS, 410.0)  # 10 us and one for each 10,000 bytes
    library.abort(comm)


@each_row(("network", "strange"), [("Socket lo", 0), ("Socket", 0), ("P2P CUMEM", 1), (None, 1)])
def test_ranks_of_one_gpu_have_sockets_over_whatever_interface(network: str | None, strange: int) -> None:
    row = {"op": "all_reduce", "place": "in", "wrong": 0, "transport": {"network": network}}
    said = [line for line in stages("running")._wrong_rows([row], False) if "transport detection" in line]
    assert len(said) == strange


def test_what_nccl_refuses_is_said_with_its_code(nccl: Path) -> None:
    calls = stages("nccl_calls")
    library = calls.Nccl(nccl)
    with pytest.raises(calls.NcclError, match="ncclCommInitRank returned 4"):
        library.communicator(b"\0" * 128, 0, 1)


def test_a_case_is_asked_as_two_ranks_in_processes_of_their_own(nccl: Path) -> None:
    script = (
        "import sys, json\nfrom pathlib import Path\nfrom gpu_stages.nccl_calls import Nccl\n"
        "from oracle_server import ask\n"
        "print(json.dumps(ask(Nccl(Path(sys.argv[1])), {'NCCL_XA': '1'}, {}, 2)))"
    )
    command = [sys.executable, "-c", script, str(nccl)]
    done = subprocess.run(command, env=PYTHON_PATH, capture_output=True, text=True, timeout=60, check=True)
    first, second = json.loads(done.stdout)
    assert (first["id"], first["init"], second["id"], second["init"]) == (0, 0, None, 0)
    assert first["environ"] == {"NCCL_XA": "1"}
    assert "rank 1 nranks 2 - Init COMPLETE" in second["log"]


def test_the_model_is_compared_where_both_say_something() -> None:
    of = stages("estimate_model")
    model = of.Model(stages("estimates")._RECORDED, of.here(rehearse=True), 2, 22907)
    ours = model.cost("all_reduce", 1 << 20).time_us
    rows = of.compared_calls([("all_reduce", 1 << 20, ours), ("all_reduce", 8, -1.0), ("sendrecv", 8, 3.0)], model)
    assert [(row["op"], row["ratio"]) for row in rows] == [("all_reduce", 1.0)]
    assert list(of.differing_ops({"all_reduce": [1.0, 1.01]})) == []
    assert list(of.differing_ops({"reduce": [1.0, 1.5]})) == [
        "reduce: 1 of 2 sizes differ, ours up to 1.50 times NCCL's"
    ]


TABLE = """vm:1:1 [0] NCCL INFO   Algorithm   |                            Tree                  |                            Ring                  |
vm:1:1 [0] NCCL INFO   Protocol    |             LL |          LL128 |         Simple |             LL |          LL128 |         Simple |
vm:1:1 [0] NCCL INFO     AllReduce |    16.8/   0.5 |    31.0/   0.0 |    36.4/   1.9 |    16.6/   1.2 |    31.0/   0.0 |    36.4/   2.4 |
vm:1:1 [0] NCCL INFO   Algorithm   |                             PAT                  |
vm:1:1 [0] NCCL INFO     AllGather |     0.0/   0.0 |     0.0/   0.0 |    15.1/   2.0 |
"""  # noqa: E501 - NCCL's tables are wide


def test_the_table_that_nccl_prints_is_read_by_its_own_heads() -> None:
    of = stages("estimate_model")
    cells = of.printed_cells(TABLE)
    assert len(cells) == 9
    assert cells["AllReduce", "Ring", "Simple"] == (36.4, 2.4)
    assert cells["AllGather", "PAT", "Simple"] == (15.1, 2.0)
    ours = {**cells, ("AllReduce", "Tree", "LL"): (16.84, 0.46), ("AllReduce", "Ring", "LL"): (16.6, 1.3)}
    assert list(of.differing_cells(cells, ours)) == ["AllReduce Ring LL: NCCL 16.6 us, 1.2 GB/s; ours 16.6, 1.3"]
    assert len(list(of.differing_cells(cells, {}))) == 5


def test_parity_is_judged_by_ratio_or_by_what_a_call_costs_more() -> None:
    parity = stages("parity")
    of = {8: ([6.0] * 5, [5.0] * 5), 64: ([130.0] * 5, [100.0] * 5), 512: ([100.9] * 5, [100.0] * 5)}
    problems = [
        parity.compared("all_reduce", nbytes, "in", parity.Times(*each))["problem"] for nbytes, each in of.items()
    ]
    assert problems == ["", "all_reduce of 64 B in place: 1.300 [1.300, 1.300], +30.00 us a call", ""]
