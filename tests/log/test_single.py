"""What a check finds in a short log by itself: how severe, whose fault, who, in which words, and what it may be."""

import re

from ncclprobe.checks.log import facts_of
from ncclprobe.logs.job_log import Explained
from ncclprobe.model.findings import Finding
from ncclprobe.model.registry import Check, discover
from tests.each_row import each_row
from tests.log.single import logs
from tests.log.whole import TRACE, cases, of

CHECKS = {each.run.__name__: each for each in discover("ncclprobe.checks.log", Check)}
SIGNS = [sign for each in CHECKS.values() if each.cause for sign in each.cause.signs]
CAUGHT = "Watchdog caught collective operation timeout: WorkNCCL"
RAISED = f"{TRACE}\n".replace("\n", "↵")
TRIED, GAVE_UP = "The client socket has timed out after", "[2026-01-02 03:04:10] [rank0]: waiting for clients."
DAY, ID = "2026-11-28 02:11:0", "is setting up NCCL communicator and retrieving ncclUniqueId"
ROWS = f"""\
proxy_failed: W:Connection closed by remote peer n2<4>↵a↵a↵a↵a↵a↵a↵a↵W:[Proxy Progress] x↵W:[Proxy Service 1] from \
rank 5↵NCCL failure => WARN unknown n1:7 to 5: NCCL's proxy failed
proxy_failed: W:[Proxy Progress] x↵a↵a↵a↵a↵a↵a↵a↵W:Connection closed by remote peer n2<4>↵NCCL failure =>
proxy_failed: 2W:Connection closed by remote peer n2<4>↵W:Proxy Call to rank 4 failed↵[Service thread] x↵NCCL failure \
=> WARN unknown n1:7 to 4: NCCL's proxy failed
waits_for_the_first_rank: [W a.cpp:7] {ID} from [0] x↵[rank2]: {ID} from [3] x↵[rank4]: {ID} from [x] \
Connection↵[rank5]: {ID} from [0] got 0 bytes => WARN unknown rank 2 of 3: was waiting for rank 3's unique id \
[timeout-straggler rank-crashed]; WARN unknown rank 4: was waiting for the first rank's unique id [rank-crashed \
timeout-straggler]; WARN unknown rank 5 of 0: was waiting for rank 0's unique id [rank-crashed timeout-straggler]
no_interface: I:NCCL_COMM_ID set by environment to 10.0.0.9:7↵W:Call to bind failed: Cannot assign requested \
address↵2W:Call to bind failed : Cannot assign requested address => FAIL job n1:7: the address in NCCL_COMM_ID is not \
one of this host
loopback: I:Bootstrap: Using lo:127.0.0.1<0>↵2I:Bootstrap: Using eth0:10.0.0.1<0> => FAIL job n1:7: uses lo \
(127.0.0.1), …
loopback: I:Bootstrap : Using lo:127.0.0.1<0>↵W:connect to 127.0.0.1<7> returned Connection refused, retrying \
(1/34)↵I:Connect to 127.0.0.1<7> failed : Connection refused =>
container_interface: W:Connect to fe80::1%veth2<39> failed : y % z<9>↵W:Connect to 10.0.0.2 via %veth3 \
failed↵I:Connect to fe80::1%veth4<39> failed : x => FAIL job n1:7: connects over veth2, …
bridge_network: I:Bootstrap : Using eth0:10.0.0.1<0>↵2I:Bootstrap : Using eth0:10.0.0.1<0>↵I:comm 0x1 rank 0 nranks 2 \
- Init COMPLETE↵NCCL failure =>
connection_timed_out: I:a↵I:connect to 10.0.0.2<4> returned Connection timed out, retrying (32/34)↵I:connect to \
10.0.0.2<4> returned Connection timed out, retrying (33/34)↵%- b.log↵I:connect to 10.0.0.3<4> returned Connection \
timed out, retrying (1/34) =>
a_rank_did_not_come: world size 3↵{CAUGHT}(SeqNum=7, OpType=X)↵[Rank 1] {CAUGHT}(SeqNum=8, OpType=X)↵[Rank 2] \
{CAUGHT}(SeqNum=8, OpType=X) => FAIL unknown rank 1 of 0: rank 0 did not reach X number 8 [timeout-straggler \
rank-crashed collective-desync]
a_rank_did_not_come: [PG 1 Rank 0] {CAUGHT}(SeqNum=8, OpType=X)↵[PG 2 Rank 4] {CAUGHT}(SeqNum=9, OpType=Y)↵[PG 2 Rank \
5] last enqueued NCCL work: 6 => FAIL unknown rank 4 of 5 in 2: rank 5 did not reach Y number 9 [timeout-straggler \
rank-crashed collective-desync]
a_rank_did_not_come: [rank1]: last enqueued NCCL work: 6↵[Rank 0] {CAUGHT}(SeqNum=7, OpType=X) => FAIL unknown rank 0 \
of 1: rank 1 did not reach X number 7 [timeout-straggler rank-crashed collective-desync]
a_rank_did_not_come: world size 3↵[Rank 0] last enqueued NCCL work: 6↵[Rank 1] {CAUGHT}(SeqNum=7, OpType=X)↵[Rank 2] \
{CAUGHT}(SeqNum=8, OpType=X) =>
waited_in_vain: [rank3]: Received a dump signal due to a collective timeout from  rank 5↵[PG 2 Rank 4] \
{CAUGHT}(SeqNum=9, OpType=X) => WARN unknown rank 3 of 5 to 5: rank 5 reports a collective timeout; …; WARN unknown \
rank 4 in 2: waited in X number 9
ended_by_its_own_monitor: world size 5↵[rank3]: watchdog got stuck for 480 seconds without x↵[rank2]: Heartbeat \
monitor timed out↵I:Received a dump signal => FAIL job rank 3 on n1: was killed by its heartbeat monitor, …; FAIL job \
rank 2 on n1: was killed by its heartbeat monitor, …
ended_by_its_own_monitor: world size 4↵[rank3]: Heartbeat monitor timed out↵[rank2]: Heartbeat monitor timed \
out↵[rank0]: step 7↵[rank1]: step 7 =>
works_on_alone: scan: 10%|#    | 100/1000 [20:00<180:00, 0.1it/s]↵INFO worker group FAILED; will restart worker \
group↵scan: 11%|#    | 110/1000 [20:05<170:00, 0.1it/s]↵[rank1]: store based barrier↵scan: 12%|#    | 120/1000 \
[30:05<170:00, 0.1it/s] => FAIL job train.log: a rank was still busy with its own work (scan, for 30:05) …
works_on_alone: [rank1]: store based barrier↵scan: 10%|#    | 100/1000 [20:00<180:00, 0.1it/s]↵scan: 11%|#    | \
110/1000 [30:05<170:00, 0.1it/s] =>
unresolved_name: [E a.cpp:1] The client socket has timed out (a, 2)↵[W a.cpp:6] network addresses of (a, 2): Name does \
not resolve↵E Name does not resolve: HTTP x↵[W a.cpp:6] network addresses of (b, 2): Name does not resolve; The client \
socket has timed out (b, 2)↵[W a.cpp:6] network addresses of (c, 2): Name does not resolve↵The client socket has timed \
out (c, 2)↵E Name does not resolve: '(null)' => FAIL unknown train.log: b does not resolve; FAIL unknown train.log: c \
does not resolve; FAIL unknown train.log: a name does not resolve
master_unreachable: [W a.cpp:1] connect() timed out connect to (a, 1)↵[E a.cpp:1] Name does not resolve connect() \
timed out↵[E a.cpp:1] connect() timed out connect to (b, 2)↵[W a.cpp:6] network addresses of (b, 2): Name does not \
resolve↵[W a.cpp:6] The IPv6 network addresses of (c, 2): Name does not resolve↵[E a.cpp:1] connect() timed out \
connect to (b, 4)↵[E a.cpp:1] connect() timed out connect to (7, 2)↵[E a.cpp:1] connect() timed out connect to (c, \
2)↵%- b.log↵x↵x↵x↵x↵[E a.cpp:1] connect() timed out connect to (b, 3) => FAIL unknown train.log to 0: b:2 cannot be \
reached; FAIL job train.log to 0: the host name 7 is interpreted as the address 0.0.0.7; FAIL unknown train.log to 0: \
c:2 cannot be reached; FAIL unknown b.log to 0: b:3 cannot be reached
ranks_missing: W:mismatch in info from procs nranks 4 vs 5, x↵W:mismatch in info from procs nranks 4 vs 4, x↵W:Invalid \
rank requested : rank 8/8↵W:Bootstrap Root : rank 3 of 16 ranks has already checked in => FAIL job n1:7: ranks \
disagree on the members of the job; FAIL job n1:7: ranks disagree on the members of the job; FAIL job n1:7 of 3: ranks \
disagree on the members of the job
ranks_missing: n1:1:1 [0] NCCL INFO comm rank 1 nranks 4 commId 0x9 - Init START↵n1:2:2 [0] NCCL INFO comm rank 2 \
nranks 4 commId 0x9 - Init START↵n1:3:3 [0] NCCL INFO comm nranks 5 commId 0x9 - Init START↵n1:3:3 [0] NCCL INFO comm \
rank 4 commId 0x9 - Init START↵n1:1:1 [0] NCCL INFO comm 0x1 rank 1 nranks 4 - Init START↵n1:2:2 [0] NCCL INFO comm \
0x1 rank 2 nranks 4 - Init START↵n1:3:3 [0] NCCL INFO comm 0x1 rank 3 nranks 5 - Init START↵2W:Invalid rank requested \
: 8/8 => FAIL job n2:8: ranks disagree on the members of the job
ranks_missing: {GAVE_UP} 1/3 clients joined↵[2026-01-02 03:04:14] [rank9]: {TRIED} 3999ms↵[2026-01-02 03:04:14] \
[rank1]: {TRIED} 3000ms↵[2026-01-02 03:04:20] waitForInput: socket x↵[rank2]: {TRIED} 9ms↵RendezvousTimeoutError => \
FAIL unknown rank 0 of 1, 9: 2 of 3 ranks did not join: rank 1, 9 [timeout-straggler]; FAIL unknown train.log: fewer \
nodes than requested joined in time [world-size-mismatch timeout-straggler]
ranks_missing: {GAVE_UP} 3/3 clients joined↵[2026-01-02 03:04:14] [rank1]: {TRIED} 4000ms => FAIL job rank 0: all 3 \
ranks joined, but too late [port-blocked master-unreachable world-size-mismatch]
ranks_missing: {GAVE_UP} 1/3 clients joined↵[2026-01-02 03:04:20] waitForInput: socket timed out after 9↵[2026-01-02 \
03:04:14] [rank1]: {TRIED} 3000ms => FAIL job rank 0: 2 of 3 ranks did not join [port-blocked master-unreachable \
world-size-mismatch]
store_left: I:c10d Socket Timeout↵HTTP Socket Timeout↵[W a.cpp:1] c10d Socket Timeout↵[rank1]: c10d Socket Timeout => \
WARN unknown rank 1 on n1: lost the store, or waited in it for another rank
no_address_of_a_rank: [rank1]: wait timeout after 6 keys: a//cpu//0/4↵[rank0]: waiting for clients. 1/3 clients joined \
=>
node_failed: [rank1]: RuntimeError: Node n7 status is now: NodeNotReady: x status is now: NodeNotReady => FAIL node \
rank 1 on n7: Kubernetes lost this host: it is not ready
pod_evicted: Evicted pod/other-0 The node was low on resource: disk.↵Evicted pod/a-w-2 The node was low on resource: \
disk.↵a-w-1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>↵Scheduled pod/a-w-1 Successfully assigned ns/a-w-1 to \
n4↵Scheduled pod/a-w-2 Successfully assigned ns/a-w-2 due to x to n5  ↵NCCL failure => FAIL node a-w-1: Kubernetes \
evicted a-w-2: its node was low on disk
storage_stalled: nfs: server a OK↵nfs: server a not responding, x↵nfs: server b not responding, x↵nfs: server b OK  \
↵nfs: server c not responding, x↵nfs: server c1 OK↵Nov 28 02:11:01 n1 kernel: nfs: server d not responding, x↵Nov 28 \
02:11:02 n2 kernel: nfs: server d OK↵Nov 28 02:11:01 n1 kernel: nfs: server e not responding, x↵[ 8.2] nfs: server e \
OK↵[ 8.2] nfs: server f not responding, x↵Nov 28 02:11:02 n1 kernel: nfs: server f OK↵NCCL failure => FAIL unknown \
train.log: the file server a does not respond; FAIL unknown train.log: the file server c does not respond; FAIL \
unknown n1: the file server d does not respond
storage_stalled: {DAY}5 nfs: server a not responding, x↵{DAY}5 nfs: server b not responding, x↵[ 8.1] nfs: server c \
not responding, x↵{DAY}5 nfs: server d not responding, x↵NCCL failure↵%- b.log↵{DAY}4 nfs: server a OK↵{DAY}5 nfs: \
server b OK↵{DAY}5 nfs: server c OK↵[ 8.1] nfs: server d OK => FAIL unknown train.log: the file server a does not \
respond
storage_stalled: {DAY}4 nfs: server a not responding, x↵{DAY}5 nfs: server b not responding, x↵{DAY}4 task python:42 \
blocked for more than 120 seconds↵{DAY}5 task java:42 blocked for more than 120 seconds↵blocked for more than 120 \
seconds↵2026-11-29 02:11:05 NCCL failure↵NCCL failure↵2026-11-30 02:11:05 NCCL failure↵2026-11-27 02:11:05 n1:7:7 [0] \
NCCL INFO NCCL failure => FAIL unknown n1: the file server b does not respond; FAIL unknown n1: java is blocked in the \
kernel, … [timeout-straggler rank-crashed gpu-hw-error]
storage_stalled: {DAY}5 nfs: server a not responding, x↵2026-11-30 02:11:05 n1:7:7 [0] NCCL INFO NCCL failure↵NCCL \
failure => FAIL unknown n1: the file server a does not respond
pod_not_placed: Successfully assigned ns/w-1 to n4↵FailedScheduling x↵0/4 nodes are available: 4 a. preemption: 0/4 \
nodes are available: b. preemption: x↵pod/ns/w-2 0/4 nodes are available: 1 c↵pod/ns/w-1 0/4 nodes are available: 1 b \
=> FAIL job train.log: Kubernetes found no node for a pod: 4 a; FAIL job train.log: Kubernetes found no node for w-2: \
1 c
pod_not_placed: 0/4 nodes are available: 1 b↵Successfully assigned ns/w-1 to n4 =>
pod_not_placed: I:comm 0x1 rank 0 nranks 2 - Init START↵0/4 nodes are available: 1 b =>
gpu_memory_full: n1:7:7 [0] NCCL INFO HIP out of memory↵OutOfMemoryError: x on GPU 3↵W@transport/nvls.cc:Cuda failure \
2 'out of memory'  ↵W:Cuda failure 2 'out of memory' => FAIL job n1: a GPU's memory is full
gpu_failed: NVRM: Xid (PCI:0000:5e:00): 43, x↵NVRM: Xid (PCI:0000:5e:00): 79, pid=9, x => FAIL node train.log: the \
driver reports Xid 79 of GPU 0000:5e:00
gpu_failed: nvidia-nvswitch0: SXid (PCI:0000:c0:00.0): 20034, Fatal, x↵[ 8.1] NVRM: Xid (PCI:0000:3b:00): 79, x↵[ 8.1] \
NVRM: Xid (PCI:0000:5b:00): 48, x↵pcieport 0000:3a:00.0: Uncorrected (Fatal) 0000:3b:00.0↵pcieport 0000:3a:00.0: \
Uncorrected (Fatal) 0000:3c:00.0 => FAIL node train.log: NVSwitch 0000:c0:00.0 reports SXid 20034, …; FAIL node \
train.log: the driver reports Xid 79 of GPU 0000:3b:00; FAIL node train.log: the driver reports Xid 48 of GPU \
0000:5b:00; FAIL node train.log: PCIe lost the connection to a GPU
storage_stalled: nfs: server a not responding, x↵nfs: server b not responding, x↵nfs: server a OK↵[ 8.1] NCCL failure \
=> FAIL unknown train.log: the file server b does not respond
killed_by_a_signal: run.sh: line 4: 2218 Killed    top↵srun: error: n2: task 1: Killed↵srun: error: n2: task 2: Bus \
error => FAIL unknown n2: was killed by a signal: Killed
killed_by_a_signal: srun: error: n2: task 1: Exited with exit code 1↵srun: error: n2: task 2: Killed↵%- b.log↵srun: \
error: n3: task 5: Killed => FAIL unknown n3: was killed by a signal: Killed
killed_by_a_signal: [rank3]: error: slot 3 not found↵a↵[rank2]: error: slot 2 not found↵a↵[rank3]: Fatal Python error: \
Segmentation fault => FAIL unknown rank 3: the process crashed, just after the line: error: slot 3 not found
killed_by_a_signal: [rank3]: error: slot 3 not found↵a↵a↵a↵a↵[rank3]: Fatal Python error: Segmentation fault => FAIL \
unknown rank 3: the process crashed
killed_by_a_signal: [rank3]: aborted due to async NCCL error↵[rank2]: Fatal Python error: Segmentation fault↵[rank3]: \
Fatal Python error: Segmentation fault↵[rank2]: aborted due to async NCCL error => FAIL unknown rank 2: the process \
crashed
ended_from_outside: %- a.log↵srun: error: n1: task 0: Killed↵%- b.log↵slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT \
x *** => FAIL unknown b.log: the job was cancelled
ended_from_outside: srun: error: n1: Bus error↵slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT x *** => FAIL unknown \
train.log: the job was cancelled
ended_from_outside: [W a.py:7] RuntimeError: x↵[rank0]: KeyboardInterrupt↵Received 15 death signal => FAIL unknown \
rank 0: the launcher got SIGINT, because someone pressed Ctrl-C; FAIL unknown train.log: the launcher got SIGTERM from \
outside the job
program_raised: Exception ignored in: <f>↵{RAISED}KeyError: 'a'↵%- b.log↵{RAISED}KeyError: 'b' => FAIL job b.log: the \
program raised KeyError: 'b' at x.py:3 f
program_raised: {RAISED}OSError: [Errno 28] No space↵%- b.log↵{RAISED}ImportError: x: undefined symbol: y↵%- \
c.log↵{RAISED}RuntimeError: c10::Half is not c10::BFloat16↵%- d.log↵{RAISED}RuntimeError: HTTP 500 on socket↵%- \
e.log↵{RAISED}RuntimeError: socket closed => FAIL unknown train.log: the program raised OSError: [Errno 28] No space \
at x.py:3 f; FAIL image b.log: the program raised ImportError: x: undefined symbol: y at x.py:3 f; FAIL job c.log: the \
program raised RuntimeError: c10::Half is not c10::BFloat16 at x.py:3 f; FAIL job d.log: the program raised \
RuntimeError: HTTP 500 on socket at x.py:3 f
program_raised: KeyError: 'a'↵[rank2]: KeyError: 'b'↵[rank3]: ray.exceptions.RayActorError: KeyError: 'c' => FAIL job \
rank 2: the program raised KeyError: 'b'
kernel_faulted: block: [1] Assertion `i7` failed↵block: [2] Assertion `i8` failed↵[rank1]: CUDA error: device-side \
assert triggered↵[rank2]: CUDA error: an illegal memory access => FAIL job rank 1: a kernel of the program failed: its \
assertion `i7` failed; FAIL job rank 2: a kernel of the program failed
driver_saw_a_wild_access: I:comm 0x5 rank 0 nranks 2 - Init COMPLETE↵2I:comm 0x5 rank 1 nranks 2 - Init COMPLETE↵NCCL \
failure↵%- b.log↵[ 8.1] NVRM: Xid (PCI:0000:5e:00): 31, pid=9, x↵[ 8.1] NVRM: Xid (PCI:0000:5e:00): 13, pid=8, x => \
WARN unknown b.log: the driver reports Xid 31 for process 9, …; FAIL job b.log of 1 on n2: the driver reports Xid 13, …
two_ranks_on_one_gpu: n1:7:7 [0] NCCL INFO comm 0x1 rank 9 nranks 3 busId 7 commId 0x9 - Init START↵n1:8:8 [0] NCCL \
INFO comm 0x1 rank 1 nranks 3 busId 7 commId 0x9 - Init START↵[rank0]: x, invalid usage (run with NCCL_DEBUG=WARN) => \
FAIL job rank 9 of 1, 9 to 1, 9 on n1: ranks 1, 9 opened one GPU, 7
known_message: W:Call to ibv_create_qp failed with error x↵2I:b↵I:a =>
known_message: W:Call to ibv_create_qp failed with error x↵2I:a↵2I:b↵2I:c↵2I:d => WARN unknown n1:7: NCCL reports an \
error
known_message: W:Call to ibv_create_qp failed with error x↵2I:a↵2I:b↵2I:c↵2I:d↵2I:e =>
known_message: Command '['ssh', '-o', 'PasswordAuthentication=no', 'n7 ', 'hostname']' returned non-zero exit status \
255 => FAIL unknown train.log on n7: ssh from the launcher's host to this host fails: … [peer-unreachable]
"""


