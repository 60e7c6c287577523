"""Logs in which a line says why: amid wrappers, beside conditions of slow and hung jobs, before the steps of a job.

`tests.log.whole` says how to read them.
"""

from tests.log.whole import INFO, RULE, TRACE, of, repeated, steps, watchdog

NINE, THREE = steps(0, 9), steps(0, 3)
EXITED = "srun: error: n7: tasks 0-7: Exited with exit code 255"
GAVE_UP = watchdog(1, 2, 3, number=1)
COMPLETE = repeated((0, 1), "n<>:7:9 [0] NCCL INFO comm 0x<> rank <> nranks 2 cudaDev 0 busId 7000 - Init COMPLETE")
BARRIER = (
    "INFO: Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 "
    "(world_size=4, worker_count={}, timeout=0:30:00)")  # fmt: skip
BOTH = "n0:7:7 [0] NCCL INFO Bootstrap : Using {}:10.0.0.0<0>\nn1:7:7 [0] NCCL INFO Bootstrap : Using {}:10.0.0.1<0>"
FROB = (
    "n0:7:9 [0] frob.cc:9 NCCL WARN NET/Frob Could not find any optimal frob\nn0:7:9 [0] NCCL INFO Using network Frob"
)
OFI = "n0:7:9 [0] NCCL INFO NET/OFI GDR disabled on GDR-supported instance type p5.48xlarge"
REFUSED = "n0:7:9 [0] NCCL WARN Bootstrap : no socket interface found"
SOCKET = f"{INFO} Using network Socket"
SLOW = {
    "IB disabled": f"{INFO} NCCL_IB_DISABLE set by environment to 1.",
    "sockets": f"{INFO} NET/IB : No device found.\n{SOCKET}",
    "mixed links": f"{INFO} NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"}  # fmt: skip
HUNG = {
    "a virtual interface beside a real one": BOTH.format("eth0", "veth1a2b"),
    "workers too many": BARRIER.format(8)}  # fmt: skip
NO_CONDITION = {
    "interfaces alike": BOTH.format("eth0", "eth0"),
    "workers as wanted": BARRIER.format(4),
    "a setting that costs nothing": f"{INFO} NCCL_P2P_LEVEL set by environment to NVL",
    "links alike": f"{INFO} NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>",
    "the user calls it hung -- --hung": f"{INFO} NCCL version 2.28.9+cuda12.9",
    "the user calls it slow -- --slow": f"{INFO} NCCL version 2.28.9+cuda12.9"}  # fmt: skip
SAID = {
    "PBS": "=>> PBS: job killed: walltime 86412 exceeded limit 86400",
    "LSF's memory": "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
    "Docker": 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
    "JAX": "RuntimeError: Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices.",
    "NCCL's retries": repeated(range(30, 34), f"{INFO} socketPollConnect: connect returned No route to host, retrying "
                               "(<>/34)"),
    "a launcher": "launcher: rank 2 crashed with exit code -11.",
    "Dask": "distributed.nanny.memory - WARNING - Worker exceeded 95% memory budget. Restarting",
    "Mooncake": "E0102 03:04:05.678901 7 pool.cpp:9] slice failed (local_nic: mlx5_1, retry_cnt: 0): transport retry "
    "counter exceeded",
    "a kubelet": '9s   Warning   Failed   kubelet   Failed to pull image "zeta:v9": rpc error: not found',
    "a device": "WARN: device mlx5_1 cannot allocate buffer on the specified memory type. Skipping\nabort",
    "a host that Slurm cannot start on": "srun: error: Task launch for StepId=9.0 failed on node n1: Timed out",
    "Ray that lost a process": "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing.",
    "no GPU": f"{TRACE}\nRuntimeError: No CUDA GPUs are available",
    "mpirun": '/opt/bin/mpirun: Error: unknown option "-ppn"\nType mpirun --help',
    "MPI": "Fatal error in MPI_Allreduce: Invalid communicator, error stack:\nMPI_Allreduce(1007): failed",
    "the C library": "frob: pthread_create failed for thread 9 of 16: Resource temporarily unavailable",
    "another process": "frob: error: the accelerator is already in use by process 5521",
    "a signal in words": "2024-03-06T17:53:31Z ERROR launcher: Shard was signaled to shutdown with signal 4 rank=0",
    "a signal's stack": "*** SIGSEGV (@(nil)), see go/stacktraces#s15 received by PID 160 on cpu 100; stack trace: ***",
    "ssh": "root@n2: Permission denied (publickey,password).",
    "a lost process": "ERROR pool: frob 3 exited unexpectedly",
    "UARs, no memory": "zeta.cpp:3801: Unable to allocate 12 UAR of the NIC\nterminate called after throwing it",
    "memory": "zeta.cpp:3801: Unable to allocate 12.1 GiB\nterminate called after throwing an instance",
    "Ctrl-Z": "^Z\n[1]+  Stopped                 torchrun zeta.py",
    "Slurm's reason": "srun: error: Unable to allocate resources: Requested time limit is invalid",
    "CUDA's name of an error": "frob: 4 devices\n[CUDA_ERROR_NOT_SUPPORTED] operation not supported in cuFrob(3) on n2",
    "an NVSwitch": "[ 812.1] nvidia-nvswitch0: SXid (PCI:0000:c0:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "a step of Slurm": "slurmstepd: error: frob of the step went odd",
    "UCX": "[1700000000.1] [n0:7 :0] ib_frob.c:12 UCX  ERROR uct_frob() failed: odd"}  # fmt: skip
