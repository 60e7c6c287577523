"""Texts of logs of ranks, their program and their launcher; tests.log.single says how to read them."""

from ncclprobe.checks.log.collectives import timeout, waited_at
from ncclprobe.checks.log.crashes import ENDED_ITSELF
from ncclprobe.checks.log.meeting import LINE
from ncclprobe.logs.outcome import ABORTED
from tests.log.single import around, logs
from tests.log.whole import CLOSED, TRACE, WAITED, of, ranks

SRUN = "srun: error: n2: task"
CRASHES = logs(
    around("", "srun: Job step aborted: wait, x STEP CANCELLED x, x JOB CANCELLED x, x DUE TO TIME LIMIT, a CANCELLED "
               "AT b, srun: error: n1: tasks 4-5: Exited with exit code 1", f"↵{SRUN} 1: Killed"),
    around(f"{SRUN} 1: ", "Killed, Segmentation fault, Bus error, Aborted, Terminated, Out Of Memory, Exited with exit "
                          "code 9, Exited with exit code 135, Exited with exit code 137, Exited with exit code 139"),
    around(f"{SRUN} 3: ", "Exited with x, Segmentation, Bus error, Aborted, Terminated, Out Of Memory",
          f"↵{SRUN} 1: Killed"),
    around("run.sh: line 4: 2218 Killed                  ",
          "python a.py, torchrun a, deepspeed a, accelerate a, mpirun a, horovodrun a, ./a, top"),
    around("run.sh: line 4: 2218 ", "Bus error, Illegal instruction, Aborted", "    (core dumped) python a.py"),
    around("", "Killed, Bus error, Illegal instruction, Bus error (core dumped), Killed by x"),
    around("worker 3 was ", "killed by signal 9, terminated with signal: 11, killed by signal 6, killed by signal 15"),
    around("worker 3 ", "exited on signal 7, died from signal 8, signalled by signal 4, ended with signal 9"),
    around("a.py ", "exits with return code = -4, exit status: -7, exit_code -8, return code -15, exit code = 9"),
    around("spawn.ProcessExitedException: process 3 terminated with signal ", "SIGBUS, SIGFPE., SIGILL, SIGTERM"),
    around("CalledProcessError: Command 'x' died with <Signals.", "SIGSEGV: 11>., SIGABRT: 6>."),
    around("Container rank 2 status failed cmd ['python', 'a code b'] code ",
          "-11 log x, 1 log x, 0 log x, -6 log x, x"),
    around("prterun noticed that process rank 3 with PID 5 on node n2 ",
          "exited on signal 4 (x)., exited on signal 6 (x)."),
    around("", "got signal: 15, torch.x.SignalException: Process 7, worker 3 unexpectedly failed with exitcode=1, *** "
          "SIGTERM (@0x3e8) received by PID 77, Exited with exit code 3, exits with return code = -6, a "
          "ChildFailedError, Received 15 death signal, sigkill_handler] Killing subprocess 7, CalledProcessError: x, "
          "terminate called after throwing it, raise SignalException, Sending process 7 closing signal SIGTERM"),
    around("    ", "raise SignalException(x), raise ChildFailedError(x)"),
    around("I:", "CalledProcessError: x, *** SIGTERM (@0x3e8) received by PID 77"),
    around("Process 77 got signal: ", "1, 2, 15, 20, 12"),
    around("W0102 03:04:05.000000 77 api.py:723] Received ",
          "1 death signal, 2 death signal, 15 death signal, 2 files"),
    around("W0102 03:04:05.000000 77 api.py:900] Sending process 78 closing signal ",
          "SIGHUP, SIGINT, SIGTSTP, SIGTERM"),
    around(f"{TRACE.replace(chr(10), '↵')}↵", "KeyboardInterrupt, KeyboardInterrupt: x"),
    around("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-02T03:04:05 ",
          "***, DUE TO JOB REQUEUE ***, DUE TO  PREEMPTION  ***, DUE TO TIME LIMIT ***, DUE TO TASK FAILURE ***"),
    around("", "srun: error: n1: task 0: Exited with exit code 1↵, [rank0]: RuntimeError: x↵, [rank0]: "
               "KeyboardInterrupt: x↵, W: Connection closed by remote peer↵, I:Connection closed by remote peer↵",
          "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***"),
    "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***↵srun: error: n1: task 0: Exited with exit "
    "code 1",
    around("", "PBS: job killed: walltime 9 exceeded, PBS: job killed: cput 9, TERM_RUNLIMIT: job killed after, "
               "TERM_OWNER: job killed by owner, PBS: job killed: mem 9"),
    around("", "the node was preempted, preemptible instances: yes, being preempted, preempted TRUE, PreemptScheduled, "
               "Interruption notice, instance-action: terminate, TERMINATE_ON_HOST_MAINTENANCE, {\"EventType\": "
               "\"Preempt\"}"),
    around("", "[rank0]: RuntimeError: x↵, [rank0]: ok↵", "the vm was preempted"),
    "the vm was preempted↵[rank0]: RuntimeError: x",
    around("", "^Z, []+  Stopped  x, Forwarding signal 20 to job"))  # fmt: skip
