"""Logs of several ranks and hosts: who fell silent, who stands elsewhere, what kernels say, what people paste beside.

`tests.log.whole` says how to read them.
"""

import json
import re
from collections.abc import Mapping, Sequence

from tests.log.whole import CLOSED, CLOSING, INFO, TRACE, WAITED, of, ranks, repeated, said_by, steps, watchdog

NCCL_ERROR = "torch.distributed.DistBackendError: NCCL error in: a.cpp:1, remote process exited or there was"
CLOSED_BY = "socketProgress: Connection closed by remote peer"
STEPS = "\n".join(f"2026-11-23 10:00:{step:02d} step {step} loss 2.0" for step in range(7))
BEGUN = "n{}:4{}:9 [0] NCCL INFO comm 0x5 rank {} nranks 4 cudaDev 0 busId 7000 commId 0x9 - Init COMPLETE"
SRUN = "\n".join(f"{rank}: step {step}" for step in range(5) for rank in range(4))
NO_ID = (
    "is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but "
    "store->get('0') got error: Socket Timeout")  # fmt: skip
KERNEL = "2026-03-11T10:04:34.1+00:00 n1 kernel:"


def four(lost: int, **more: str) -> str:
    """Return the logs of four ranks, two to a host, of which one ends without a word, and what else was given."""
    raised = {rank: "" if rank == lost else f"\n{said_by(rank, NCCL_ERROR)}" for rank in range(4)}
    logs = {f"rank{rank}.log": f"{BEGUN.format(rank // 2, rank, rank)}{raised[rank]}" for rank in range(4)}
    logs |= {name: f"{logs[name]}\n{text}" if name in logs else text for name, text in more.items()}
    return "\n".join(f"%- {name}\n{text}" for name, text in logs.items())


def plus(said: Mapping[int, str], rank: int, text: str) -> str:
    """Return the files of ranks that make steps, of which one says something of its own at its end."""
    return ranks(said).replace(f"%- rank{rank}.log\n{STEPS}", f"%- rank{rank}.log\n{STEPS}\n{text}")


ALL_BUT_1 = {0: CLOSED, 1: "", 2: CLOSED, 3: CLOSED}
ALL_BUT_2 = {0: WAITED, 1: WAITED, 2: "", 3: WAITED}
ALL_OF_A_HOST = "\n".join(
    f"%- rank{rank}.log\n{STEPS}"
    + (f"\nn{rank // 2}:7:7 [0] x.cc:9 NCCL WARN {CLOSED_BY} 10.0.0.3<4711>" if rank not in (4, 5) else "")
    for rank in range(8))  # fmt: skip
