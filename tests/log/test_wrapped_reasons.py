"""A reason that wrappers, loggers and lines of other levels stand around, and healthy lines that look like it."""

from collections.abc import Mapping
from pathlib import Path

from ncclprobe.logs.job_log import LogEvent
from ncclprobe.logs.lines import layer_report
from tests.log.test_outcome import accused, explained, steps

RULE = "-" * 74
DAEMON = (
    f"{RULE}\nORTE was unable to reliably start one or more daemons.\nThis usually is caused by:\n\n"
    f"* not finding the required libraries\n{RULE}\n"
)
LOST = f"{RULE}\nORTE has lost communication with a remote daemon.\n{RULE}\n"

WHY: Mapping[str, tuple[str, str]] = {
    "ssh speaks before mpirun does": (f"kex_exchange_identification: read: Connection aborted\n{DAEMON}", "kex_exch"),
    "a host before ssh's own words": (
        f"n4: ssh_dispatch_run_fatal: Connection to 10.0.0.4 port 22: incorrect signature\n{DAEMON}",
        "incorrect signature",
    ),
    "a shell speaks before mpirun does": (f"bash: line 1: prted: command not found\n{DAEMON}", "prted"),
    "a worker's own words before what its server says of it": (
        "ERROR 06-11 10:12:44 [frob.py:23] ValueError: 12 heads are fewer than 16 ranks\n"
        "ERROR 06-11 10:12:45 [multiproc_executor.py:140] Worker proc W-3 died unexpectedly, shutting down.\n"
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n",
        "fewer than",
    ),
    "a logger writes each line of a traceback": (
        "2025-01-05 10:10:20 | INFO | run: train.py\n2025-01-05 10:10:21 | ERROR | Traceback (most recent call last):\n"
        '2025-01-05 10:10:21 | INFO |   File "zeta.py", line 40, in <module>\n'
        "2025-01-05 10:10:21 | INFO |     main(cfg)\n"
        "2025-01-05 10:10:21 | INFO | zeta.errors.TableIsTorn: row 7\n",
        "TableIsTorn",
    ),
    "a logger in JSON says why beside its message": (
        '{"level":"info","msg":"zeta starts"}\n'
        '{"level":"error","ts":"2025-05-02T10:00:09Z","msg":"gave up","error":"table 7 has wrong checksum"}\n'
        '{"level":"info","msg":"exit code 3"}\n',
        "wrong checksum",
    ),
    "a provider warns and its process aborts": (
        "9: libfabric:77:169::zeta:ep:zeta_send():5<warn> the transmit queue is exhausted\n"
        "9: Program received signal SIGABRT: Process abort signal.\n9: Backtrace for this error:\n",
        "exhausted",
    ),
    "CUDA's own name of an error in brackets": (
        "frob: 4 devices\n[CUDA_ERROR_NOT_SUPPORTED] operation not supported in cuFrob(3) on n2\n",
        "not supported in cuFrob",
    ),
    "what NCCL said last, beneath torch's exception": (
        '[rank0]: Traceback (most recent call last):\n[rank0]:   File "x.py", line 3, in f\n'
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled cuda error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.27.3\n[rank0]: ncclUnhandledCudaError: Call to CUDA function "
        "failed.\n[rank0]: Last error:\n[rank0]: Cuda failure 217 'peer access is not supported between these two "
        "devices'\n",
        "peer access is not supported",
    ),
    "Slurm gives its reason": (
        "srun: error: Unable to allocate resources: Requested time limit is invalid\n",
        "time limit is invalid",
    ),
    "a GPU is lost among errors of PCIe that were corrected": (
        "[ 5.000001] pcieport 0000:40:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)\n"
        "Unable to determine the device handle for GPU0000:41:00.0: GPU is lost.  Reboot the system\n",
        "hardware fault",
    ),
    "the dynamic linker finds another release": (
        "./zeta: /lib/libc.so.6: version `GLIBC_9.9' not found (required by ./zeta)\n",
        "GLIBC_9.9",
    ),
    "the first of two errors before an exception has the reason": (
        "E0801 10:00:00.1 99 rdma_context.cpp:512] Failed to open mlx5_7: no active port\n"
        "E0801 10:00:00.2 99 zeta.cpp:88] Failed to install the transport\n"
        'Traceback (most recent call last):\n  File "kv.py", line 20, in start\nRuntimeError: zeta did not begin\n',
        "no active port",
    ),
    "MPICH's head has the reason": (
        "Abort(6) (rank 0 in comm 0): Fatal error in PMPI_Send: Invalid rank, error stack:\nPMPI_Send(9): MPI_Send("
        "buf=0x7, count=1) failed\nsrun: error: n1: task 0: Exited with exit code 255\n",
        "Invalid rank",
    ),
}