OPEN = {
    "a peer": "E1114 09:30:00.9 6946 x.cc:9] cannot open a connection to the peer",
    "a process that exited": "ERROR launcher: worker 1 exited with code 1, not found",
    "no reason": "E1114 09:30:00.9 6946 x.cc:9] operation failed"}  # fmt: skip
LINES = f"""\
{of(SLOW, after=COMPLETE, ending=" -- --exit-code")}
{of({f"{name}, and it was slow": text for name, text in SLOW.items()}, after=COMPLETE, ending=" -- --slow --exit-code")}
{of(HUNG, after=COMPLETE, ending=" -- --exit-code")}
{of({f"{name}, and it hung": text for name, text in HUNG.items()}, after=COMPLETE, ending=" -- --hung --exit-code")}
{of(NO_CONDITION, after=COMPLETE)}
%% sockets on one host
{SLOW["sockets"]}
n0:7:9 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 busId 7000 - Init COMPLETE
%% sockets between 32 ranks
{SLOW["sockets"]}
n1:7:9 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 32 cudaDev 0 nvmlDev 0 busId 1000 commId 0x7 - Init \
COMPLETE
step 10 | 41.2 s/it
%% a failure comes before what only costs time -- --exit-code
{OFI}
{REFUSED}
%% a line that no rule knows, where nothing failed -- --exit-code
{FROB}
%% a line that no rule knows, where something failed -- --failed --exit-code
{FROB}
%% a plugin that is not needed -> none
n1:7:9 [0] x.cc:7 NCCL WARN NET/OFI Unable to find a protocol that worked.  Failing initialization.
n1:7:9 [0] NCCL INFO Using network Socket
%% a plugin that failed with the last words
n1:7:9 [0] NCCL INFO Channel 00
n1:7:9 [0] x.cc:7 NCCL WARN NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument
{of({f"after three steps, {name}": text for name, text in SAID.items()}, before=THREE)}
{of({f"what may follow from others, {name}": text for name, text in OPEN.items()}, after=EXITED)}
%% an NVSwitch's fault that is not fatal -> none
[ 812.1] nvidia-nvswitch0: SXid (PCI:0000:c0:00.0): 20034, Non-fatal, Link 30 LTSSM Fault Up
%% what the container said before Slurm
slurmstepd: error: pyxis: container start failed with error code: 1
slurmstepd: error: pyxis: printing enroot log file:
slurmstepd: error: pyxis:     frobctl: failed to open slot 3: not mounted
srun: error: Task launch for StepId=96.0 failed on node n2: Invalid job credential
%% what another rank says contradicts no cause
[rank1]: [1.2] [n1:7:0] ib_frob.c:3 UCX  ERROR frob of slot 3 not found
[rank0]: torch.OutOfMemoryError: CUDA out of memory.
%% a rank that heard of a timeout did not have it
[rank0]:[E804 23:05:54.817424543 ProcessGroupNCCL.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank 0] Received a dump \
signal due to a collective timeout from  rank 5 and we will try our best to dump the debug info.
%% a rank that passed a signal on
[rank0]:[E806 21:05:54.816499929 ProcessGroupNCCL.cpp:1849] [PG ID 0 PG GUID 0(default_pg) Rank 0] Observed flight \
recorder dump signal from another rank via TCPStore.
{watchdog(9, when="806 21:05:54.105499929")}
%% an abort of MPI after its reason
Fatal error:
The grid of frobs needs -npme
MPI_ABORT was invoked on rank 0 in communicator X
%% a core dump after its reason
2025-03-04 F frob.h:80] UNAVAILABLE: tasks are unhealthy (stopped sending heartbeats): /job:w/task:2.
Aborted (core dumped)
%% a watchdog's line that was cut within parentheses
[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77,
OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800090
milliseconds.
%% a store that was reached before
{NINE}
WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'n4_882_0' has failed to shutdown the \
rendezvous '2f1c' due to an error of type RendezvousConnectionError.
%% a store that ends after the ranks met
srun: error: n1: task 0: Exited with exit code 1
[2024-10-16 13:53:06,832] torch.distributed.elastic.rendezvous.dynamic_rendezvous: [WARNING] The node 'n2_4' has \
failed to send a keep-alive heartbeat to the rendezvous '17234' due to an error of type RendezvousConnectionError.
{TRACE}
torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection has failed
%% a container's program is missing, four times
{repeated(range(4), f"FATAL:   'bris<>': executable file not found in $PATH{chr(10)}{EXITED}")}
%% argparse says it above a launcher's traceback
usage: train.py [--a]
train.py: error: unrecognized arguments: --b7
run: train.py --steps=2000
{TRACE}
subprocess.CalledProcessError: Command 'python train.py' returned non-zero exit status 2.
%% a disk is full, behind a prefix of the platform
2026-04-02 06:01:12.977 [9/fit/3 (pid 28)] [0c5c] Traceback (most recent call last):
2026-04-02 06:01:12.977 [9/fit/3 (pid 28)] [0c5c]   File "/x/io.py", line 9, in save
2026-04-02 06:01:12.977 [9/fit/3 (pid 28)] [0c5c] OSError: [Errno 28] No space left on device
%% Open MPI explains between two rules
OPAL ERROR: Unreachable in file pmix_client.c at line 9
{RULE}
The application was launched directly, but
OMPI cannot start, as it was not built for it. There
are several ways:

  v9: build.
{RULE}
*** An error occurred in MPI_Init
*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
%% mpirun's page after ssh's own words
n4: ssh_dispatch_run_fatal: Connection to 10.0.0.4 port 22: incorrect signature
{RULE}
ORTE was unable to reliably start one or more daemons.
This usually is caused by:

* not finding the required libraries
{RULE}
%% a signal that mpirun forwards
{THREE}
^Zmpiexec: Forwarding signal 20 to job
{RULE}
ORTE has lost communication with a remote daemon.
{RULE}
%% a worker's own words before its server's
ERROR 06-11 10:12:44 [frob.py:23] ValueError: 12 heads are fewer than 16 ranks
ERROR 06-11 10:12:45 [multiproc_executor.py:140] Worker proc W-3 died unexpectedly, shutting down.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
%% a logger writes each line of a traceback
2025-01-05 10:10:20 | INFO | run: train.py
2025-01-05 10:10:21 | ERROR | Traceback (most recent call last):
2025-01-05 10:10:21 | INFO |   File "zeta.py", line 40, in <module>
2025-01-05 10:10:21 | INFO |     main(cfg)
2025-01-05 10:10:21 | INFO | zeta.errors.TableIsTorn: row 7
%% a logger in JSON says why beside its message
{{"level":"info","msg":"zeta starts"}}
{{"level":"error","ts":"2025-05-02T10:00:09Z","msg":"gave up","error":"table 7 has wrong checksum"}}
{{"level":"info","msg":"exit code 3"}}
%% a provider warns and its process aborts
9: libfabric:77:169::zeta:ep:zeta_send():5<warn> the transmit queue is exhausted
9: Program received signal SIGABRT: Process abort signal.
9: Backtrace for this error:
%% what NCCL said last, beneath torch's exception
[rank0]: {TRACE}
[rank0]: torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled cuda error, NCCL version 2.27.3
[rank0]: ncclUnhandledCudaError: Call to CUDA function failed.
[rank0]: Last error:
[rank0]: Cuda failure 217 'peer access is not supported between these two devices'
%% the first of two errors before an exception has the reason
E0801 10:00:00.1 99 rdma_context.cpp:512] Failed to open mlx5_7: no active port
E0801 10:00:00.2 99 zeta.cpp:88] Failed to install the transport
{TRACE}
RuntimeError: zeta did not begin
%% MPICH's head has the reason
Abort(6) (rank 0 in comm 0): Fatal error in PMPI_Send: Invalid rank, error stack:
PMPI_Send(9): MPI_Send(buf=0x7, count=1) failed
srun: error: n1: task 0: Exited with exit code 255
%% MPICH's innermost call has the reason
Abort(6) (rank 0 in comm 0): Fatal error in PMPI_Send: Other MPI error, error stack:
PMPI_Send(9): MPI_Send(buf=0x7, count=1) has no such rank
srun: error: n1: task 0: Exited with exit code 255
%% a GPU is lost among errors of PCIe that were corrected
[ 5.000001] pcieport 0000:40:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)
Unable to determine the device handle for GPU0000:41:00.0: GPU is lost.  Reboot the system
%% a machine was reclaimed
{THREE}
{{"Events":[{{"EventType":"Preempt","Resources":["vm-7"]}}]}}
[rank4]: RuntimeError: NCCL error in: a.cpp:1, remote process exited or there was a network error
%% a crash stands beneath what its process said just before
{steps(0, 2)}
[n1:56309:2] [n1:56309:2]  ucp_rkey.c:250 UCX  ERROR Failed to unpack remote key: Input/output error
[n1:56309:2:56362] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x20)
%% what a logger could not format ends nothing
{steps(0, 2)}
--- Logging error ---
{TRACE}
TypeError: not all arguments converted during string formatting
Call stack:
{TRACE}
AttributeError: 'DistributedDataParallel' object has no attribute 'embed_dim7'
%% a rank that names its own failure leaves no other absent
[0] rank:0 INFO broadcast of variables
[1] rank:1 INFO receive variables
[1] Traceback (most recent call last):
[1]   File "a.py", line 3, in run
[1] tensorflow.errors.UnknownError: ncclCommInitRank failed: unhandled cuda error
%% a message beneath its exception
{TRACE}
AssertionError:
The NVIDIA driver on your system is too old (9000).
%% a proxy passes on that a peer closed
n1:7:9 [1] p.cc:1 NCCL WARN [Proxy Service 1] Failed to execute operation Connect from rank 1, retcode 6
n1:7:8 [1] misc/socket.cc:538 NCCL WARN Net : Connection closed by remote peer n4<59227>
n1:7:8 [1] NCCL INFO misc/socket.cc:546 -> 6
%% a warning with nothing else in the log
[rank6]:[W729 10:15:17.5 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=76, addr=[localhost]:60950, \
remote=[localhost]:29500): Connection reset by peer
Exception raised from recvBytes at Utils.hpp:675:
frame #0: c10::Error::Error(c10::SourceLocation) + 0x98 (0x7faded9785e8 in /x/libc10.so)
%% a table between two rules
{RULE}
loss  failed  aborted  invalid  lr  time
{RULE}
%% a pod that got a node later
5m   Warning   FailedScheduling   pod/w-0   0/4 nodes are available
4m   Normal   Scheduled   pod/w-0   Successfully assigned default/w-0 to n1
%% ssh was refused once -> none
kex_exchange_identification: Connection closed
again in 5 s
{NINE}
"""
SHARD, SAVED = "ERROR trainer: the shard is broken", "INFO trainer: saved"
LIMITS = {
    **{f"{n} lines after a failure of its program": f"Error: the vocabulary is gone\n{repeated(range(n), 'INFO ok <>')}"
       for n in (29, 31)},
    **{f"{n} lines after words of a failure": f"loader: failed to map a shard\n{repeated(range(n), 'INFO ok <>')}"
       for n in (5, 7)},
    **{f"{n} lines after a launcher": f"srun: error: n3: task 3: Exited with exit code 1\n{repeated(range(n), 'ok <>')}"
       for n in (59, 61)},
    **{f"a line {clock} after an error": f"2026-01-02 03:00:00 {SHARD}\n2026-01-02 {clock} {SAVED}"
       for clock in ("03:04:59", "03:05:01")},
    **{f"{n} steps after a failure": f"{steps(0, 5)}\nFailed to open /mnt/x\n{steps(5, 5 + n)}" for n in (1, 2, 3)},
    **{f"{n} steps after a login": f"Host key verification failed.\n{steps(0, n)}" for n in (9, 10, 11)},
    **{f"{n} lines between a consequence and its cause": "[rank3]: DistBackendError: NCCL error in: x.cpp:1, unhandled "
       f"system error\n{repeated(range(n), '[rank3]: step')}\n[rank3]: {REFUSED}" for n in (9, 11, 99, 101)},
    **{f"one gives up {s} s later": "\n".join(
        f"%- rank{rank}.log\n{watchdog(rank, when=f'1123 10:00:0{1 + s * (rank == 2)}.0')}" for rank in range(4))
       for s in (2, 4)}}  # fmt: skip
