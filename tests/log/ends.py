"""Logs of jobs that ended well, that failed, and of which nothing is known: what stands last in them, and why.

`tests.log.whole` says how to read them.
"""

from tests.log.whole import CLOSING, INFO, TRACE, each, repeated, steps, watchdog

DIRECT = "\nThe above exception was the direct cause of the following exception:\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n"
NINE, LINUX = steps(0, 9), "2026-01-02 03:04:06"
FAILS = f"{TRACE}\nFooError: x"
EXITED = "srun: error: n7: tasks 0-7: Exited with exit code 255"

ENDS = """
Finished.
train loop done, steps=8
`Trainer.fit` stopped: `max_epochs=6` reached.
"""
TALK = """
error: 0.03
Failed to import flash_attn; falling back to eager
"""
CODES = """
[launch.py:7] ['python', 'x.py'] exits with return code = 1
worker 3 exited with code 7
[9.1] Out of memory: Killed process 77 (python) total-vm:9kB
ssh: connect to host n7 port 22: No route to host
"""
AFTER = """
OK
[health] PASS
Total training time: 0:00:33
"""
RAISED = """
OSError: [Errno 28] No space left on device
ModuleNotFoundError: No module named 'apex'
ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory
RuntimeError: The NVIDIA driver on your system is too old (found 11040).
OSError: [Errno 116] Stale file handle: '/data/x'
torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL
RuntimeError: unable to open shared memory object </torch_9_7> in read-write mode
"""
BARE = """
[1,mpirank:3,algo-2]<stderr>:KeyError: 'tokens'
[worker_base.py:88] KeyError: 'tokens'
/a/native/cuda/Loss.cu:240: nll_loss: block: [1,0,0], thread: [3,0,0] Assertion `t >= 0` failed.
train.py: error: unrecognized arguments: --local_rank=2
"""
LAST = """
terminate called without an active exception
srun: error: Unable to create step for job 5: Shard busy
"""
ABORTS = "<>: E x.cc:9] Aborting communicator: 0x5 due to async NCCL error: remote process exited"
AT_WORK = (
    "[rank<>]:[E227 16:30:43.5 ProcessGroupNCCL.cpp:1834] [PG ID 2 PG GUID 3 Rank <>] Timeout at NCCL work: 32, last "
    "enqueued NCCL work: 32, last completed NCCL work: 31.")  # fmt: skip