FILES = {
    "a rank of eight ends while the others lose it": ranks({rank: "" if rank == 1 else CLOSED for rank in range(8)}),
    "a rank of two ends while the other loses it": ranks({0: CLOSED, 1: ""}),
    "a host refuses the others": ranks({**dict.fromkeys((0, 1, 3), "RuntimeError: [gloo/pair.cc:7] connect "
        "[127.0.0.1]:4: Connection refused"), 2: ""}),
    "a rank that others only waited for": ranks(ALL_BUT_2),
    "a rank that lost connections where all others waited": ranks({**ALL_BUT_2, 2: CLOSED}),
    "a rank that ends with words of its own": plus(ALL_BUT_1, 1, "Failed to open shard 7"),
    "numbered files": "\n".join(f"%- workerlog.{rank}\n{STEPS}" + "\nW1123 10:00:09.1 77 init.cc:217] *** SIGTERM "
        "(@0x3e8) received by PID 77 from PID 7; ***" * (rank != 2) for rank in range(4)),
    "all ranks of a host": ALL_OF_A_HOST,
    "a log of the other of two ranks": f"%- a.log\n[rank0]: {CLOSED}\n%- b.log\n{TRACE}\nValueError: x",
    "two logs of one rank": "\n".join(f"%- {name}.log\n[rank0]: step 7\n{TRACE}\nValueError: x" for name in "ab"),
    "an empty log": f"{ranks({0: CLOSED, 1: CLOSED, 3: CLOSED})}\n%- rank2.log",
    "a rank without a log": plus({0: CLOSED, 1: CLOSED, 3: CLOSED}, 0, "started, world size 4"),
    "a rank without a log that others waited for": plus({0: WAITED, 1: WAITED, 3: WAITED}, 0, "world size 4"),
    "a reason that any rank gives": ranks({**ALL_BUT_1, 1: "ValueError: bad sample 17", 2: ""}),
    "nobody complains": ranks({0: "", 1: "", 2: ""}), "all complain": ranks(dict.fromkeys(range(4), CLOSED)),
    **{f"{n} of 16 have no log": plus(dict.fromkeys(range(16 - n), CLOSED), 0, "world size 16") for n in (7, 8)},
    "most say nothing": ranks({0: CLOSED, 1: "", 2: "", 3: ""}), "logs of some ranks": ranks({1: WAITED, 2: WAITED}),
    "a receiver of another size": plus({**ALL_BUT_1, 0: "", 1: CLOSED}, 0,
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at gloo/tcp/"
        "pair.cc:456] op.preamble.length <= op.nbytes. 20000 vs 10000."),
    "the same collective, given up later": "\n".join(
        f"%- rank{rank}.log\n{watchdog(rank, number=6, ms=12010, when=f'1123 10:00:0{9 if rank == 2 else 1}.0')}" for
        rank in range(4)),
    "a smaller group's size": plus({0: CLOSED, 1: CLOSED, 3: ""}, 0, "tensor parallel world size 2"),
    "one file of a host for each rank": "\n".join(f"%- out.h{rank}\nh{rank}:7:9 [0] NCCL INFO comm 0x1 rank {rank} "
        f"nranks 3 cudaDev 0 busId 7 commId 0xa - Init COMPLETE\nbatch {40 - rank} loss 2" + f"\nh{rank}:8:9 [0] "
        f"misc/socket.cc:49 NCCL WARN {CLOSED_BY} h1<40216>" * (rank != 1) for rank in range(3)),
    "all ranks of a host say nothing": "\n".join(f"%- {rank}.log\n{BEGUN.format(rank // 2, rank, rank)}" +
        f"\nn0:4{rank}:9 [0] misc/socket.cc:58 NCCL WARN {CLOSED_BY} n1<52123>" * (rank < 2) for rank in range(4)),
    "the kernel killed one": four(3, **{"kernel.n1.log": f"{KERNEL} Memory cgroup out of memory: Killed process 43"}),
    "a pod was killed": four(2, **{"pod.txt": "    State:   Terminated\n      Reason:  OOMKilled"}),
    "a GPU of a host failed": four(3, **{"kernel.n1.log": f"{KERNEL} NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', "
        f"name=<unknown>", "rank3.log": said_by(3, "RuntimeError: CUDA error: unspecified launch failure")}),
}  # fmt: skip
MONITOR = (
    "[rank<>]:[E731 22:25:41.1 ProcessGroupNCCL.cpp:1722] [PG ID 0 PG GUID 0(default_pg) Rank <>] Heartbeat monitor "
    "timed out! Process will be terminated after dumping debug info. workMetaList_.size()=0")  # fmt: skip
CALLED = "n1:10<>:10<> [<>] NCCL INFO AllReduce: opCount 6 sendbuff 0x7f recvbuff 0x7f count 4 datatype 7 op 0 comm 0x5"
ADDED = "INFO:torch.distributed.distributed_c10d:Added key: store_based_barrier_key:1 to store for rank: <>"
OLD_WATCHDOG = (
    "[default<>]:[E ProcessGroupNCCL.cpp:566] [Rank <>] Watchdog caught collective operation timeout: WorkNCCL("
    "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1806200 milliseconds before timing out.")  # fmt: skip