def said(found: Finding) -> str:
    """Return a finding in a line; ranks stand behind "of" if its subject is not the only one."""
    who, at = f"{found.severity.name} {found.blame} {found.subject}", found.occurrence
    assert at
    ranks = "" if found.subject in [f"rank {rank}" for rank in at.ranks[:1]] and len(at.ranks) == 1 else at.ranks
    told = zip((" of", " to", " in"), (ranks, (*at.peers, *at.peer_hosts), at.comm and (at.comm,)), strict=True)
    who += "".join(f"{word} {', '.join(map(str, named))}" for word, named in told if named)
    who += f" on {' '.join(found.nodes)}" if not {*found.nodes} <= {*re.split(r"[ :]", found.subject)} else ""
    return f"{who}: {found.message}{f' [{chr(32).join(at.codes)}]' if at.codes else ''}"


@each_row("row", [row for row in ROWS.split("\n") if row])
def test_a_check_finds_this_in_a_log_and_no_more(row: str) -> None:
    before, _, expected = row.partition(" =>")
    name, _, text = before.partition(": ")
    (case,) = cases(of(logs(text)))
    (log,) = facts_of(case.files, SIGNS)
    more = (Explained(),) * (len(CHECKS[name].needs) - 1)
    found = "; ".join(map(said, CHECKS[name].run(log, *more)))
    assert re.fullmatch(re.escape(expected.strip()).replace("…", ".+?"), found), found
