"""Logs of jobs that went well, of several releases: lines made from format strings, in the order of their sources.

Each holds what makes a reader look twice: a library that is not there on a machine that needs none, a plugin that is
not found, retries before a success, names that resolve by one address family alone.
"""

from tests.log.whole import of

_BEFORE_2_12 = """\
{host}:{pid}:{pid} [{dev}] NCCL INFO Bootstrap : Using eth0:{address}<0>
{host}:{pid}:{pid} [{dev}] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation

{host}:{pid}:{pid} [{dev}] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]
{host}:{pid}:{pid} [{dev}] NCCL INFO NET/Socket : Using [0]eth0:{address}<0>
{host}:{pid}:{pid} [{dev}] NCCL INFO Using network Socket
NCCL version {version}+cuda11.0
{host}:{pid}:{tid} [{dev}] NCCL INFO Could not enable P2P between dev 0(=7000) and dev 1(=8000)
{host}:{pid}:{tid} [{dev}] NCCL INFO Call to connect returned Connection refused, retrying
{host}:{pid}:{tid} [{dev}] NCCL INFO Trees [0] 1/-1/-1->{rank}->-1|-1->{rank}->1/-1/-1
{host}:{pid}:{tid} [{dev}] NCCL INFO Channel 00 : 0[7000] -> 1[8000] via direct shared memory
{host}:{pid}:{tid} [{dev}] NCCL INFO 2 coll channels, 2 p2p channels, 2 p2p channels per peer
{host}:{pid}:{tid} [{dev}] NCCL INFO comm 0x7f{pid} rank {rank} nranks {size} cudaDev {dev} busId 7000 - Init COMPLETE
"""

_2_12_TO_2_20 = """\
{host}:{pid}:{pid} [{dev}] NCCL INFO cudaDriverVersion 12020
{host}:{pid}:{pid} [{dev}] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0
{host}:{pid}:{pid} [{dev}] NCCL INFO Bootstrap : Using eth0:{address}<0>
{host}:{pid}:{pid} [{dev}] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file \
or directory No plugin found (libnccl-net.so), using internal implementation
NCCL version {version}+cuda12.2
{host}:{pid}:{tid} [{dev}] NCCL INFO Failed to open libibverbs.so[.1]
{host}:{pid}:{tid} [{dev}] NCCL INFO NET/Socket : Using [0]eth0:{address}<0>
{host}:{pid}:{tid} [{dev}] NCCL INFO Using network Socket
{host}:{pid}:{tid} [{dev}] NCCL INFO comm 0x7f{pid} rank {rank} nranks {size} cudaDev {dev} nvmlDev {dev} busId 7000 \
commId 0x9 - Init START
{host}:{pid}:{tid} [{dev}] NCCL INFO Topology detection : could not read /sys/devices/system/node/node0/x, ignoring
{host}:{pid}:{tid} [{dev}] NCCL INFO KV Convert to int : could not find value of '' in dictionary, falling back to 60
{host}:{pid}:{tid} [{dev}] NCCL INFO Setting affinity for GPU {dev} to ffff
{host}:{pid}:{tid} [{dev}] NCCL INFO NVLS multicast support is not available on dev {dev}
{host}:{pid}:{tid} [{dev}] NCCL INFO P2P is disabled between connected GPUs 1 and 0. You can repress this message with \
NCCL_IGNORE_DISABLED_P2P=1.
{host}:{pid}:{tid} [{dev}] NCCL INFO GPU Direct RDMA Disabled for GPU 8000 / HCA 0 (distance 7 > 5)
{host}:{pid}:{tid} [{dev}] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
{host}:{pid}:{tid} [{dev}] NCCL INFO Connected all rings
{host}:{pid}:{tid} [{dev}] NCCL INFO Connected all trees
{host}:{pid}:{tid} [{dev}] NCCL INFO 2 coll channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer
{host}:{pid}:{tid} [{dev}] NCCL INFO comm 0x7f{pid} rank {rank} nranks {size} cudaDev {dev} nvmlDev {dev} busId 7000 \
commId 0x9 - Init COMPLETE
{host}:{pid}:{tid} [{dev}] NCCL INFO [Service thread] Connection closed by localRank {dev}
{host}:{pid}:{tid} [{dev}] NCCL INFO comm 0x7f{pid} rank {rank} nranks {size} cudaDev {dev} busId 7000 - Abort COMPLETE
"""