EXITS = {
    **{f"exit code {code}": ENDED_ITSELF.replace(": 3 (pid", f": {code} (pid")
       for code in (-4, -6, -7, -8, -9, -11, -15, 0, 1, 2, 128, 129, 132, 134, 135, 137, 139, 159, 160, 255)},
    "two failures": f"{ENDED_ITSELF.replace('Root Cause (first observed failure)', 'Failures')}{ENDED_ITSELF}",
}  # fmt: skip
FOREIGN = (
    "torch.distributed.DistBackendError: x, DistNetworkError: x, DistStoreError: x, DistError: x, Error: NCCL x, nccl "
    "x, HCCL x, gloo x, Gloo x, c10d x, c10::Error x, Connection x, Socket x, Timed out x, Timeout x, Broken pipe x, "
    "ChildFailedError: x, ProcessExitedException: x, ProcessRaisedException: x, CalledProcessError: x, "
    "RendezvousError: x, CUDA error x, CUDA driver x, CUDA failure x, CUDA out of x, CUDA runtime x, CUDA unknown x, "
    "no CUDA GPUs x, CUDA-capable x, no visible GPU x, CUDA init x, CUDA version x, CUDA call x, cudaGetDeviceCount x, "
    "CUBLAS x, CUDNN_STATUS_X, OutOfMemoryError: x, out of memory x, cannot allocate memory x, Unable to allocate x, "
    "bad_alloc x, SystemExit: x, SignalException: x, SIGTERM x, monitoredBarrier x, between collectives x, Address "
    "already in use x, Name or service x, name resolution x, Too many open files x, shared memory x, received signal "
    "x, collective operation x, torch_shm x, TCPStore x, HashStore x, FileStore x, key-value store x, rendezvous x, "
    "ncclSystemError x, libnccl x, error: NVML x, RayTaskError: x, ActorUnavailable x, EOFError: x, Broken x, all "
    "workers x, NVIDIA driver x, exited with non-zero status x, DEADLINE_EXCEEDED x, UNAVAILABLE: x, "
    "HorovodInternalError: x, Horovod has been shut down x, NIXL_ERR_X, root cause x, stack trace x, background "
    "process x, reader raises an exception x, queue.Empty: x, unexpected pos x, ActorDiedError: x, RayActorError: x, "
    "WorkerCrashedError: x, NodeDiedError: x, c10::Half is not c10::BFloat16, c10::Float8 x, c10::complex x, the "
    "vector is empty")  # fmt: skip
OWN = (
    "ValueError, TypeError, KeyError, IndexError, AttributeError, NameError, AssertionError, NotImplementedError, "
    "ModuleNotFoundError, ZeroDivisionError, UnicodeDecodeError, a.b.IndexError, RuntimeError")  # fmt: skip