WRAPPED = '{{"log": "r<> {}\\n", "time": "2025-12-12T12:00:07Z"}}'
SILENT = f"""\
{of(FILES)}
%% the process to which all lost their connections
w-1:7:7 [0] x.cc:9 NCCL WARN {CLOSED_BY} w-2.job<4711>
w-3:7:7 [0] x.cc:9 NCCL WARN {CLOSED_BY} w-2.job<4711>
%% the task that srun saw end first
%- slurm-4711.out
{SRUN}
{repeated((0, 1, 3), f"<>: [rank<>]: {CLOSED}")}
srun: error: n1: task 2: Killed
srun: error: n0: tasks 0-1: Exited with exit code 1
%% a task that srun ended after the others
%- slurm-4711.out
{SRUN}
{repeated((0, 1, 3), f"<>: [rank<>]: {WAITED}")}
srun: error: n0: tasks 0-1: Exited with exit code 1
srun: error: n1: task 2: Killed
%% an exception of no known rank
world size 3
{TRACE}
{NCCL_ERROR}
{said_by(1, CLOSED)}
{said_by(2, CLOSED)}
%% the barrier at the start
{repeated((0, 1, 3), ADDED)}
Traceback (most recent call last):
torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on rank 0, for key: \
store_based_barrier_key:1 (world_size=4, num_workers_joined=3, timeout=0:30:00)
%% torchrun's prefixes
{repeated(range(8), "[default<>]:INFO:train: step=10 loss=2.1")}
{repeated(range(7), "[default<>]:INFO:train: step=20 loss=2.1")}
{repeated(range(7), OLD_WATCHDOG)}
%% Slurm's daemon writes under a task's label
%- 7.out
{repeated(range(6), "<>: building shard <>")}
{repeated(range(1, 6), f"<>: torch.distributed.DistBackendError: [<>] {NO_ID}")}
srun: error: node2: task 5: Exited with exit code 1
0: slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED ***
%% containers that a driver wraps number their lines
{repeated((0, 1, 2, 0, 1, 2), WRAPPED.format("round 7 loss=1.9"))}
{repeated((0, 2), WRAPPED.format("RuntimeError: [gloo/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:9"))}
%% a rank that was ended by its own monitor
{repeated((3,), MONITOR)}
n2:7:9 [1] transport/net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer 10.0.0.9<4> with \
status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 hca mlx5_1
%% a monitor after a collective that timed out
{watchdog(0, 1)}
{repeated((0,), MONITOR)}
%% ranks whose last line is the call have come to it
{repeated((0,), CALLED)}
{watchdog(0)}
{repeated((1,), CALLED)}
{watchdog(1)}
{repeated((2, 3), CALLED)}
%% ranks that all have ended but for one that waits
[2026-05-20 07:44:03,881][app.train][INFO] - rank 0: saving
[2026-05-20 07:44:03,881][app.train][INFO] - rank 1: done
{watchdog(0)}
"""
WAITS = ("all_reduce (torch/distributed/distributed_c10d.py:2450)", "wrapper (torch/distributed/c10d_logger.py:83)",
         "sync (trainer/loop.py:88)", "<module> (train.py:55)")  # fmt: skip
READS = ("wait (threading.py:320)", "get (queue.py:171)", "__next__ (torch/utils/data/dataloader.py:701)",
         "main (train.py:31)", "<module> (train.py:55)")  # fmt: skip
SAVES = ("barrier (torch/distributed/distributed_c10d.py:3680)", "save (train.py:12)", "<module> (train.py:55)")
NATIVE = (
    "ioctl (libc.so.6)", "0x7f12 (libcuda.so.580.65)", "cuStreamSynchronize (libcuda.so.580.65)", "sync (w.py:61)",
)  # fmt: skip
AT_BARRIER = ("barrier (torch/distributed/distributed_c10d.py:4812)", "run (vllm/engine.py:9)")
AT_PIPE = ("wait (multiprocessing/connection.py:1136)", "run (vllm/engine.py:7)")


def stack(frames: Sequence[str], command: str = "python train.py", pid: str = "7") -> str:
    """Return what py-spy prints of a process."""
    body = "\n".join(f"    {frame}" for frame in frames)
    return f'Process {pid}: {command}\nPython v3.11.9 (/usr/bin/python3)\n\nThread {pid} (idle): "MainThread"\n{body}'


def stacks(odd: Sequence[str], usual: Sequence[str] = WAITS, name: str = "%- spy_rank{}.txt", **how: str) -> str:
    """Return the stacks of four ranks, of which the third is elsewhere."""
    own = [{key: text.format(rank) for key, text in how.items()} for rank in range(4)]
    heads = [f"{name.format(rank)}\n" if name else "" for rank in range(4)]
    return "\n".join(f"{heads[rank]}{stack(odd if rank == 2 else usual, **own[rank])}" for rank in range(4))


def spied(called: bool) -> str:
    """Return a process of two threads as py-spy prints it in JSON."""
    step = {"name": "step", "filename": "/x/train.py", "short_filename": "train.py", "line": 9}
    call = {"name": "all_reduce", "filename": "/p/torch/distributed/distributed_c10d.py", "line": 7}
    frames = [[step], [call, step]][: 1 + called]
    return json.dumps([{"pid": 7, "thread_name": "MainThread", "owns_gil": False, "frames": each} for each in frames])