_FROM_2_24 = """\
{host}:{pid}:{pid} [{dev}] NCCL INFO ENV/Plugin: Could not find: libnccl-env.so
{host}:{pid}:{pid} [{dev}] NCCL INFO Bootstrap: Using eth0:{address}<0>
{host}:{pid}:{pid} [{dev}] NCCL INFO NCCL version {version}+cuda12.9
{host}:{pid}:{pid} [{dev}] NCCL INFO Stack size limit (unlimited) is unsafe; will use 8192KB for newly launched threads
{host}:{pid}:{tid} [{dev}] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.
{host}:{pid}:{tid} [{dev}] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin symbol (>= v5). ncclCollNetPlugin \
symbols v4 and lower are not supported.
{host}:{pid}:{tid} [{dev}] NCCL INFO NET/OFI No eligible providers were found
{host}:{pid}:{tid} [{dev}] NCCL INFO Failed to initialize NET plugin IB
{host}:{pid}:{tid} [{dev}] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:{address}<0>
{host}:{pid}:{tid} [{dev}] NCCL INFO Initialized NET plugin IB
{host}:{pid}:{tid} [{dev}] NCCL INFO Using network IB
{host}:{pid}:{tid} [{dev}] NCCL INFO DMA-BUF is available on GPU device {dev}
{host}:{pid}:{tid} [{dev}] NCCL INFO [Rank {rank}] ncclCommInitRank comm 0x7f{pid} rank {rank} nranks {size} cudaDev \
{dev} nvmlDev {dev} busId 7000 commId 0x9 - Init START

[2026-01-02 03:04:05] {host}:{pid}:{tid} [{dev}] ras/client_support.cc:160 NCCL WARN Call to bind failed: Address \
already in use
{host}:{pid}:{tid} [{dev}] NCCL INFO RAS failed to establish a client listening socket at localhost:28028
{host}:{pid}:{tid} [{dev}] NCCL INFO Continuing in spite of a RAS initialization error
{host}:{pid}:{tid} [{dev}] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'
{host}:{pid}:{tid} [{dev}] NCCL INFO MNNVL busId 0x7000 fabric UUID 0.0 cliqueId 0x0 state 3 healthMask 0x0
{host}:{pid}:{tid} [{dev}] NCCL INFO socketPollConnect: connect to {address}<40211> returned Connection refused, \
retrying (1/34) after sleep for 100 msec
{host}:{pid}:{tid} [{dev}] NCCL INFO socketFinalizeAccept: didn't receive a valid magic from 10.0.9.9<51123>
{host}:{pid}:{tid} [{dev}] NCCL INFO cuMem host allocations do not appear to be working; falling back to a /dev/shm/ \
based implementation. This could be due to the container runtime disabling NUMA support.
{host}:{pid}:{tid} [{dev}] NCCL INFO TUNER/Plugin: Could not find: libnccl-tuner.so libnccl-net.so. Using internal \
tuner plugin.
{host}:{pid}:{tid} [{dev}] NCCL INFO PROFILER/Plugin: Could not find: libnccl-profiler.so.
{host}:{pid}:{tid} [{dev}] NCCL INFO NCCL_PROTO set by environment to Simple
{host}:{pid}:{tid} [{dev}] NCCL INFO Symmetric memory is not supported. cuMemEnable 0, globalGinSupport 0

[2026-01-02 03:04:06] {host}:{pid}:{tid} [{dev}] transport/net_ib.cc:179 NCCL WARN NET/IB : mlx5_0:1 Got async event : \
client reregistration
{host}:{pid}:{tid} [{dev}] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
{host}:{pid}:{tid} [{dev}] NCCL INFO ncclCommInitRank comm 0x7f{pid} rank {rank} nranks {size} cudaDev {dev} nvmlDev \
{dev} busId 7000 commId 0x9 - Init COMPLETE
{host}:{pid}:{tid} [{dev}] NCCL INFO comm 0x7f{pid} rank {rank} nranks {size} cudaDev {dev} busId 7000 - Destroy \
COMPLETE
"""

_RELEASES = {
    "2.10.3": _BEFORE_2_12, "2.20.5": _2_12_TO_2_20, "2.24.3": _FROM_2_24, "2.27.3": _FROM_2_24, "2.30.7": _FROM_2_24,
}  # fmt: skip