EXCEPTIONS = logs(
    around(f"{TRACE}↵RuntimeError: ".replace("\n", "↵"), FOREIGN),
    around(f"{TRACE}↵".replace("\n", "↵"), OWN, ": NCCL timed out"),
    around(f"{TRACE}↵requests.exceptions.X: ".replace("\n", "↵"), "socket, a"),
    around(f"{TRACE}↵RuntimeError: socket of ".replace("\n", "↵"),
          "RANK expected, but not set, HTTP, requests.get, urllib3, huggingface_hub, the Hugging Face hub"),
    around(f"{TRACE}↵OSError: ".replace("\n", "↵"),
          "[Errno 5] x, [Errno 28] x, [Errno 30] x, [Errno 107] x, [Errno 116] x, [Errno 121] x, [Errno 2] x, Stale "
          "file handle, PytorchStreamWriter failed writing file, LocalEntryNotFoundError x"),
    around(f"{TRACE}↵ValueError: ".replace("\n", "↵"), "CUDA error x, CUDA driver x, CUDA GPUs x, NVML x, NCCL error "
          "x, No such device, no GPU, No GPU, Cannot allocate memory, Connection x, timed out, No module named x, "
          "x.so: cannot open shared object file, x: undefined symbol: y, a.h: fatal error: y"),
    around("[rank3]: ", "Fatal Python error: Segmentation fault, Fatal Python error: Aborted, Caught signal 11, *** "
          "SIGSEGV (@0x0), *** SIGBUS (@0), *** SIGILL (@0), *** SIGFPE (@0), double free or corruption, free(): "
          "invalid pointer, malloc(): corrupted, *** stack smashing detected, Floating point exception, Illegal "
          "instruction, worker is killed by signal: Killed, worker 7 died unexpectedly, worker exited unexpectedly, "
          "the actor died unexpectedly, a worker died unexpectedly, Signal: Segmentation fault"),
    around("[rank3]: ", "remote process exited or there was a network error, aborted due to async NCCL error, x",
          "↵[rank3]: Fatal Python error: Segmentation fault"),
    around("[rank3]: ERROR the table of slot 3 is torn↵", "[rank3], [rank2]",
          ": Fatal Python error: Segmentation fault"))  # fmt: skip
