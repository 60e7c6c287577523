"""A line that no rule knows is a cause where it ends its process and its own words say what was lacking."""

import json
from pathlib import Path
from typing import Any

from ncclprobe.commands import explain
from tests.each_row import each_row
from tests.log.test_outcome import TRACE, WATCHDOG, explained, steps

EXITED = "srun: error: n7: tasks 0-7: Exited with exit code 255\n"
STACK = "1       0x7f06d27ff645 /opt/tritonserver/backends/libtriton_trt.so(+0x17645) [0x7f06d27ff645]\n"

RULE = "-" * 74

SAID = {
    "a container's program is missing": (f'FATAL:   "bris": executable file not found in $PATH\n{EXITED}', "not found"),
    "a server's check failed, above a stack": (
        f"E1114 09:30:00.910920 6946 model.cc:621] failed to load 'x' version 1: Assertion failed: a == b\n{STACK}",
        "a == b",
    ),
    "a library's check failed": (
        "F1114 09:30:00.910920 6946 exec.cc:9] Check failed: !info.empty()\n",
        "!info.empty()",
    ),
    "the last line is an exception without a traceback": (
        "MisconfigurationException('You requested gpu: [0, 1] but your machine only has: [0]')\n",
        "only has",
    ),
    "an option is not known": (f"train.py: error: unrecognized arguments: --lr2=3\n{EXITED}", "--lr2"),
    "argparse says it above a launcher's traceback": (
        f"usage: train.py [--a]\ntrain.py: error: unrecognized arguments: --b\nrun: train.py --steps=2000\n{TRACE}"
        "subprocess.CalledProcessError: Command 'python train.py' returned non-zero exit status 2.\n",
        "--b",
    ),
    "mpirun does not know an option": (
        '/opt/bin/mpirun: Error: unknown option "-ppn"\nType mpirun --help\n',
        "-ppn",
    ),
    "an MPI call got what is not valid": (
        "Fatal error in MPI_Allreduce: Invalid communicator, error stack:\nMPI_Allreduce(1007): failed\n",
        "Invalid communicator",
    ),
    "a disk is full, behind a prefix of the platform": (
        "2026-04-02 06:01:12.977 [9/fit/3 (pid 28)] [0c5c] Traceback (most recent call last):\n"
        '2026-04-02 06:01:12.977 [9/fit/3 (pid 28)] [0c5c]   File "/x/io.py", line 9, in save\n'
        "2026-04-02 06:01:12.977 [9/fit/3 (pid 28)] [0c5c] OSError: [Errno 28] No space left on device\n",
        "No space left",
    ),
    "a library names the line of its own source": (
        f"Error feature not supported at line 88 in file /src/csrc/ops.c\n{EXITED}",
        "not supported",
    ),
    "Open MPI explains between two rules": (
        f"OPAL ERROR: Unreachable in file pmix_client.c at line 9\n{RULE}\nThe application was launched directly, but\n"
        f"OMPI cannot start, as it was not built for it. There\nare several ways:\n\n  v9: build.\n{RULE}\n"
        "*** An error occurred in MPI_Init\n*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n",
        "not built for it",
    ),
    "a limit of its user, in the C library's words": (
        "frob: pthread_create failed for thread 9 of 16: Resource temporarily unavailable\n",
        "temporarily unavailable",
    ),
    "the innermost of what others have wrapped": (
        "Error: cannot begin: step one failed: child: exit status 1: login: expired token: unknown\n",
        "expired token",
    ),
    "a process holds what another needs": (
        "frob: error: the accelerator is already in use by process 5521\n",
        "5521",
    ),
    "a class of exceptions whose name says nothing of an error": (
        "zeta.errors.ModelIsGated: cannot read the weights of zeta/base\n",
        "ModelIsGated",
    ),
    "a logger's last error is of rights": (
        f"{steps(0, 3)}ERROR store: /data/x: Permission denied\n{EXITED}",
        "Permission denied",
    ),
}


def first(folder: Path, text: str) -> dict[str, Any]:
    found = explained(folder, text)["causes"]
    return found[0] if found else {"code": "", "message": "", "confidence": ""}


@each_row("name", SAID)
def test_what_was_lacking_is_named(name: str, tmp_path: Path) -> None:
    text, words = SAID[name]
    found = first(tmp_path, text)
    assert (found["code"], found["confidence"]) in (("stated", "named"), ("rank-crashed", "named")), found
    assert words in found["message"]
    assert found["evidence"][0]["text"].split()[-1] in text


OPEN = {
    "who speaks of a peer": f"E1114 09:30:00.9 6946 x.cc:9] cannot open a connection to the peer\n{EXITED}",
    "who speaks of a process that exited": f"ERROR launcher: worker 1 exited with code 1, not found\n{EXITED}",
    "who names no reason": f"E1114 09:30:00.9 6946 x.cc:9] operation failed\n{EXITED}",
    "an assertion of NCCL's as it is taken down": (
        f"{steps(0, 3)}python3: proxy.cc:18: ncclResult_t ncclProxyDestroy(ncclComm*): Assertion `refs == 0' failed.\n"
    ),
}