STACKS = of(
    {
        "by the file's name": stacks(READS),
        "by a line before it": stacks(READS, name="== rank {} =="),
        "by its command": stacks(READS, name="", command="python x --local_rank={}"),
        "by a log": stacks(READS, name="", pid="10{}") + "\n%- nccl.log\n" + repeated(range(4), "n1:10<>:7 [<>] NCCL "
            "INFO comm 0x5 rank <> nranks 4 cudaDev 0 - Init COMPLETE"),
        "in another call": stacks(SAVES),
        "in a library": stacks(NATIVE, SAVES, name="", command="sglang::scheduler_TP{}"),
        "a worker of vLLM": stacks(AT_PIPE, AT_BARRIER, name="", command="VLLM::Worker_TP{}"),
        "all workers in one call, and their server": f"{stack(AT_PIPE, 'VLLM::EngineCore')}\n"
        + stacks(AT_BARRIER, AT_BARRIER, name="", command="VLLM::Worker_TP{}"),
        **{f"beside {name}": f"{stack(AT_PIPE, name)}\n" + stacks(AT_BARRIER, name="", command="VLLM::Worker_TP{}") for
            name in ("vllm APIServer", "DPCoordinator", "sglang::detokenizer", "sglang::data_parallel_controller")},
        "beside workers of a loader": f"{stack(('wait (a.py:1)', '_worker_loop (worker.py:2)'))}\n{stacks(READS)}",
        "in seven places": "\n".join(f"%- spy_rank{n}.txt\n{stack((f'f{n} (train.py:{n})',) if n > 7 else WAITS)}" for n
            in range(14)),
        "no process in a call": stacks(READS, ("step (train.py:9)",)),
        "servers without workers": stacks(AT_PIPE, AT_BARRIER, name="", command="VLLM::EngineCore_{}"),
        "all in one call": stacks(WAITS),
        "without first lines": stacks(READS, name="", pid="10{}").replace("Process", "").replace("Python v3", ""),
        "a thread in a call": "\n".join(f"%- rank{rank}.json\n{spied(rank > 0)}" for rank in range(3)),
    }
)  # fmt: skip

REFUSED = "n1:7:9 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"
ROCE = "n1:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"
NO_ANSWER = (
    "n1:7:9 [0] transport/net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with error 12, opcode 0, "
    "len 0, vendor err 129 (Send)")  # fmt: skip
BARE = f"{NO_ANSWER} localGid fe80::1:2 remoteGid fe80::1:3"
INDEX = f"{INFO} NCCL_IB_GID_INDEX set by environment to 0."
XID = "Nov 28 02:11:01 n1 kernel: NVRM: Xid (PCI:0000:01:00): {}, RLW_RXPIPE {} XC0 i0 Link 13 (0x0 0x8)"
GAVE_UP = watchdog(1, 2, 3, ms=1800001, number=1, when="301 10:30:00.5")
BUILDS = "[rank0]: 2025-03-01 10:00:00 INFO building the index on rank 0"
LATER = "[rank0]: 2025-03-01 10:31:00"
BLOCKED = "[ 812.1] INFO: task python:4242 blocked for more than 120 seconds."
STILL = "[ 812.1] nfs: server 10.0.0.9 not responding, still trying"
UNPLACED = "2m  Warning  FailedScheduling  pod/w-1  0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
OF_ONE_POD = "  Warning  FailedScheduling  9m12s  default-scheduler  0/4 nodes are available: 4 Insufficient gpu."
PLACED = "1m  Normal  Scheduled  {}  Successfully assigned default/w-1 to n4"
JOINING = "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined."
OOM = "2026-11-08 23:44:19 | WARNING | trainer | OOM: CUDA out of memory. Tried to allocate 1.95 GiB (GPU 2; 23 GiB)"
DIFFER = f"{TRACE}\nFloatingPointError: gradients differ"
STARTED = "n{0}:7:7 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.{0}<0> [1]enP4s1:fe80::20d:{0}%enP4s1<0>"
TO_LINK_LOCAL = "n2:7:9 [0] misc/socket.cc:4 NCCL WARN socketStartConnect: Connect to fe80::20d:1%enP4s1<4> failed : {}"