def test_the_reason_comes_before_what_stands_around_it(tmp_path: Path) -> None:
    wrong = {}
    for name, (text, words) in WHY.items():
        first = explained(tmp_path, text)["causes"][0]
        if words not in first["message"] or first["confidence"] != "named":
            wrong[name] = first["message"], first["confidence"]
    assert wrong == {}
    assert len(WHY) >= 12


def test_the_head_of_mpich_is_cited_if_it_has_the_reason_and_otherwise_the_innermost_call(tmp_path: Path) -> None:
    text, _ = WHY["MPICH's head has the reason"]
    other = text.replace("Invalid rank", "Other MPI error").replace("count=1) failed", "count=1) has no such rank")
    lines = [explained(tmp_path, each)["causes"][0]["evidence"][0]["line"] for each in (text, other)]
    assert lines == [1, 2]


OUTSIDE = {
    f"{steps(0, 3)}^Zmpiexec: Forwarding signal 20 to job\n{LOST}": "Ctrl-Z",
    f"{steps(0, 3)}^Z\n[1]+  Stopped                 torchrun zeta.py\n": "Ctrl-Z",
    "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO JOB REQUEUE ***\n": "queue",
    f'{steps(0, 3)}{{"Events":[{{"EventType":"Preempt","Resources":["vm-7"]}}]}}\n[rank4]: RuntimeError: NCCL error '
    "in: a.cpp:1, remote process exited or there was a network error\n": "reclaimed this machine",
}


def test_what_ended_a_job_from_outside_is_named_before_what_followed(tmp_path: Path) -> None:
    found = {text: explained(tmp_path, text)["causes"][0] for text in OUTSIDE}
    assert {each["code"] for each in found.values()} == {"ended-from-outside"}
    assert [text for text, words in OUTSIDE.items() if words not in found[text]["message"]] == []


def test_what_is_not_memory_was_not_allocated_for_want_of_it(tmp_path: Path) -> None:
    of = "zeta.cpp:3801: Unable to allocate {}\nterminate called after throwing an instance of 'std::runtime_error'\n"
    found = [explained(tmp_path, of.format(what))["causes"][0]["code"] for what in ("12 UAR of the NIC", "12.1 GiB")]
    assert [code == "oom" for code in found] == [False, True]


def test_sockets_between_hosts_would_explain_a_slow_job_and_those_of_one_host_nothing(tmp_path: Path) -> None:
    text = (
        "n1:7:7 [0] NCCL INFO NET/IB : No device found.\nn1:7:7 [0] NCCL INFO Using network Socket\n"
        "n1:7:9 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks {} cudaDev 0 nvmlDev 0 busId 1000 commId 0x7 - "
        "Init COMPLETE\nstep 10 | 41.2 s/it\n"
    )
    found = {n: explained(tmp_path, text.format(n)) for n in (2, 32)}
    assert [[each["code"] for each in report["causes"]] for report in found.values()] == [[], ["slow-socket-fallback"]]
    assert accused(found[32]) == [] or found[32]["answers"][0]["when"] == "slow"
    assert {report["exit_code"] for report in found.values()} == {0}