@each_row("name", OPEN)
def test_what_may_follow_from_others_stays_open(name: str, tmp_path: Path) -> None:
    assert first(tmp_path, OPEN[name])["confidence"] in ("unknown", "")


GOES_ON = {
    "a benchmark that measures all the same": (
        "[n1:1188:0] ib_log.c:246 UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory\n"
        "# OSU MPI Broadcast Latency Test v5.8\n# Size       Avg Latency(us)\n1     0.23\n2      0.24\n"
    ),
    "git, asked for a version where there is none": (
        "INFO: seed 7\nfatal: not a git repository (or any of the parent directories): .git\nINFO: data is loaded\n"
    ),
    "what Open MPI warns of between two rules": (
        f"{RULE}\nNo schemes were able to be used on a port that failed\nto answer.\n{RULE}\n{steps(0, 9)}"
    ),
    "a table between two rules": f"{RULE}\nloss  failed  aborted  invalid  lr  time\n{RULE}\n",
    "a pod that got a node later": (
        "5m   Warning   FailedScheduling   pod/w-0   0/4 nodes are available\n"
        "4m   Normal   Scheduled   pod/w-0   Successfully assigned default/w-0 to n1\n"
    ),
    "an exception after which its line says what is done": "zeta.FetchError: no answer; retrying\nworld_size=2\n",
    "a logger's error, and steps after it": f"ERROR tracker: server not found\n{steps(0, 9)}",
}


@each_row("name", GOES_ON)
def test_who_goes_on_is_not_blamed(name: str, tmp_path: Path) -> None:
    assert first(tmp_path, GOES_ON[name])["confidence"] in ("unknown", "")


SIGNALS = {
    "distributed.nanny - WARNING - Worker process 56 was killed by signal 11\n": "SIGSEGV",
    "2024-03-06T17:53:31Z ERROR launcher: Shard process was signaled to shutdown with signal 4 rank=0\n": "SIGILL",
    "*** SIGSEGV (@(nil)), see go/stacktraces#s15 received by PID 160 on cpu 100; stack trace: ***\n": "crashed",
}


@each_row("line", SIGNALS)
def test_a_signal_is_read_in_other_words(line: str, tmp_path: Path) -> None:
    found = first(tmp_path, f"{steps(0, 2)}{line}")
    assert found["code"] == "rank-crashed"
    assert SIGNALS[line] in found["message"]


def test_a_store_that_ends_after_the_ranks_met_is_no_cause(tmp_path: Path) -> None:
    late = (
        "[2024-10-16 13:53:06,832] torch.distributed.elastic.rendezvous.dynamic_rendezvous: [WARNING] The node 'n2_4' "
        "has failed to send a keep-alive heartbeat to the rendezvous '17234' due to an error of type "
        "RendezvousConnectionError.\n"
    )
    failed = "srun: error: n1: task 0: Exited with exit code 1\n"
    raised = f"{TRACE}torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection has failed\n"
    assert "master-unreachable" not in {each["code"] for each in explained(tmp_path, failed + late + raised)["causes"]}
    assert first(tmp_path, failed + raised)["code"] == "master-unreachable"


def test_a_refused_login_is_mended_by_a_key_and_not_by_an_interface(tmp_path: Path) -> None:
    found = first(tmp_path, "root@n2: Permission denied (publickey,password).\n")
    assert found["code"] == "peer-unreachable"
    assert "ssh HOST hostname" in found["fix"]
    assert "IFNAME" not in found["fix"]


def test_a_crash_stands_beneath_what_its_process_said_just_before(tmp_path: Path) -> None:
    ucx = "[n1:56309:2]  ucp_rkey.c:250 UCX  ERROR Failed to unpack remote key: Input/output error\n"
    crash = "[n1:56309:2:56362] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x20)\n"
    found = first(tmp_path, f"{steps(0, 2)}[n1:56309:2] {ucx}{crash}")
    assert "unpack remote key" in found["evidence"][0]["text"]
    assert "just after the line" in found["message"]
    assert "said" not in first(tmp_path, f"{ucx}{steps(0, 9)}{crash}")["message"]


def test_what_a_logger_could_not_format_ends_nothing(tmp_path: Path) -> None:
    logging = f"--- Logging error ---\n{TRACE}TypeError: not all arguments converted during string formatting\n"
    ended = f"{TRACE}AttributeError: 'DistributedDataParallel' object has no attribute 'embed_dim'\n"
    assert "embed_dim" in first(tmp_path, steps(0, 2) + logging + "Call stack:\n" + ended)["message"]
    assert first(tmp_path, steps(0, 2) + logging + steps(2, 9))["confidence"] == ""