def bar(done: int, title: str = "Tokenizing") -> str:
    """Return a progress bar."""
    return f"{title}: {done // 10:3d}%|##        | {done}/1000 [{done // 4}:09<95:01, 1.98it/s]"


def cut(text: str, width: int) -> str:
    """Return lines as a terminal of that width shows them."""
    return "\n".join(line[at : at + width] for line in text.split("\n") for at in range(0, len(line), width))


def nfs(*said: str) -> str:
    """Return what kernels say of a file server, which is silent unless "OK" stands there, before ranks give up."""
    lines = [each if each.endswith("OK") else f"{each} not responding, still trying" for each in said]
    kernels = [re.sub(r"^(\S+ \S+) ", r"Mar  1 \1 kernel: nfs: server nas7 ", line) for line in lines]
    return "\n".join([*kernels, GAVE_UP])


def trained(first: int, last: int, seconds: int, begin: int = 0) -> str:
    """Return the steps of a rank with their times."""
    at = [(step, begin + seconds * (step - first)) for step in range(first, last)]
    return "\n".join(
        f"2026-11-20 {8 + s // 3600:02}:{s // 60 % 60:02}:{s % 60:02} INFO step {step} loss 2.1" for step, s in at
    )


PASTED = of(
    {
        "a limit that is not there, by ulimit": f"{REFUSED}\n$ ulimit -l\nunlimited",
        "a limit that is not there, by a table": f"{REFUSED}\nmax locked memory       (kbytes, -l) unlimited",
        "a limit that is not there on another host": f"%- a.log\n{REFUSED}\n%- shell.log\nn2:8:8 [0] NCCL INFO "
        "Bootstrap : Using eth0:10.0.0.2<0>\n$ ulimit -l\nunlimited",
        "a limit of 64": f"{REFUSED}\n$ ulimit -l\n64", "GIDs without an address": f"{INDEX}\n{ROCE}\n{BARE}",
        "a GID's two halves": f"{ROCE}\n{INFO} NET/IB: Dev 0 Port 1 qpn 9 mtu 3 GID 0 (80FE/F6999FC9)\n{NO_ANSWER}",
        "GIDs of InfiniBand": f"{ROCE.replace('RoCE', 'IB')}\n{BARE}",
        **{f"GIDs {own} and {peer}": f"{ROCE}\n{NO_ANSWER} localGid {own} remoteGid {peer}" for own, peer in ((
            "::ffff:10.0.0.1", "::ffff:10.0.0.2"), ("fe80::1", "::ffff:10.0.0.2"))},
        **{f"a link-local address, {error}": f"{STARTED.format(1)}\n{STARTED.format(2)}\n{TO_LINK_LOCAL.format(error)}"
            for error in ("Software caused connection abort", "No route to host", "Connection refused")},
        "EFA of one host": "n1:7:9 [0] ofi_process_cq:1039 NCCL WARN NET/OFI Request 0x7f completed with error. RC: "
        "20. Error: unknown error. Completed length: 0, Request: { dev: 1, size: 0, state: CREATED, direction: SEND }",
        "a driver's message is of one host": "Oct 25 06:04:11 n1 kernel: NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "Oct 25 06:04:11 n2 kernel: NVRM: The NVIDIA GPU 0000:c3:00.0\n"
        "Oct 25 06:04:11 n1 kernel:        NVRM: fallen off the bus and is not responding to commands.",
        "an Xid that is not fatal": f"{XID.format(145, 'Nonfatal')}\n{steps(1, 9)}",
        "an Xid that is fatal": f"{XID.format(145, 'Fatal')}\n{steps(1, 9)}",
        "no peer access": "RuntimeError: CUDA error: peer access is not supported between these two devices",
        "a bar that goes on": "\n".join((bar(100), bar(110), watchdog(1, ms=1803472), bar(120))),
        "a bar that goes on, before a store": "\n".join((bar(100), bar(110), f"RuntimeError: [1] {NO_ID}", bar(120))),
        "a bar that stands": "\n".join((bar(100), watchdog(1, ms=1803472), bar(100))),
        "another bar": "\n".join((bar(100), watchdog(1, ms=1803472), bar(300, "Epoch 3"))),
        **{f"memory full, expected {n} lines below": f"{OOM}\n{repeated(range(1, n), 'zorp <>')}\nit fired as expected"
            for n in (10, 11)},
        "memory full on one rank": f"{OOM}\n{DIFFER}",
        "memory full, and steps": f"{steps(0, 5)}\n{OOM}\n{steps(5, 40)}",
        "memory full, steps and another end": f"{steps(0, 5)}\n{OOM}\n{steps(5, 90)}\n{DIFFER}",
        **{f"a full cgroup, {limit}": f"python invoked oom-killer: gfp_mask=0x140cca, order=0\nCall "
            f"Trace:\noom-kill:constraint=CONSTRAINT_{limit},task=python,pid=7" for limit in ("MEMCG", "NONE")},
        "a pod without a node": f"{UNPLACED}\n{JOINING}", "a pod without a name": f"{OF_ONE_POD}\n{JOINING}",
        "a pod, and steps": f"{UNPLACED}\n{steps(0, 9)}",
        "a pod that was placed": f"{OF_ONE_POD}\n{PLACED.format('8m  default-scheduler')}\n{JOINING}",
        "a pod of another job": f"w-1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
        f"{PLACED.format('pod/w-1')}\n{UNPLACED.replace('w-1', 'other-job-0')}\n{JOINING}",
        "lines that a terminal cut": cut(f"starting the job with a long line of options --alpha 1 --beta 2 --gamma "
            f"3\n{watchdog(1)}\nend of it", 60),
        "lines that a wide terminal cut": f"{'please help with what follows, ' * 6}\n{cut(GAVE_UP, 120)}",
        "rows of one width": repeated((1, 2, 3, 4), "step <> | loss 2.1000 | lr 1.000e-04 | grad norm 0.900 | 12345.6 "
            "tok/s | 31.2 GiB") + "\nsrun: error: n2: task 3: Killed",
        "a rank that wrote on": f"{BUILDS}\n{GAVE_UP}\n{LATER} INFO built 30 of 90 shards",
        "a rank that wrote nothing more": f"{BUILDS}\n{GAVE_UP}",
        "a rank that was ended later": f"{BUILDS}\n{GAVE_UP}\n{LATER} Received SIGTERM, shutting down",
        "a monitor that wrote on": f"{BUILDS}\n{GAVE_UP}\n{LATER} gpu_monitor: util 100% mem 71 GiB",
        "a rank that saves": f"{BUILDS}\n{GAVE_UP}\n{LATER} INFO util.py:88 saving shard 7 of 16",
        "a rank that raised before": f"[rank0]: 2025-03-01 10:00:00 KeyboardInterrupt\n{GAVE_UP}",
        "a file server": f"{STILL}\n{GAVE_UP}", "a process blocked in the kernel": f"{BLOCKED}\n{GAVE_UP}",
        "a file server that came back": f"{STILL}\n[ 818.1] nfs: server 10.0.0.9 OK\n{GAVE_UP}",
        "a file server of a job at work": f"{STILL}\n{BLOCKED}\n{steps(0, 9)}",
        "a blocked process whose GPU is off the bus": f"{XID.format(79, 'Fatal')}\n{BLOCKED}\n{GAVE_UP}",
        "a file server that came back for one host": nfs("10:00:00 n1", "10:00:01 n2", "10:01:00 n1 OK"),
        "a file server that came back for a while": nfs("09:00:00 n1", "09:00:30 n1 OK", "10:01:00 n1"),
        **{f"a file server silent since {time} the day before": nfs(f"{time} n1").replace("Mar  1", "Feb 28") for time
            in ("10:30:00", "10:31:00")},
        "ranks of which one stands": "\n".join(f"%- rank{rank}.log\n{trained(0, 30 if rank != 5 else 23, 10)}" for rank
            in range(8)),
        "ranks that ended well": "\n".join(f"%- rank{rank}.log\n{trained(0, 20 + rank, 10)}" for rank in range(4))
        + f"\n{CLOSING}",
        "hosts that number their lines": repeated(range(4), "2026-11-20T08:00:00 - <> - ckpt - INFO :: Saved step 100")
        + "\n" + repeated((0, 1, 3), "2026-11-20T08:00:09 - <> - ckpt - INFO :: Saved step 200"),
        **{f"steps that then take {s} s": f"{trained(0, 20, 10)}\n{trained(20, 30, s, 200)}" for s in (14, 29, 31, 90)},
        **{f"a rank silent for {s} s": f"%- a.log\n{trained(0, 20, 10)}\n%- b.log\n{trained(0, 20, 10)}\n2026-11-20 "
            f"08:0{(190 + s) // 60}:{(190 + s) % 60} INFO saved" for s in (59, 61)},
        "one of five ranks": "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/5",
        "a build": "world size: 8\nBuilding extension module softmax_cuda...",
        "other last lines": repeated(range(4), "[1,<>]<stderr>:rank <> MPI size: 4")
        + "\n" + repeated((0, 1, 3), "[1,<>]<stderr>:Loaded engine"),
        "a process in init": repeated((7, 9), "n1:<>:<> [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>")
        + "\nn1:7:8 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 7 commId 0xa - Init COMPLETE",
    }
)  # fmt: skip
IN_LIBRARY = 'Traceback (most recent call last):\n  File "/usr/lib/a.py", line 3, in f\n    g()'
FRAMEWORKS = f"""\
%% vLLM's wrapper
{IN_LIBRARY}
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
%% grad norms
grad_norm across the workers:
rank   0 = 43.87894113
rank   1 = 36.76721862
%% Lightning
[rank: 1] Child process with PID 4711 terminated with code 1. Forcefully terminating all other processes to avoid \
zombies
%% Ray's actor
{IN_LIBRARY}
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file.
%% Horovod's store
[1,3]<stderr>:[2024-01-06 11:41:34.489: E horovod/common/gloo/http_store.cc:96] HTTP GET request failed too many \
times, aborting. See exception message above.
%% Horovod's timeout
{IN_LIBRARY}
horovod.runner.common.util.timeout.TimeoutException: Timed out waiting for tasks to start. Please check connectivity \
between servers. You may need to increase
%% XLA's rendezvous
F0322 10:00:00.000000 77 rendezvous.cc:127] [id=7] Termination timeout for `first call to collective` of 40 seconds \
exceeded. Exiting to ensure a consistent program state. Expected 8 threads to join the rendezvous, but only 7
%% EFA's registration
[1038619.695161] infiniband efa_0: Failed to register mr [-12]
%% ROCm's queue
:0:rocdevice.cpp            :2984: 12.3 us: [pid:7 tid:0x7f] Callback: Queue 0x7f78cb400000 aborting with error : \
HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016
%% srun's launch
srun: error: timeout waiting for task launch, started 7 of 8 tasks
%% vLLM without P2P -> none
WARNING 06-30 13:53:19 [custom_all_reduce.py:144] Custom allreduce is disabled because your platform lacks GPU P2P \
capability or P2P test failed. To silence this warning, specify disable_custom_all_reduce=True explicitly.
INFO 06-30 13:53:59 [launcher.py:37] Route: /v1/completions, Methods: POST
%% vLLM's prompt
Prompt: 'EngineCore failed to start.', Generated text: ' See root cause above. Failed core proc(s)'
| 3 | TP=4 | Free memory on device (7.2/8.0 GiB) on startup is less than desired GPU memory utilization | failed |
%% SGLang -> none
[2025-03-17 17:15:55] Ignore import error when loading sglang.srt.models.phi4mm: No module named 'backoff'
[2025-03-17 17:15:58] WARNING: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.
[2025-03-17 17:16:55] The server is fired up and ready to roll!
%% Megatron -> none
WARNING:megatron.core.rerun_state_machine:Rank 3, node n7, device 3, iteration 7: Unexpected result 9.1 \
(message='loss is spiky')
 iteration 7/ 9 | lm loss: 9.1
 iteration 8/ 9 | lm loss: 3.1
 iteration 9/ 9 | lm loss: 3.0
%% fairseq that recovers -> none
2024-01-06 11:41:34 | WARNING | fairseq.trainer | attempting to recover from OOM in forward/backward pass
2024-01-06 11:41:39 | INFO | train_inner | epoch 001: 7 / 9 loss=3.1, gnorm=43.8
%% Lightning's hint -> none
The `srun` command is available on your system but is not used. HINT: If your intention is to run Lightning on SLURM, \
prepend your python command with `srun`
`Trainer.fit` stopped: `max_epochs=1` reached.
%% accelerate's kernel -> none
Detected kernel version 4.18.0, which is below the recommended minimum of 5.5.0; this can cause the process to hang.
{{'train_runtime': 7.1}}
%% TensorRT-LLM -> none
[TRT-LLM] [I] Hang detector enabled, timeout 300 seconds
%% Ray's metrics -> none
[2025-06-01 10:00:00,000 E 77 99] core_worker_process.cc:837: Failed to establish connection to the metrics exporter \
agent. Metrics will not be exported. Exporter agent status: RpcError: Running out of retries
Training finished successfully
%% Horovod -> none
[1,3]<stderr>:[2024-01-06 11:41:34.489: I horovod/common/operations.cc:681] Horovod initialized
%% XLA -> none
E0322 10:00:00.000000 77 rendezvous.cc:92] [id=7] This thread is unstuck waiting for `first call` after 10s. All \
threads joined the rendezvous on time however the leader took long time to complete it.
step 7 loss 2
%% EFA -> none
[    9.687627] infiniband efa_0: IB device registered
[    9.6] mlx5_core 0000:5e:00.0: E-Switch: Total vports 1
%% ROCm -> none
:3:rocdevice.cpp            :468 : 12.3 us: [pid:7 tid:0x7f] Initializing HSA stack.
%% HCCL's setting -> none
[rank1]: HCCL_CONNECT_TIMEOUT is 120; a socket times out after it, see EI0006
step 7 loss 2
%% bitsandbytes -> none
bitsandbytes was compiled without GPU support. 8-bit optimizers and GPU quantization are unavailable.
%% srun that waits -> none
srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)
srun: Step created for StepId=7.0
"""
NO_INTERFACE = "node1:77:77 [0] bootstrap.cc:126 NCCL WARN Bootstrap : no socket interface found"
UNHANDLED = "[rank3]: DistBackendError: NCCL error in: x.cpp:1, unhandled system error"
KILLED = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-22_10:00:00\n  host      : {}\n"
    "  rank      : 5 (local_rank: 1)\n  exitcode  : -11 (pid: 77)\n  error_file: <N/A>\n"
    "  traceback : Signal 11 (SIGSEGV) received by PID 77\n====")  # fmt: skip