SWITCH = "[ 812.1] nvidia-nvswitch0: SXid (PCI:0000:c0:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"


def test_an_nvswitch_is_no_gpu(tmp_path: Path) -> None:
    found = explained(tmp_path, SWITCH)["causes"][0]
    assert "NVSwitch 0000:c0:00.0 reports SXid 20034" in found["message"]
    assert "restart" in found["fix"]
    assert accused(explained(tmp_path, SWITCH.replace("Fatal", "Non-fatal"))) == []


def test_a_parent_that_lost_a_process_leaves_open_why(tmp_path: Path) -> None:
    found = explained(tmp_path, f"{steps(0, 3)}ERROR pool: frob 3 exited unexpectedly\n")["causes"][0]
    assert (found["confidence"], {*found["could_be"]}) == ("narrowed", {"rank-crashed", "oom"})


HEARD = (
    "[rank0]:[E806 21:05:54.816499929 ProcessGroupNCCL.cpp:1849] [PG ID 0 PG GUID 0(default_pg) Rank 0] Observed "
    "flight recorder dump signal from another rank via TCPStore.\n"
    "[rank9]:[E806 21:05:54.105499929 ProcessGroupNCCL.cpp:683] [Rank 9] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=118, OpType=ALLTOALL_BASE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600021 "
    "milliseconds before timing out.\n"
)


def test_a_rank_that_passed_a_signal_on_is_neither_named_nor_suspected_beside_ranks_without_a_log(
    tmp_path: Path,
) -> None:
    found = explained(tmp_path, HEARD)["causes"][0]
    assert (found["ranks"], found["suspects"]) == ([9], [])


HEALTHY = {
    "ssh was refused once": f"kex_exchange_identification: Connection closed\nagain in 5 s\n{steps(0, 12)}",
    "a job in the background": f"[1]+  Stopped                 torchrun zeta.py\n$ fg\n{steps(0, 12)}",
    "a value that CUDA does not support was tried": "[INFO] [CUDA_ERROR_NOT_SUPPORTED] (0,7), staging\nPassed\n",
    "a logger in JSON that goes on": '{"level":"error","msg":"tracker","error":"not found"}\n'
    '{"level":"info","msg":"training finished, exit code 0"}\n',
    "errors of PCIe that were corrected": "[ 5.000001] pcieport 0000:40:01.0: PCIe Bus Error: severity=Corrected, "
    f"type=Physical Layer, (Receiver ID)\n{steps(0, 3)}",
    "a logger's traceback that was caught": "2025-01-05 10:10:21 | ERROR | Traceback (most recent call last):\n"
    '2025-01-05 10:10:21 | INFO |   File "zeta.py", line 40, in f\n2025-01-05 10:10:21 | INFO | KeyError: 7\n'
    f"{steps(0, 12)}training finished after 12 steps\n",
    "a probe that may fail": f"WARNING: probe: read of a counter failed: No such file or directory\n{steps(0, 9)}",
}


def test_healthy_lines_that_look_alike_are_no_cause(tmp_path: Path) -> None:
    wrong = {name: found for name, text in HEALTHY.items() if (found := accused(explained(tmp_path, text)))}
    assert wrong == {}
    assert len(HEALTHY) >= 7


WORDS = {
    "[1718000001.100000] [g3:7122 :0]  ib_iface.c:9 UCX  ERROR ibv_create_cq failed": "UCX reports: ib_iface.c:9 UCX",
    "[ERROR] zeta: slot 3 not found": "zeta: slot 3",
    f"zeta begins {'x' * 200}: slot 3 is there: the table of slot 3 was not found": "slot 3 is there: the table",
    f"zeta begins {'x ' * 120}the table of slot 3 was not found": "… x",
}


def test_a_line_is_quoted_from_its_own_words_on(tmp_path: Path) -> None:
    told = {text: layer_report(LogEvent(0, 1, text)) for text in WORDS}
    assert {text: words for text, words in told.items() if not words.startswith(WORDS[text])} == {}