COMPLETE = "n1:10{0}:9 [{0}] NCCL INFO comm 0x5 rank {0} nranks 4 busId 7{0} commId 0x9 - Init COMPLETE\n"
CALLED = "n1:10{0}:9 [{0}] NCCL INFO AllReduce: opCount {1} sendbuff 0x7f count 4 datatype 7 op 0 comm 0x5\n"
MET = "".join(COMPLETE.format(rank) for rank in range(4))
UNNUMBERED = timeout(0).replace("SeqNum=7, ", "")
BAR = "scan: {0}%|#    | {0}0/1000 [20:0{1}<180:00, 0.1it/s]"
CALLS = {
    **{f"opCount {count}": f"{MET}{timeout(0)}{timeout(1)}{CALLED.format(2, count)}"
       for count in ("5", "6", "7", "a", "1f", "g", "", "00000000000000006")},
    "all have called": f"{MET}{timeout(0)}{timeout(1)}{CALLED.format(2, 6)}{CALLED.format(3, 9)}",
    "no number": f"{MET}{UNNUMBERED}{CALLED.format(2, 6)}",
    "one is in another file": f"{MET}{timeout(0)}{timeout(2)}\n%- b.log\n{timeout(1)}{timeout(1, seq=9)}",
    "a rank gives up twice": f"world size 3\n{timeout(2)}{timeout(1, seq=9)}{timeout(2, seq=9)}{timeout(1)}",
    "all but nine": f"world size 40\n{''.join(timeout(rank) for rank in range(29))}",
    **{f"{n} elements and {m}": timeout(0, n=n) + timeout(1, n=m) for n, m in ((4, 4), (4, 8), (0, 8))},
    "one is ahead": timeout(0, seq=8) + timeout(1, seq=7) + timeout(2, seq=7),
    "one calls another": timeout(1) + timeout(0) + timeout(2, op="BROADCAST"),
    **{f"waited in {words}": "".join(waited_at(rank, call) for rank, call in enumerate(words.split())) for words in (
        "all_reduce barrier barrier", "barrier all_reduce all_reduce all_reduce", "a_x a_x b_x c_x a_x", "all_reduce "
        "isend", "all_reduce irecv", "all_reduce batch_isend_irecv", "barrier broadcast gather")},
    "waited, and one did not": f"{waited_at(0, 'barrier')}{waited_at(1, 'barrier')}{waited_at(2, 'gather')}[rank3]: "
                               f"step 7\n",
    "waited without a rank": waited_at(0, "barrier").replace("[rank0]: ", "") + waited_at(1, "gather"),
    **{f"a bar of {who}, {between}":
        f"{who}{BAR.format(10, 0)}\n{between}\n{who}{BAR.format(11, 5)}\n{who}{BAR.format(12, 9)}" for who in ("",
        "[rank3]: ") for between in (timeout(1).strip(), f"{timeout(1)}{timeout(2).strip()}", "n1:7:7 [0] NCCL INFO ms "
        "for recv operation to complete", f"{timeout(1)}INFO worker group FAILED; will restart worker group",
        "[rank1]: RuntimeError: store based barrier")},
    "bars of two": f"{BAR.format(10, 0)}\n{BAR.format(11, 5)}\n%- "
                   f"b.log\n{BAR.format(12, 0)}\n{timeout(1)}{BAR.format(13, 5)}"}  # fmt: skip
GAVE_UP = (
    "Watchdog caught collective operation timeout, Timeout at NCCL work: 9, watchdog got stuck for 480 seconds without "
    "making progress, Some NCCL operations have failed or timed out, NCCL communicator was aborted, To avoid data "
    "inconsistency\\, we are taking the entire process down, ms for recv operation to complete, ms for send operation "
    "to complete, detected by watchdog, Received a dump signal from rank 5, Heartbeat monitor timed out, heartbeat "
    "monitor, Received a dump signal due to a collective timeout from  rank 5, Received a dump signal due to a "
    "collective timeout from rank 3, to a collective timeout from none")  # fmt: skip
COLLECTIVES = logs(
    around("[rank3]:[E1122 10:00:00.1 P.cpp:1] ", GAVE_UP),
    around("[rank3]:[I1122 10:00:00.1 P.cpp:1] ", GAVE_UP),
    around("I:", GAVE_UP),
    around("[rank1]: RuntimeError: ", "Detected mismatch between collectives on ranks. Rank 0 is x but Rank 4 is y, "
          "collective mismatch error, posted incorrect receive info, Mismatched collective detected, Is there a "
          "distributed collective mismatch in your code, op.preamble.length <= op.nbytes, symmetric registration check "
          "failed, data size doesn't match expected size"),
    around("I:", "collective mismatch error, Detected mismatch between collectives on ranks. but Rank 4"),
    around("[rank1]: ", "Rank 2 failed to pass monitoredBarrier, [Rank 0]: Rank 1 failed to pass monitoredBarrier, "
                        "Ranks 0: Ranks 2\\, 3 failed to pass monitoredBarrier; Rank 7 failed to pass it, ranks [3\\, "
                        "1] are the lagging ranks that caused this timeout, [5] finished x but didn't join collective "
                        "#6, [4\\, 2] joined but didn't finish collective #6"),
    around("[rank3]: Heartbeat monitor timed out↵",
          "[rank3]: Timeout at NCCL work: 9, I:Timeout at NCCL work: 9, [rank2]: Heartbeat monitor timed out, [rank0]: "
          "step 7↵[rank1]: step 7↵[rank2]: step 7, I:Heartbeat monitor timed out"))  # fmt: skip