LONE = repeated((4, 5), "%- rank<>\nn1:<>:<> [<>] NCCL INFO Bootstrap : Using {}<0>")
ECHO = (
    "%- rank0\n{}n0:6:6 [0] p2p.cc:1 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4> with status="
    "IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 hca mlx5_0")  # fmt: skip
PORT_DOWN = (
    "%- rank4\nn1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>\n{}n1:7:7 [0] net_ib.cc:1 NCCL WARN NET/IB : "
    "mlx5_0:1 Got async event : port error")  # fmt: skip
FIRST, LATER = "[2026-11-22 10:00:30] ", "[2026-11-22 10:01:30] "
CAUSES = of(
    {
        "a consequence beneath its cause": f"%- rank3\n{NO_INTERFACE}\n{UNHANDLED}",
        "two faults": f"%- launcher\n{KILLED.format('n2')}\n%- rank3\n{NO_INTERFACE}",
        **{f"{end.split()[0]} at {at}": f"%- launcher\n{end}\n{LONE.replace('{}', at)}" for end in (KILLED.format(
            "localhost"), "srun: error: gpu-0-1: task 5: Segmentation fault") for at in ("lo:127.0.0.1",
            "eth0:172.17.0.2")},
        **{f"a call that failed, {line[8:40]}": f"n1:7:9 [0] x.cc:1 NCCL WARN {line}\n[rank0]: NCCL failure" for line in
            ("NET/OFI Unable to register memory (type = 2) for device 0. RC: -12, Error: Cannot allocate memory",
            "NET/OFI Couldn't create domain. RC: -12, ERROR: Cannot allocate memory", "NET/OFI Couldn't create a "
            "domain. RC: -22, ERROR: Invalid argument", "[/x/gloo/transport/tcp/pair.cc:7] connect [10.0.0.7]:4: "
            "Connection refused", 'Unrecognized element token "Rng" when parsing "Rng"')},
        "NCCL's last error, as torch repeats it": "ncclSystemError: System call failed.\nLast error:\n"
        "nvmlDeviceGetHandleByIndex(3) failed: Unknown Error\nstep 7: Last error: none\nnvml() failed: x",
        "an echo at a peer": f"{ECHO.format('')}\n{PORT_DOWN.format('')}",
        "an echo after": f"{ECHO.format(LATER)}\n{PORT_DOWN.format(FIRST)}",
    }
)  # fmt: skip
TEXTS = (SILENT, STACKS, PASTED, FRAMEWORKS, CAUSES)