RAISES = (*TRACE.split("\n"), "    raise e")
ENDED = f"""\
%% the loss and the time of a run -> well
{{'loss': 1.9, 'epoch': 0.31}}
{{'train_runtime': 812.2, 'train_loss': 1.9}}
{each("how programs say that they came to their end", ENDS, NINE, ending=" -> well")}
%% an earlier attempt failed, and it is told how -> well
{NINE}
[default1]:{TRACE}
[default1]:RuntimeError: NCCL communicator was aborted on rank 1.
I0311 10:05:01.1 900 torch/api.py:916] [default] Worker group FAILED; will restart worker group
{steps(9, 20)}
{CLOSING}
%% what costs time costs nothing of a job that ended well -> well
n0:7:9 [0] NCCL INFO NET/OFI GDR disabled on GDR-supported instance type p5.48xlarge
{NINE}
Training completed
%% what costs time is a cause if the user says that it was slow -- --slow --exit-code
n0:7:9 [0] NCCL INFO NET/OFI GDR disabled on GDR-supported instance type p5.48xlarge
{NINE}
Training completed
%% a git login failed before the steps -> well
Host key verification failed.
{steps(0, 30)}
{CLOSING}
%- kern.log
Nov 28 02:11:01 n1 kernel: NVRM: Xid (PCI:0000:01:00): 79, RLW_RXPIPE Fatal XC0 i0 Link 13 (0x0 0x8)
%% who knows that a job failed gets a line though it came to its end -- --failed
{NINE}
ERROR the disk frobnicates
{CLOSING}
%% a server answered -> none
world_size=2
10.0.0.1 - - [02/Jan/2026 08:11:53] "POST /generate HTTP/1.1" 200 -
%% a program came to an exit -> none
{NINE}
[rank0]:[W Pg.cpp:9] destroy_process_group() was not called before program exit
%% the good end of a helper -> none
{steps(0, 2)}
[2025-02-11 20:08:00,125 I 4121 4184] agent.cc:80: Agent process with name x exited, exit code 0.
%% the part before the last steps finished -> none
world_size=2
{steps(0, 5)}
Training run completed
{steps(5, 9)}
%% a port was taken and another one was tried -> none
start.sh: port 29500 busy: [Errno 98] Address already in use; trying 29501
step 1 loss 2
%% advice for an error -> none
world size 2
{NINE}
If you see `CUDA error: no kernel image is available`, build it for your GPU
{each("figures and talk of errors", TALK, NINE, ending=" -> none -- --exit-code")}
"""
FAILED = f"""\
%% standard output was written in blocks
{FAILS}
{NINE}
Job finished
%% values are wrong
# Out of bounds values : 34 FAILED
# Avg bus bandwidth    : 361.2
%% a program aborted
{CLOSING}
terminate called after throwing an instance of 'foo'
  what():  bar
{each("a launcher's exit code", CODES, NINE)}
%% the last attempt failed too
attempt 1
{NINE}
attempt 2
{NINE}
{FAILS}
%% an attempt is of a connection
{FAILS}
client connect attempt 2
{NINE}
%% who started it says that training is over
{NINE}
{TRACE}
ValueError: batch 17 holds no tokens
{LINUX},000 INFO launcher: training completed, uploading logs
{each("what is said after an exception", AFTER, f"{NINE}{FAILS}")}
%% another rank came to its result
{NINE}
[rank3]: {TRACE}
[rank3]: FooError: x
[rank0]: {{'train_runtime': 33.1, 'train_loss': 2.0}}
%% of exceptions, the one of Ray's task
{TRACE}
ray.exceptions.RayTaskError(KeyError): ray::f() (pid=2, ip=10.0.0.7)
  File "x.py", line 3, in f
KeyError: 'context7'
{steps(0, 70)}
%% of exceptions, the one that refers above
2026-03-04 10:00:01.1: E external/xla/cuda_dnn.cc:522] no 'context7' of cuDNN 8.9.0
{TRACE}
jaxlib.XlaRuntimeError: FAILED_PRECONDITION: DNN failed. Look at the errors above for more details.
%% of exceptions, the one of a build
x.h:6:10: fatal error: no 'context7'
ninja: build stopped: subcommand failed.
{TRACE}
RuntimeError: Error building extension 'x'
Exception ignored in: <function f>
{TRACE}
AttributeError: y
%% of exceptions, the one of a lookup
{TRACE}
KeyError: 'x'
{DURING}
{TRACE}
ValueError: there is no 'context7' in model x
%% an exception that no rule knows comes before what waited
{NINE}
{watchdog(0)}
[rank0]: {TRACE}
[rank0]: c10::FrobError: CUDA frobnicated
{each("what an exception says of who is at fault", RAISED, TRACE)}
%% a log that lost its end within a line of NCCL
{INFO} Bootstrap : Using eth0:10.0.0.1<0>
{watchdog(0)}
n1:7:7 [0] NCCL INFO Connected all ri<cut>
%% the step of Slurm is no step of the program
{NINE}
srun: error: Node failure on n7
slurmstepd: error: *** STEP 99.0 ON n6 CANCELLED AT x ***
%% a container that did not run out of memory
{{"Status":"exited","OOMKilled":false,"Dead":false,"Pid":0,"ExitCode":137,"Error":""}}
%% an eviction is the node's cause of what the others say
%- events.txt
60m Normal Scheduled pod/w-0 Successfully assigned ns/w-0 to n7
3m Warning Evicted pod/w-0 The node was low on resource: memory. Threshold quantity: 1Gi.
%- rank1.log
[rank1]: Traceback (most recent call last):
[rank1]:   File "x.py", line 3, in f
[rank1]: RuntimeError: [gloo/pair.cc:5] Connection closed by peer [10.0.0.9]:7
%% addresses before a colon are hosts, and a product is no size of the world
{repeated((1, 2, 1, 2, 1, 2), "10.0.0.<>: step 1")}
10.0.0.1: Traceback (most recent call last):
10.0.0.1:   File "x.py", line 3, in f
10.0.0.1: AssertionError: batch is not micro * world_size1028 != 32 * 1 * 32
nfs: step 1
pdsh@h: 10.0.0.1: ssh exited with exit code 1
%% the reason beneath a validation error
{TRACE}
pydantic_core.ValidationError: 1 validation error for C
  Value error, 16 is too many [type=value_error]
%% the assertion of a kernel is told with its fault
x.cu:9: f: block: [1,0,0], thread: [7,0,0] Assertion `i7 < n` failed.
{TRACE}
RuntimeError: CUDA error: device-side assert triggered
%% ranks that lost their communicator and then crashed did not begin
{repeated((3, 7), ABORTS)}
{repeated((3, 7), "<>: Fatal Python error: Segmentation fault")}
%% a bridge on both hosts of a job that stands still
{repeated((1, 2), "n<>:7:7 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>")}
%% a watchdog that only says at which work it gave up
{repeated(range(4), "[rank<>]: step 7 loss 2")}
{repeated((0, 1, 3), AT_WORK)}
%% Ray names the node whose memory was full
{NINE}
ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.
Memory on the node (IP: 10.0.0.7, ID: 5c1e) where the task was running was 191GB / 200GB. Ray killed this worker
{each("what a program raised, without its traceback", BARE, "world_size=4")}
%% a log ends in a traceback
{NINE}
out = net(x)Traceback (most recent call last):
  File "x.py", line 3
%% an exception that refers above takes no line of its own traceback
world_size=2
{repeated(("W failed to start.", *RAISES, "KeyError: 'w7'"), "(W rank=1 pid=4) ERROR 07-23 19:34:51 [w.py:7] <>")}
{repeated((*RAISES, "Exception: no start. See stack trace for root cause."), "ERROR 07-23 19:34:52 [core.py:9] <>")}
%% a rank that comes to its exit after another failed is not the silent one
world_size=2
[rank1]: RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)
[rank0]:[W723 19:34:51.7 Pg.cpp:9] Warning: destroy_process_group() was not called before program exit
%% torchelastic logs an exception as JSON
world_size=4
ERROR:torch.distributed.elastic.multiprocessing.errors.error_handler:{{
  "message": {{
    "message": "KeyError: 'w7'",
    "extraInfo": {{
%% Paddle's launcher names the signal
world_size=4
LAUNCH ERROR 2026-03-10 00:35:50,216 Container failed !!!
Container rank 2 status failed cmd ['/x/python', '-u', 'train.py'] code -9 log ./log/workerlog.2
%% Horovod lists ranks that lack each other's tensors
world_size=4
[0]<stderr>:[2026-12-29 16:51:57.7: W stall_inspector.cc:105] One or more tensors were submitted
[0]<stderr>:Missing ranks:
[0]<stderr>:0: [broadcast.a]
[0]<stderr>:1: [allreduce.b, allreduce.c]
"""
FORMS = """
2026-01-02 03:04:05,123 - trainer - ERROR - the shard is broken
[NeMo E 2026-01-02 03:04:05 data:9] the shard is broken
Failed to open /mnt/x
pkg.ShardError: it is gone
./train: error while loading shared libraries: libx.so.3: cannot open shared object file: No such file
Warning  FailedScheduling  2m  default-scheduler  0/8 nodes are available
"""
FORM = f"""\
{each("a last line of that form", FORMS, NINE)}
{each("a line of that form after which the job goes on", FORMS, NINE, steps(9, 50), " -> none")}
{each("a last line that a job does not survive", LAST, NINE)}
%% Rust panics in two lines
{NINE}
thread 'main' panicked at src/main.rs:10:5:
shard 7 is gone
"""
TEXTS = (ENDED, FAILED, FORM)