MORE = {
    "no address of two": f"%- rank3\n[rank3]: {LINE}\n%- rank4\nValueError: no data",
    "loopback of two": "n1:7:7 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n%- b\nn2:7:7 [0] NCCL INFO Bootstrap : "
                       "Using lo:127.0.0.1<0>",
    "networks of two": "n1:7:7 [0] NCCL INFO Using network AWS Libfabric\n%- b\nn2:7:7 [0] NCCL INFO Using network "
                       "Socket",
    **{f"ends of {sizes}": "\n".join(f"n1:{rank}:7 [0] NCCL INFO comm 0x1 rank {rank} nranks {size} - "
        f"{('Destroy', 'Abort', 'Init', 'Init', 'Destroy')[rank]} COMPLETE" for rank, size in enumerate(sizes.split()))
        for sizes in ("3 3 3", "3 3", "3 2", "3 2 2", "5 5 5 5 5", "3 3 2", "3 3 9 3")},
    "ends without a rank": "n1:1:7 [0] NCCL INFO comm 0x1 nranks 3 - Destroy COMPLETE\nn1:2:7 [0] NCCL INFO comm 0x1 "
                           "nranks 3 - Abort COMPLETE",
    **{f"bootstraps of {seconds}": "".join(f"n1:{rank}:9 [0] NCCL INFO Init timings - ncclCommInitRank: rank {rank} "
        f"nranks 9 total 9 (bootstrap {s}.00, x)\n" for rank, s in enumerate(seconds)) for seconds in ((60, 1), (59, 1),
        (1, 60, 29), (60, 30), (1, 2, 90), (90, 1, 44, 46, 90))},
    **{f"sizes {sizes}": "".join(f"n1:{rank}:{rank} [0] NCCL INFO comm 0x1 rank {rank} nranks {size} commId 0x9 - Init "
        f"START\n" for rank, size in enumerate(sizes)) + "n1:0:9 [0] x.cc:1 NCCL WARN Bootstrap Root : mismatch in "
        "rank count from procs 4 : 5" for sizes in ((4, 4, 5), (4, 5), (5, 4, 4, 6), (4, 4), (8, 4, 9, 4))},
    **{f"versions {one}, {other}": f"n1:7:7 [0] NCCL INFO NCCL version 2.27.7+cuda13.0\nn2:8:8 [0] NCCL INFO NCCL "
                                   f"version 2.28.9+cuda13.0\nn1:7:7 [0] NCCL INFO comm 0x1 rank 0 nranks 2 commId "
                                   f"{one} - Init START\nn2:8:8 [0] NCCL INFO comm 0x2 rank 1 nranks 2 commId {other} "
                                   f"- Init START" for one, other in (("0x9", "0x9"), ("0x9", "0x8"))}}  # fmt: skip
ABORT = "n1:8:8 [0] NCCL INFO misc/socket.cc:707 (ncclSocketTryRecv) -> 3"
TOLD = f"n1:8:8 [0] NCCL INFO comm 0x1 - {ABORTED}\n{ABORT}"
BEGINS = "n1:{0}:7 [{0}] NCCL INFO comm 0x1 rank {0} nranks {1} busId {0} commId {1} - Init "
ENDS = (
    "abort done done", "done done done", "abort done", "told done done", "done done late", "abort done loss",
    "done abort abort", "done done abort", "abort abort done", "told told done", "done told done", "done abort done",
    "abort done done done")  # fmt: skip
SAYS = {"abort": ABORT, "told": TOLD, "late": f"done\n{TOLD}\ndone"}
BY_PEER = "RuntimeError: Connection closed by peer"
LOST = "n{}:7:9 [0] x.cc:1 NCCL WARN socketProgress: Connection closed by remote peer {}<40211>"