def test_a_level_is_no_host(tmp_path: Path) -> None:
    report = explained(tmp_path, f'FATAL:   "bris": executable file not found in $PATH\n{EXITED}' * 4)
    assert not [step for each in report["causes"] for step in each["collect"] if "FATAL" in step]


def test_a_rank_that_names_its_own_failure_leaves_no_other_absent(tmp_path: Path) -> None:
    text = (
        "[0] rank:0 INFO broadcast of variables\n[1] rank:1 INFO receive variables\n[1] Traceback (most recent call "
        'last):\n[1]   File "a.py", line 3, in run\n'
        "[1] tensorflow.errors.UnknownError: ncclCommInitRank failed: unhandled cuda error\n"
    )
    assert 0 not in first(tmp_path, text).get("ranks", [])


def test_a_rank_whose_last_line_is_the_call_has_come_to_it(tmp_path: Path) -> None:
    call = (
        "n1:{0}:{0} [{1}] NCCL INFO AllReduce: opCount 6 sendbuff 0x7f recvbuff 0x7f count 4 datatype 7 op 0 comm 0x5\n"
    )
    for rank in range(4):
        begun = f"n1:{100 + rank}:1 [{rank}] NCCL INFO comm 0x5 rank {rank} nranks 4 cudaDev {rank} - Init COMPLETE\n"
        said = WATCHDOG.replace("ank0", f"ank{rank}").replace("Rank 0", f"Rank {rank}") if rank < 2 else ""
        (tmp_path / f"rank{rank}.log").write_text(begun + call.format(100 + rank, rank) + said)
    report = tmp_path / "report.json"
    explain.main([*(str(path) for path in sorted(tmp_path.glob("*.log"))), "--json", str(report), "-q"])
    (found, *_) = json.loads(report.read_text())["causes"]
    assert found["confidence"] == "unknown"
    assert "did not come" not in found["message"]


def test_the_good_end_of_a_helper_is_not_that_of_the_job(tmp_path: Path) -> None:
    line = "[2025-02-11 20:08:00,125 I 4121 4184] agent.cc:80: Agent process with name x exited, exit code 0.\n"
    assert explained(tmp_path, f"{steps(0, 2)}{line}")["outcome"] != "ended-well"


def test_a_message_beneath_its_exception_is_read_with_it(tmp_path: Path) -> None:
    frame = '  File "/x/torch/cuda/__init__.py", line 108, in _check_driver\n'
    found = first(tmp_path, f"{TRACE}{frame}AssertionError: \nThe NVIDIA driver on your system is too old (9000).\n")
    assert found["code"] == "cuda-driver-mismatch"
    found = first(tmp_path, f"{TRACE}{frame}ValueError: \n==========\nsomething else\n")
    assert found["evidence"][0]["text"].strip() == "ValueError:"


def test_shared_memory_that_cannot_be_opened_is_a_limit_of_files(tmp_path: Path) -> None:
    shm = f"{TRACE}RuntimeError: unable to open shared memory object </torch_9_7> in read-write mode\n"
    found = first(tmp_path, shm)
    assert (found["confidence"], found["could_be"]) == ("narrowed", ["fd-limit", "shm-too-small"])
    found = first(tmp_path, f"{shm}{TRACE}OSError: [Errno 24] Too many open files\n")
    assert (found["code"], found["confidence"]) == ("fd-limit", "named")


def test_a_proxy_that_passes_on_that_a_peer_closed_is_not_what_failed(tmp_path: Path) -> None:
    proxy = "n1:7:9 [1] p.cc:1 NCCL WARN [Proxy Service 1] Failed to execute operation Connect from rank 1, retcode 6"
    closed = "n1:7:8 [1] misc/socket.cc:538 NCCL WARN Net : Connection closed by remote peer n4<59227>"
    found = first(tmp_path, f"{proxy}\n{closed}\nn1:7:8 [1] NCCL INFO misc/socket.cc:546 -> 6\n")
    assert found["message"] == "n4 closed the connection"


ALONE = (
    "[rank6]:[W729 10:15:17.5 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=76, addr=[localhost]:60950, "
    "remote=[localhost]:29500): Connection reset by peer\nException raised from recvBytes at Utils.hpp:675:\n"
    "frame #0: c10::Error::Error(c10::SourceLocation) + 0x98 (0x7faded9785e8 in /x/libc10.so)\n"
)


def test_a_warning_with_nothing_else_in_the_log_is_what_is_asked_about(tmp_path: Path) -> None:
    assert "recvValue failed" in first(tmp_path, ALONE)["evidence"][0]["text"]
    assert explained(tmp_path, f"{steps(0, 9)}{ALONE}")["causes"] == []
