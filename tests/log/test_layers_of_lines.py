"""Which layer wrote a line, what it wraps, and of what a line complains."""

from ncclprobe.checks.log.lines import of_the_job
from ncclprobe.logs.job_log import LogEvent
from ncclprobe.logs.layers import PROGRAM, inside, layer_of
from ncclprobe.logs.rank_ends import RankEnd, rank_ends
from ncclprobe.logs.reader import read

LINES = {
    "[1.2] [n1:7:0] ib_md.c:3 UCX  ERROR ibv_reg_mr failed": "ucx",
    "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND": "nixl",
    "slurmstepd: error: pyxis: couldn't start container": "scheduler",
    "slurmstepd: error: pyxis:     nvidia-container-cli: initialization error": "container",
    "srun: error: n1: task 0: Exited with exit code 1": "scheduler",
    "ssh: connect to host n1 port 22: Connection refused": "ssh",
    "ssh: Could not resolve hostname n1: Name or service not known": "dns",
    "NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus": "kernel",
    "instance/preempted TRUE: this VM is being preempted": "cloud",
    "src/modules/transport/ibgda/ibgda.cpp:2234: NULL value Unable to create ah.": "nvshmem",
    "libfabric:7:1::core:core:fi_getinfo_():1392<warn> fi_getinfo: provider efa output empty list": "libfabric",
    "NET/OFI Could not find any optimal provider": "network-plugin",
    "RdmaTransport: cannot open; rdma_context.cpp": "mooncake",
    "(raylet) store_runner.cc:83: System memory request exceeds memory available in /dev/shm": "ray",
    "KeyboardInterrupt": "terminal", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ": "launcher",
    "RuntimeError: CUDA error: device-side assert triggered": "cuda", "ValueError: loss is not a number": "program",
}  # fmt: skip


OTHERS = {
    LogEvent(0, 1, "something new", host="n1", pid=7, level="WARN"): "nccl",
    LogEvent(0, 1, "exitcode: 1, ValueError: x", level="ROOT CAUSE"): "launcher",
}


def test_each_line_is_of_the_layer_that_wrote_it() -> None:
    lines = {LogEvent(0, 1, text): name for text, name in LINES.items()} | OTHERS
    assert {line: layer_of(line).name for line in lines} == lines


def test_what_pyxis_repeats_is_the_container_runtimes_whatever_it_says() -> None:
    said = b"slurmstepd: error: pyxis:     mkdir: cannot create directory '/run/x': Permission denied\n"
    (event,) = read([("a.log", [said])]).events
    assert (event.text.split(":")[0], layer_of(event).name) == ("mkdir", "container")


def test_wrappers_wrap_what_is_inside_at_any_depth() -> None:
    assert "container" in inside("scheduler")
    assert {"ucx", "kernel"} <= inside("nixl")
    assert "launcher" not in inside(PROGRAM.name)


COMPLAINTS = {
    "closed": ("Connection closed by remote peer", "Connection closed by peer", "Connection reset by peer",
               "Broken pipe", "write: broken pipe", "store was unexpectedly closed", "Read error [10.0.0.1]",
               "Write error [10.0.0.1]", "remote process exited", "the peer has likely closed it", "Connection refused",
               "connection refused", "socketProgress: Connection closed", "NCCL communicator was aborted",
               "ncclRemoteError: see above", "*** SIGTERM (@0x3e8) received by PID 7"),
    "timed out": ("Timed out", "wait timed out", "Socket Timeout", "timeout", "retrieving ncclUniqueId from [0]",
                  "exception detected by watchdog at work: 7"),
    "otherwise": ("ValueError: bad sample", "Connection is open"),
    "": ("Sending process 7", "closing signal SIGTERM", "failed (exitcode: 1)", "sigkill_handler", "CalledProcessError",
         "ChildFailedError", "srun: error", "srun: Job 7", "slurmstepd: error", "exited on signal 9", "got signal: 15",
         "a dump signal", "preparing to dump", "Stack trace of the failed collective"),  # what others say
}  # fmt: skip
OF_THE_JOB = (
    "gloo::", "Gloo connect", "c10d::", "torch.distributed.DistNetworkError", "NCCL error", "libnccl.so", "TCPStore",
    "RuntimeError: x", "UCX  ERROR", "NET/OFI", "socketProgress: x", "socketStartConnect: x", "socketPollConnect: x",
)  # fmt: skip


def test_a_rank_complains_of_what_its_first_line_says() -> None:
    for kind, texts in COMPLAINTS.items():
        for text in texts:
            log = read([("rank0.log", [f"[rank0]: {text}\n".encode()])], (text,))
            assert (rank_ends(log, {(0, 1)}).ranks[0].complains, text) == (kind, text)


def test_a_last_line_of_a_program_that_ends_is_no_hang() -> None:
    last = ("Closing env plugin", "finish", "Finish", "done", "Done", "DONE", "complete", "Complete", "no more data",
            "exiting", "Exiting", "bye", "step 7")  # fmt: skip
    assert [text for text in last if not RankEnd(0, last=LogEvent(0, 1, text)).over] == ["step 7"]


def test_a_line_is_of_the_jobs_own_connections_only_by_the_name_of_a_library_or_call() -> None:
    assert [text for text in OF_THE_JOB if not of_the_job(LogEvent(0, 1, text))] == []
    assert not of_the_job(LogEvent(0, 1, "distributed_data: urllib3 lost the store of ucx and ofi, RuntimeError"))