OF_ENDS = (
    "training done", "the table of slot 3 is torn: failed",
    "Failed to open x\niteration 8/ 9 | loss 2\niteration 9/ 9 | loss 2", "Sending process 7 closing signal",
    "fatal: not a git repository", "x is deprecated, failed")  # fmt: skip


def _silent(silent: str, count: int, said: str) -> str:
    return ranks({rank: "" if rank in map(int, silent.split()) else said for rank in range(count)})


SILENT = {
    **{f"ends {words}": "\n".join(f"%- rank{n}\n{BEGINS.format(n, 3)}START\n{SAYS.get(word, word)}"
                                  for n, word in enumerate(words.split())) for words in ENDS},
    **{f"begun by {some}, again of {size}": "\n".join(f"%- rank{n}\n{BEGINS.format(n, 4)}START\n" +
        f"{BEGINS.format(n, 4)}COMPLETE\n{BEGINS.format(n, size)}START\n" * (size > 1) for n in map(int, some.split()))
        for some in ("0 1 2", "1 2 3", "0 1", "0", "0 1 2 3", "2 0") for size in (1, 3, 4)},
    "begun again by three": "\n".join(f"%- rank{n}\n{BEGINS.format(n, 4)}START\n{BEGINS.format(n, 4)}COMPLETE\n"
                                      + f"{BEGINS.format(n, 4)}START\n" * (n != 1) for n in range(4)),
    **{f"{silent} of {count} say nothing, {name}": _silent(silent, count, said) for name, said in (("closed", CLOSED),
        ("waited", WAITED), ("no address", f"{BY_PEER} n7"), ("peers", f"{BY_PEER} [10.0.0.7]:5")) for silent, count in
        (("3", 4), ("0 1", 8), ("1 2", 8), ("2 3", 8), ("1 2", 6), ("0 1 2 3", 8), ("0 2", 4),
        ("0 1 2 3 4 5 6 7 8 9", 20))},
    **{f"others {one[-20:]} and {other[-20:]}": ranks({0: one, 1: other, 2: ""})
       for one, other in ((WAITED, CLOSED), (CLOSED, WAITED), (CLOSED, "ValueError: x"), ("ValueError: x", WAITED))},
    "two peers": ranks({0: f"{BY_PEER} [10.0.0.2]:5", 1: f"{BY_PEER} [10.0.0.3]:5", 2: "", 3: ""}),
    **{f"one fails by itself, {place}": ranks({**dict.fromkeys(range(3), CLOSED), place: "zeta.Gone: slot 7"})
       for place in (0, 2)},
    **{f"the last line is {last[:9]}, {count}, {how}":
          f"{ranks({**dict.fromkeys(range(count), said), count: ''})}\n{last}"
       for last in OF_ENDS for count in (1, 3) for how, said in (("closed", CLOSED), ("waited", WAITED))},
    **{f"the launcher saw {code}": f"{_silent('3', 4, CLOSED)}\n%- launcher.log\n" + ENDED_ITSELF.replace(": 3 (pid",
        f": {code} (pid") for code in (-9, -15, 1)},
    "the launcher saw one of two": f"{_silent('2 3', 4, CLOSED)}\n%- "
                                   f"launcher.log\n{ENDED_ITSELF.replace(': 3 (pid', ': -9 (pid')}",
    "one is alive": f"{_silent('3', 4, WAITED)}\n[rank3]: Received a dump signal due to a collective timeout from  "
                    f"rank 0",
    **{f"{one} lost {peer}, {two} lost {other}": f"{LOST.format(one, peer)}\n%- b.log\n{LOST.format(two, other)}" for
        one, peer, two, other in ((1, "n9", 2, "n9"), (1, "n9", 2, "n8"), (1, "n9", 1, "n9"), (1, "n2", 2, "n2"),
        ("1.a.b", "n9", "2.a", "n9"), (1, "127.0.0.1", 2, "127.0.0.1"), (1, "localhost", 2, "n9"), (1, "n2.x", "2.y",
        "n2.x"))},
    "three lost one": "\n".join(LOST.format(n, "n9") for n in (1, 2, 3)) +
          "\nn4:7:7 [0] NCCL INFO Connection closed by remote peer n8<7>"}  # fmt: skip