TORCH = """\
[W socket.cpp:697] [c10d] The IPv6 network addresses of (n0, 29500) cannot be retrieved (gai error: -2 - Name or \
service not known).
[W socket.cpp:663] [c10d] The client socket has failed to connect to [n0]:29500 (errno: 111 - Connection refused).
[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (errno: 97 - Address family not supported \
by protocol).
INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to initialize process group for rank: 0, key: \
store_based_barrier_key:1 (world_size=4, num_workers_joined=1, timeout=0:30:00)
[W Utils.hpp:133] Warning: Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated; use \
TORCH_NCCL_ASYNC_ERROR_HANDLING instead (function operator())
[rank0]:[W ProcessGroupNCCL.cpp:4115] [PG 0 Rank 0]  using GPU 0 to perform barrier as devices used by this process \
are currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect.
/opt/train.py:12: FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated, ignore_errors is unused
libibverbs: Warning: couldn't load driver 'libhfi1verbs-rdmav34.so': libhfi1verbs-rdmav34.so: cannot open shared \
object file: No such file or directory
step 1 loss 3.21 errors 0
step 2 loss 3.11 errors 0
[rank1]:[W TCPStore.cpp:115] [c10d] recvVector failed on SocketImpl(fd=64, addr=[n1]:40022, remote=[n0]:29500): Failed \
to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?
[rank1]:[W ProcessGroupNCCL.cpp:1782] [PG ID 0 PG GUID 0 Rank 1] Failed to check the "should dump" flag on TCPStore, \
(maybe TCPStore server has shut down too early), with error: Failed to recv, got 0 bytes. Connection was likely closed.
[rank0]:[W ProcessGroupNCCL.cpp:1479] Warning: WARNING: destroy_process_group() was not called before program exit, \
which can leak resources.
"""

NCCL_TESTS = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
   134217728      33554432     float     sum      -1    611.2  219.60  411.75      0    610.3  219.92  412.35      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 182.4
"""

STEPS = "".join(f"step {step} loss 2.1\n" for step in range(9))
_RAISED = 'Traceback (most recent call last):\n  File "/opt/train.py", line 88, in step\n    f(x)\n'
_WATCHDOG = """\
[rank0]:[E1122 10:00:00.511239 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=1000) ran for 1001 milliseconds before timing \
out.
"""
SURVIVED = {
    "torchrun restarts its ranks": f"{STEPS}{_RAISED}RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    "[ERROR] failed (exitcode: 1) local_rank: 1 (pid: 5) of binary: python\n[INFO] [default] Worker group FAILED. 3/3 "
    f"attempts left; will restart worker group\n{STEPS}",
    "Slurm requeues a job": f"{STEPS}[rank3]: {_RAISED}[rank3]: torch.distributed.DistBackendError: NCCL error in: "
    f"x.cpp:1, remote process exited\nsrun: error: n4: task 3: Exited with exit code 1\nSLURM_RESTART_COUNT=1\n{STEPS}",
    "a row of data is an error": '{"text": "RuntimeError: CUDA out of memory"}\n{"prompt": "fatal: x", "score": 1}\n'
    "Prompt: 'Out of memory: Killed process 77 (python)?', Generated text: 'The kernel'\n"
    'row 2: "srun: error: n1: task 0: Exited with exit code 1" | label: launcher\nworld_size=2\n',
    "a size is tried after one that did not fit": f"Trying batch size 64\n{_RAISED}torch.OutOfMemoryError: CUDA out of "
    f"memory. Tried to allocate 2 GiB\nTrying batch size 32\n{STEPS}",
    "a line of data is logged": "[NeMo I 2024-02-11 11:20:31 nemo_logging:349] sample batch: <U>\\nsrun: error: n1: "
    f"task 3: Killed\\nWhy?\n{STEPS}"}  # fmt: skip
"""Failures of which a later line tells that they ended nothing."""
TEXTS = (
    of({name: text.rstrip("\n") for name, text in SURVIVED.items()}, ending=" -> none"),
    of({f"{name}, and it failed": text.rstrip("\n") for name, text in SURVIVED.items()}, ending=" -- --failed"),
)

LAUNCHERS = {"none": "{line}", "torchrun": "[default{dev}]:{line}", "torch": "[rank{rank}]: {line}",
             "srun": "{rank}: {line}", "mpirun": "[1,{rank}]<stdout>:{line}"}  # fmt: skip


def of_rank(version: str, rank: int, size: int, launcher: str = "none") -> str:
    """Return the log of one of `size` ranks, two to a host."""
    host, dev = f"n{rank // 2}", rank % 2
    text = _RELEASES[version].format(
        host=host, pid=100 + rank, tid=200 + rank, dev=dev, address=f"10.0.0.{1 + rank // 2}", rank=rank, size=size,
        version=version)  # fmt: skip
    form = LAUNCHERS[launcher]
    return "".join(form.format(line=line, dev=dev, rank=rank) + "\n" for line in text.splitlines())


def job(version: str, size: int = 4, launcher: str = "none") -> dict[str, str]:
    """Return the logs of a job that went well, one for each rank, with torch's own words in the first."""
    logs = {f"rank{rank}.log": of_rank(version, rank, size, launcher) for rank in range(size)}
    return logs | {"torch.log": TORCH, "tests.log": NCCL_TESTS}


VERSIONS = tuple(_RELEASES)