AT_START = {
    "a refused login": "Host key verification failed.",
    "no driver": "Failed to initialize NVML: Driver Not Loaded",
    "a busy GPU": "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\nretrying in 10 s",
    "cuBLAS": "UserWarning: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "no peer access": "WARNING custom_all_reduce.py:113] Custom allreduce is disabled: peer access is not supported "
    "between these two devices",
    "a limit": "n1:7:9 [0] misc/ibvwrap.cc:180 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
}
ECC = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
BARS = repeated((10, 20, 30), " <>%|##   | <>/100 [01:<><05:00, 1.0s/it]")
EFA = repeated(
    (1, 2),
    "n<>:7:9 [0] ofi_process_cq:1039 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 20. Error: unknown. "
    "Completed length: 0, Request: { buffer_index: 255, dev: 1, size: 0, state: CREATED, direction: SEND }",
)
STARTED = repeated(
    (1, 2),
    "n<>:7:7 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.<><0> [1]enP4s1:fe80::20d:<>%enP4s1<0>")  # fmt: skip
TO_LINK_LOCAL = "n2:7:9 [0] misc/socket.cc:4 NCCL WARN socketStartConnect: Connect to fe80::20d:1%enP4s1<4> failed : {}"
WORK = {
    "steps": steps(0, 20), "bars": BARS,
    "requests": '10.0.0.1 - - [02/Jan/2026 08:11:53] "POST /generate HTTP/1.1" 200 -', "one step": steps(0, 1),
    "bars of loading": "\n".join(f"Loading weights: {line}" for line in BARS.split("\n")),
    "a bar of data": "Generating train split: 50%|## | 50/100 [00:05<00:05, 9 examples/s]",
}  # fmt: skip
WORKED = f"{steps(0, 30)}\n{GAVE_UP}"
BEFORE_STEPS = f"""\
{of({f"{name} before 60 steps": text for name, text in AT_START.items()}, after=steps(0, 60), ending=" -> none")}
{
    of(
        {f"{name} before steps and a timeout": text for name, text in AT_START.items()},
        "",
        f"{steps(0, 30)}{chr(10)}{GAVE_UP}",
    )
}
{of({f"{name} before three steps": text for name, text in AT_START.items()}, after=THREE)}
%% steps do not outlive a traceback
{TRACE}
FooError: x
{steps(0, 30)}
%% steps do not outlive what the kernel says
Nov 28 02:11:01 n1 kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=9, GPU has fallen off the bus.
{steps(0, 30)}
{GAVE_UP}
%% steps do not outlive what is set
{INFO} NCCL_IB_HCA set to mlx5_0
{INFO} Failed to open libibverbs.so[.1]
{steps(0, 30)}
{
    of(
        {"steps that a full buffer brought late": AT_START["a limit"], "and after ECC": ECC},
        "",
        f"{steps(0, 60)}{chr(10)}srun: error: n1: task 0: Exited with exit code 1",
    )
}
%% steps of another rank
{ECC}
{repeated(range(30), "[rank0]: iteration <>/ 100 | loss 2.1")}
{of({f"EFA after {name}": text for name, text in WORK.items()}, after=EFA)}
{
    of(
        {f"link-local addresses after {name}": text for name, text in WORK.items()},
        STARTED,
        TO_LINK_LOCAL.format("Connection timed out"),
    )
}
%% steps of another log are of the same job
%- a.log
{steps(0, 20)}
%- b.log
{EFA}
"""
TEXTS = (LINES, BEFORE_STEPS, of(LIMITS))