KNOWN = logs(
    around("W:", "group_desc must not be None, Something new went wrong, NCCL_WORK_FIFO_BYTES=3 is being ignored "
                 "because it is not a power of 2., NET/OFI Unable to register memory (type = 2) for device 0. RC: "
                 "-12\\, Error: Cannot allocate memory, NET/OFI Couldn't create domain. RC: -12\\, ERROR: Cannot "
                 "allocate memory, NET/OFI Couldn't open CQ. RC: -12\\, ERROR: Cannot allocate memory, NET/OFI "
                 "Couldn't allocate endpoint. RC: -12\\, ERROR: Cannot allocate memory", "↵NCCL failure"),
    around("[rank3]: ERROR ", "Corrected error received x failed, Corrected error message received x failed, failed to "
          "listen on any local network address. Continuing, process group has NOT been destroyed before we destruct: "
          "failed, Unable to register cuDNN factory, Unable to register cuFFT factory, Unable to register cuBLAS "
          "factory, computation placer already registered, Guessing device ID based on global rank, OMP_NUM_THREADS "
          "environment variable failed, couldn't load driver, ignore_errors failed, pip's dependency resolver failed, "
          "failed: errors 0, error_file failed, NET/Plugin: Could not find x, libibverbs: Warning: x failed, "
          "FutureWarning: failed, UserWarning: failed, DeprecationWarning: failed, Call to bind failed, client "
          "reregistration failed, recvVector failed on x, recvValue failed on x, sendBytes failed on x, slot 3 failed",
          "↵NCCL failure"),
    around("W:", "Unrecognized element token, Unrecognized prefix token, All entries except the first must have a "
          "prefix, no algorithm/protocol available, No algorithm/protocol nor symKernelId available, no symmetric "
          "kernel available, algSelection names only symmetric kernel(s) that are unavailable, Invalid NCCL_COMM_ID, "
          "Could not force merge NICs"),
    around("n1:7:7 [0] NCCL TRACE ", "GPU is lost, unhandled system error"))  # fmt: skip
