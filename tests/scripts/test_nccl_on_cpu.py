"""NVIDIA's own NCCL, and torch's CUDA build above it, on a processor; and how their sources are made ready for one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts")]

from gpu_stages import processes
from gpu_stages.machine import free_port
from on_cpu import build, calls, cuda_12, device_sources, machine, torch_env

TAG = build.RELEASES[0]
FAST = {"NCCL_NTHREADS": "64", "NCCL_MAX_NCHANNELS": "2", "NCCL_SOCKET_IFNAME": "lo"}
JOB = ("-m", "ncclprobe.bandwidth", "--backend", "nccl", "-b", "8", "-e", "64K", "-f", "64", "-n", "3", "-w", "1")


def built(tag: str) -> Path:
    """The libraries, where they were built from the sources as they are now: minutes, which no test spends."""
    found = build.cached(tag)
    if not found:
        pytest.skip(f"NCCL {tag} is not built for a processor: scripts/nccl_on_cpu.py --source CLONE, in some minutes")
    return found / "lib"


@pytest.fixture(scope="module")
def lib() -> Path:
    """The release that torch runs above."""
    return built(TAG)


@pytest.fixture(scope="module")
def python(lib: Path) -> Path:
    """torch's environment above them."""
    found = torch_env.cached(TAG)
    if not found:
        pytest.skip("torch is not there for it: scripts/torch_on_cpu.py makes its environment, of 5 GB")
    if problem := machine.impossible():
        pytest.skip(problem)
    return found


def ranks(command: list[str], count: int, env: dict[str, str], folder: Path, deadline_s: float) -> list[processes.End]:
    """Start the ranks of a job by hand, so that none ends the others."""
    meet = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [
        processes.start(command, folder / f"rank{n}.log", {**env, **meet, "RANK": str(n), "LOCAL_RANK": str(n)})
        for n in range(count)
    ]
    return processes.wait(started, deadline_s)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["P2P", "SHM"])
@pytest.mark.parametrize("tag", build.RELEASES)
def test_nccl_moves_the_right_data(tag: str, tmp_path: Path, transport: str) -> None:
    env = {**os.environ, **FAST, **machine.variables(built(tag), tmp_path, 4), "NCCL_DEBUG": "INFO"}
    env |= {"NCCL_P2P_DISABLE": "1"} if transport == "SHM" else {}
    names = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "sendrecv"]
    operations = [f"{name}:3000" for name in names]
    command = [sys.executable, str(build.SOURCES / "rank.py"), str(tmp_path / "id"), *operations]
    for end in ranks(command, 3, env, tmp_path, 60.0):
        assert end.code == 0, end.text
        assert end.text.count(": 0 wrong of ") == len(operations)
        assert f"via {transport}" in end.text


def measured(python: Path, lib: Path, folder: Path, **extra: str) -> tuple[list[processes.End], dict[str, object]]:
    """Two ranks of `bandwidth`, and the report that they leave."""
    shown = machine.variables(lib, folder, 2)
    env = {**os.environ, **FAST, **shown, "PATH": f"{python / 'bin'}:{os.environ['PATH']}", **extra}
    report = folder / "report.json"
    command = machine.inside(["python", *JOB, "--json", report, "--timeout", "240"])
    return ranks(command, 2, env, folder, 260.0), json.loads(report.read_text())


@pytest.mark.slow
def test_bandwidth_runs_to_its_end_with_torch_and_nccl(python: Path, lib: Path, tmp_path: Path) -> None:
    calls_of, events = tmp_path / "calls", tmp_path / "events"
    ends, report = measured(python, lib, tmp_path, FAKE_CUDA_TRACE=str(calls_of), FAKE_NVML_EVENTS=str(events))
    rows = report["measurements"]
    assert isinstance(rows, list)
    assert rows, ends[0].text
    assert {(row["backend"], row["wrong"], row["transport"]["network"]) for row in rows} == {("nccl", 0, "P2P CUMEM")}
    assert {end.code for end in ends} <= {0, 3}
    assert [each["status"] for each in report["checks"] if each["id"] == "run.xids"] == ["pass"]
    traces = [(tmp_path / f"calls.{rank}").read_text().splitlines() for rank in range(2)]
    assert [calls.wrong_order(lines) for lines in traces] == [[], []]
    assert all(("AllReduce", 8, True) in calls.layouts(lines) for lines in traces)


@pytest.mark.slow
def test_a_rank_whose_gpu_fails_is_named_and_the_report_is_written(python: Path, lib: Path, tmp_path: Path) -> None:
    fault = {"FAKE_CUDA_FAULT": "700@12", "FAKE_CUDA_FAULT_RANK": "1", "FAKE_NVML_EVENTS": str(tmp_path / "events")}
    ends, report = measured(python, lib, tmp_path, **fault)
    assert [end.code for end in ends] == [4, 4]
    said = json.dumps(report["checks"])
    assert "rank 1" in said
    assert "illegal memory access" in said
    assert "NVML told Xid 31 of GPU1" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asm", "plain"),
    [
        ('"barrier.sync.aligned %0, %1;" ::"r"(name), "r"(n) : "memory"', "simt_barrier((name), (n));"),
        ('"ld.v2.u64 {%0,%1},[%2];" : "=l"(a), "=l"(b) : "l"(p + 8)', "simt_load2((p + 8), (a), (b));"),
        ('"st.volatile.v2.u64 [%2], {%0,%1};" ::"l"(a), "l"(b), "l"(p)', "simt_store2((p), (a), (b));"),
        ('"ld.volatile." #space "." #ty " %0, [%1];" : "=" #reg(x) : #at(p)', "(x) = simt_load<bytes>((p));"),
        ('"st.shared.b16 [%0],%1;" ::"r"(p), "h"(f(x, y))', "simt_store<2>((p), (f(x, y)));"),
        ('"mov.u64 %0, %%globaltimer;" : "=l"(t)', "(t) = simt_time();"),
        ('"multimem.st.v4 [%0], %1;" ::"l"(p), "r"(x)', "__builtin_trap();"),
    ],
)
def test_ptx_becomes_a_call(asm: str, plain: str) -> None:
    assert device_sources.translate(asm) == plain