EACH = logs(
    """\
33m  Normal  NodeNotReady  node/n7  Node n7 status is now: NodeNotReady↵[rank1]: RuntimeError: x
33m  Normal  NodeNotReady  node/n7  Node n7 status is now: NodeNotReady↵[rank1]: step 7 loss 2
[rank3]: Traceback (most recent call last):↵[rank3]:   File "optim.py", line 12, in step↵[rank3]: AssertionError: Rank \
3: found NaN in local grad norm in backward pass before data-parallel communication collective. Device: 3, node: n1
[rank3]: Traceback (most recent call last):↵[rank3]:   File "ckpt.py", line 12, in load↵[rank3]: RuntimeError: cannot \
restore step 100: unexpected key
[rank1]: Traceback (most recent call last):↵[rank1]:   File "train.py", line 12, in <module>↵[rank1]: ImportError: \
/x/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEab
[rank1]: Traceback (most recent call last):↵[rank1]:   File "train.py", line 12, in <module>↵[rank1]: RuntimeError: \
Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your \
module has parameters that were not used in producing loss. You can enable unused parameter detection by passing the \
keyword argument `find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`
[rank1]: Traceback (most recent call last):↵[rank1]:   File "train.py", line 12, in <module>↵[rank1]: TypeError: Input \
tensor data type is not supported for NCCL process group: UInt16
Root Cause (first observed failure):↵[0]:↵  time      : 2026-01-02_03:04:05↵  host      : n2↵  rank      : 3 \
(local_rank: 1)↵  exitcode  : 1 (pid: 77)↵  error_file: /tmp/e/error.json↵  traceback : Traceback (most recent call \
last):↵    File "train.py", line 12, in main↵  ValueError: batch 17 holds no tokens↵========
multiprocess.pool.RemoteTraceback: ↵\"""↵Traceback (most recent call last):↵  File "/x/datasets/formatting.py", line \
280, in __getitem__↵    value = self.data[key]↵KeyError: 'conversations'↵\"""↵↵The above exception was the direct \
cause of the following exception:↵↵Traceback (most recent call last):↵  File "launcher.py", line 23, in <module>↵    \
launch()↵KeyError: 'conversations'
Traceback (most recent call last):↵  File "/x/ray/train/utils.py", line 43, in check↵    \
ray.get(ref)↵ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.
Exception ignored in: <function Pool.__del__ at 0x7f>↵Traceback (most recent call last):↵  File "pool.py", line 1, in \
__del__↵AttributeError: _state
[rank0]: Traceback (most recent call last):↵[rank0]: RuntimeError: Connection closed by peer↵Root Cause (first \
observed failure):↵[0]:↵  time      : 2026-01-02_03:04:05↵  host      : n2↵  rank      : 3 (local_rank: 1)↵  exitcode  \
: 1 (pid: 77)↵  error_file: <N/A>↵  traceback : To enable traceback see: \
https://pytorch.org/docs/stable/elastic/errors.html↵========
Root Cause (first observed failure):↵[0]:↵  time      : 2026-01-02_03:04:05↵  host      : n2↵  rank      : 3 \
(local_rank: 1)↵  exitcode  : 3 (pid: 77)↵  error_file: <N/A>↵  traceback : none: that is the verdict FAIL above, not \
a crash see: https://pytorch.org/docs/stable/elastic/errors.html↵========
W:Cuda failure 2 'out of memory'↵W:Failed to CUDA calloc async 6291456 bytes
I:Bootstrap : Using eth0:10.0.0.1<0>↵WARNING - CUDA out of memory. Trying half the batch↵loss 2.1
XlaRuntimeError: Barrier timed out. Timed out task names:↵/job:jax_worker/replica:0/task:3
UNAVAILABLE: tasks are unhealthy (stopped sending heartbeats):↵/job:jax_worker/replica:0/task:3
[ 0.41] DMAR: IOMMU enabled↵[ 0.41] AMD-Vi: Interrupt remapping enabled
I:Bootstrap : Using eth0:10.18.3.10<0>↵n2:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.18.3.10<0>↵[rank0]: step 9 loss \
2↵[rank1]: step 9 loss 2↵[rank1]: RuntimeError: x
[W socket.cpp:697] [c10d] The IPv4 network addresses of (head-0, 29500) cannot be retrieved (gai error: -3 - Temporary \
failure in name resolution).↵[E socket.cpp:1013] [c10d] The client socket has timed out after 60000ms while trying to \
connect to (head-0, 29500).
[W socket.cpp:697] [c10d] The IPv6 network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 - Name or \
service not known).↵[E socket.cpp:1013] [c10d] The client socket has timed out after 60000ms while trying to connect \
to (10.0.0.1, 29500).
I:NCCL version 2.24.3+cuda12.6↵n1:7:7 [0] include/alloc.h:140 NCCL WARN Cuda failure 304 'operation not permitted'
I:NCCL version 2.27.3+cuda12.8↵W:Cuda failure 'OS call failed or operation not supported on this OS'
""",
    f"""Traceback (most recent call last):↵  File "hub.py", line 1, in get↵KeyError: 'etag'↵retrying↵\
{"step: loss 2↵" * 199}step: loss 2""")  # fmt: skip
TABLES = {"crashes": of(CRASHES), "exits": of(EXITS), "exceptions": of(EXCEPTIONS), "calls": of(CALLS)}
TABLES |= {"more": of(MORE), "collectives": of(COLLECTIVES), "silent": of(SILENT), "known": of(KNOWN), "each": of(EACH)}