@pytest.mark.slow
@pytest.mark.parametrize(
    "begin",
    [
        "  inline __device__ bool checkAbort(int &spins) {\n",
        "  inline __device__ int checkAbort(int &spins, int i, int send) {\n",
        "__device__ inline int checkAbort(int &abortCache, const int abortValue, int &spins) {\n",
    ],
)
def test_a_thread_that_polls_lets_others_go_on_in_every_release(begin: str) -> None:
    """2.23 to 2.25 have one for each protocol, each in its own header."""
    assert device_sources.adapt("prims_ll.h", begin) == f"{begin}  simt_yield();\n"


@pytest.mark.slow
def test_types_of_the_driver_get_the_release_that_nccl_2_23_means() -> None:
    """cuCtxCreate had 3 arguments, since CUDA 11.4 has 5, and since 12.5 4 again."""
    text = "typedef CUresult (CUDAAPI *PFN_cuCtxCreate_v{})(CUcontext *pctx);\n"
    names = build.driver_names("".join(text.format(version) for version in (3020, 11040, 12050)))
    assert names == "#define PFN_cuCtxCreate PFN_cuCtxCreate_v11040\n"


@pytest.mark.slow
def test_unknown_ptx_is_an_error_and_never_nothing() -> None:
    with pytest.raises(ValueError, match="unknown PTX: shfl"):
        device_sources.rewrite('int x; asm volatile("shfl.sync.idx.b32 %0, %1;" : "=r"(x) : "r"(y)); x++;')


@pytest.mark.slow
def test_what_is_not_here_refuses_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "refusals.S").write_text(build.refusals(["cudaNoSuchThing"]))
    (tmp_path / "main.c").write_text(
        "#include <stdio.h>\nint cudaNoSuchThing(void);\nvoid fake_cuda_refuses(const char *n) { puts(n); }\n"
        "int main(void) { return cudaNoSuchThing() != 801; }\n"
    )
    program = tmp_path / "program"
    files = [tmp_path / "main.c", tmp_path / "refusals.S"]
    subprocess.run(["gcc", *files, "-o", program], check=True, timeout=60)
    done = subprocess.run([program], check=True, capture_output=True, text=True, timeout=10)
    assert done.stdout == "cudaNoSuchThing\n"


@pytest.mark.slow
def test_a_call_of_cuda_12_goes_on_to_cuda_13_with_its_arguments_or_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "forwards.S").write_text(cuda_12.forwards(["cudaAdd", "cudaNoSuchThing"]))
    (tmp_path / "main.c").write_text(
        "#include <stdio.h>\nint cudaAdd(int, int), cudaNoSuchThing(int);\n"
        "extern const char *const forwarded_names[];\n"
        "extern void *forwarded[];\nvoid cuda_12_absent(void);\nstatic int add(int a, int b) { return a + b; }\n"
        "int cuda_12_refuses(const char *name) { puts(name); return 801; }\n"
        "int main(void) { forwarded[0] = add, forwarded[1] = cuda_12_absent; puts(forwarded_names[0]);\n"
        'printf("%d\\n", cudaAdd(3, 4)); return cudaNoSuchThing(1) != 801 || forwarded_names[2]; }\n'
    )
    program = tmp_path / "program"
    files = [tmp_path / "main.c", tmp_path / "forwards.S"]
    subprocess.run(["gcc", *files, "-o", program], check=True, timeout=60)
    done = subprocess.run([program], check=True, capture_output=True, text=True, timeout=10)
    assert done.stdout == "cudaAdd\n7\ncudaNoSuchThing\n"


@pytest.mark.slow
def test_names_of_cuda_12_are_read_with_and_without_a_version_of_their_own() -> None:
    table = (
        "  9: 0000000000045aa0   100 FUNC    GLOBAL DEFAULT   12 cudaFree@@libcudart.so.12\n 10: 0 0 x malloc@GLIBC_2\n"
    )
    assert cuda_12.exported(table) == {"cudaFree"}


@pytest.mark.slow
def test_the_topology_that_nccl_gets_has_the_gpus_that_nvml_shows(tmp_path: Path) -> None:
    shown = machine.variables(tmp_path, tmp_path, 4)
    text = Path(shown["NCCL_TOPO_FILE"]).read_text()
    assert [text.count(f'busid="{bus}"') for bus in shown["FAKE_NVML_BUS"].split(",")] == [1] * 4
    assert text.count("<gpu ") == 4


def test_a_source_that_is_none_is_refused_with_what_it_may_be(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "nccl_on_cpu.py"), "--source", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.splitlines()[-1].count("name a tree, an archive or a clone")) == (2, 1)
