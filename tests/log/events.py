"""Logs of every form, of which it is kept what each line is read as: rank, host, process, time, level, place, words."""

import json
from collections.abc import Iterator, Mapping

from ncclprobe.logs.job_log import JobLog
from ncclprobe.logs.reader import read

WARN = "node1:12:13 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found"
PREFIXES = (
    "", "[rank3]:", "[default3]:[rank11]: ", "[1,3]<stderr>:", "[prterun-login-12@1,3]<stderr>: ", "    [rank3]: ",
    "Sun Nov 22 10:00:00 2026[1,3]<stdout>:", "[2026-11-22 10:00:00] ", "2026-11-22T10:00:00.5Z stderr F ",
    "2026-11-22T12:00:00.5+02:00 ", "2026-11-22 10:00:00,250 - ", "11/22/2026 10:00:00 - ", "1795341600.25 ",
    "[pod/job-worker-3/pytorch] 2026-11-22T10:00:00Z ", "(RayTrainWorker pid=77, ip=10.0.0.3) [rank3]: ",
    "\x1b[31m[rank3]: \x1b[0m", "50%|#####     | 1/2\r[rank3]: ", "\ufeff", "\0\0\0", "> [rank3]: ", "[default2]:",
    "2026-11-22T10:00:00.5Z: [1,3]<stdout>:", "(Worker_TP3 pid=77) ", "(VllmWorker rank=3 pid=77) ", "[RANK 3] ",
    "(PolicyWorker[rank=3] pid=77, ip=10.0.0.3) ", "(worker2, rank=3, pid=2685, ip=10.0.0.3) ", "(pid=77) ",
    "(Worker_TP3 pid=77) WARNING 11-22 10:00:00 [core.py:843] ", "[NeMo W 2026-11-22 10:00:00 exp_manager:423] ",
    "[TensorRT-LLM][INFO] ", "LAUNCH ERROR 2026-11-22 10:00:00,000 ", "2026-11-22,10:00:00 | ", "[3]<stderr>:",
    "  | [rank3]: ", "(raylet, ip=10.0.0.3) ", "(head, rank=3, pid=77) ", "2026-11-22 10:00:00,250\t",
    "2026-02-30 10:00:00 - ", "Feb 29 10:00:00 n7 kernel: ", "Nov 22 10:00:00 n7 python[77]: ", "2026-11-22T25:00:00Z ",
)  # fmt: skip
"""What launchers, containers and loggers write before the words of a program."""
FAILED = 'Traceback (most recent call last):\n  File "a.py", line 3, in f'
LINES = {
    "torch, with a rank": "[rank3]:[E1122 10:00:00.5 ProcessGroupNCCL.cpp:607] [Rank 3] error",
    "torch, without": "[E ProcessGroupNCCL.cpp:828] [Rank 3] an error",
    "torchrun": "W1122 10:00:00.123000 139 torch/run.py:868] an error",
    "logging": "2026-11-22 10:00:00,123 - ERROR - an error",
    "a logger's name": "ERROR:torch.distributed.elastic:an error",
    "a group's rank": "[PG ID 0 PG GUID 0(default_pg) Rank 5] an error",
    "lightning": "[rank: 2] an error",
    "NCCL before 2.4": "n1:7:9 [0] include/socket.h:360 WARN an error",
    "libfabric": "libfabric:77:1795341600::efa:cq:efa_rdm_cq_poll():737<warn> an error",
    "Open MPI": "[n1:77] Signal: an error",
    "no rank": "[s6]: an error",
    "a time without a year": f"[2026-11-22 10:00:00] {WARN}\n[E1122 10:00:01.5 x.cpp:1] an error",
    "two writers": "n1:1:1 [0] NCCL INFO Channel 00 n2:5:5 [1] NCCL WARN no socket interface",
    "numbers before many": "".join(f"{n % 8}: step {n}\n" for n in range(40)) + "3: an error",
    "a number before one": "loss 1\n" * 9 + "3: an error",
    "numbers before four of five": "".join(f"{n}: step {n}\n" for n in range(4)) + "[7]: an error",
    "hosts before four of five": "gpu3: step 1\n" * 3 + "gpu3: an error\nstep 7",
    "levels before many": "error: step 1\n" * 9 + "error: an error",
    "hosts before many": "".join(f"gpu{n % 4}: step {n}\n" for n in range(40)) + "gpu3: an error",
    "containers before many": "".join(f"worker-{n % 4}  | step {n}\n" for n in range(40)) + "worker-3  | an error",
    "a column before few": "loss | 3.1\n" + "step 7\n" * 9 + "loss | an error",
    "a rank by NCCL's line": "n1:9:10 [0] x.cc:1 NCCL WARN no socket interface\n"
    "n1:9:9 [0] NCCL INFO comm 0x1 rank 5 nranks 16 cudaDev 0 busId 7000 commId 0x2 - Init START",
    "a rank by the largest": "n1:9:9 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 7 commId 0x2 - Init START"
    "\nn1:9:9 [0] NCCL INFO comm 0x3 rank 5 nranks 16 cudaDev 0 busId 7 commId 0x4 - Init START\nan error",
    "an exception at the end": "ValueError: no data",
    "what C++ says": "  what():  no data",
    "an exception long before": "ValueError: no data\n" + "loss\n" * 60,
    "an exception that is printed": "print of ValueError: no data",
    "an exception before a good end": "ValueError: no data\nTraining finished",
    "a traceback amid another rank": "[rank1]: Traceback (most recent call last):\n[rank0]: step 7 error rate 0.1\n"
    '[rank1]:   File "/job/train.py", line 12, in main\n[rank1]:     loss.backward()\n[rank1]: ValueError: no data',
    "a traceback amid another process": "(A pid=7) Traceback (most recent call last):\n(A pid=8) KeyError: 7\n"
    "(A pid=7) ValueError: no data",
    "a reason beneath a bare class": f"{FAILED}\nFooError:\nno such shard",
    "a reason beneath a bare class, indented": f"{FAILED}\nFooError:\n  no such shard",
    "a traceback as a message": f"{FAILED}\nFooError:\nOriginal {FAILED}\nKeyError: 7",
    "a traceback in quotes": f'{FAILED}\nFooError:\n"""\n{FAILED}\nKeyError: 7',
    "an exception with blanks": f"{FAILED}\nValueError: no data  ",
    "two words and nothing beneath": f"{FAILED}\nFooError of x:\nno such shard",
    "five blank lines": f"{FAILED}\nValueError: no data\n\n\n\n\nretrying now",
    "a program that goes on": f"{FAILED}\nValueError: no data\nretrying now",
    "a frame without a function": 'Traceback (most recent call last):\n  File "a.py", line 3\nKeyError: 7',
    "a validation error": f"{FAILED}\npydantic.ValidationError: 1 validation error for C\nf\n  It is [type=a] [type=b]",
    "a validation error below": f"{FAILED}\np.ValidationError: 1 validation error for C\nf\n  a\n  b\n  It [type=a]",
    "a validation error of no reason": f"{FAILED}\npydantic.ValidationError: 1 validation error for C\nf\n  It is",
    "a logger's traceback": f"ERROR | {FAILED}".replace("\n", "\nINFO | ") + "\nINFO | KeyError: 7",
    "a logger's traceback that another cuts": f"ERROR | {FAILED}\nno line of it\nINFO | KeyError: 7",
    "MPICH's stack": "Fatal error in x: Other MPI error, error stack:\nMPI_Send(18): b\nMPID(3): \nf(9)....: odd ",
    "MPICH's stack of a class": "Fatal error in x: Unknown error class, error stack:\nMPI(1): a\nMPI(2)..: b\nend",
    "an error on the next line": "zeta: Fatal error: \ny is gone  ",
    "an error before a traceback": f"error:\n{FAILED}\nKeyError: 7",
    "a late message": "x errors.error_handler:{\n" + "  x\n" * 8 + '  "message": "KeyError: 7"',
    "ranks listed": "Missing ranks:\n0: [grad/a]\n3: [grad/a]\n5 others",
    "tasks listed": "XlaRuntimeError: Barrier failed. Timed out task names:\n/job:w/task:0\n/job:w/task:3\n\n",
    "lines beside a rank's": "[rank3]: ValueError: an error\nW1122 10:00:00.1 9 api.py:1] an error",
    "srun's tasks of a host": "[rank2]: no socket interface found\nsrun: error: n7: tasks 0-1,2: Exited, an error",
    "srun's only task": "[rank2]: no socket interface found\nsrun: error: n7: task 2: Exited with exit code 1",
    "srun, out of memory": "srun: error: n7: task 5: Out Of Memory\nsrun: error: n6: tasks 0-3: Terminated, an error",
    **{f"srun's tasks {tasks[:9]}": f"srun: error: n7: tasks {tasks}: Exited, an error"
       for tasks in ("0-", "-3", "0-99999999", "9-1", ",", "0-3,0-x", "1-" + "9" * 1900)}}  # fmt: skip
_FAILURE = (
    "  time      : 2026-11-22_10:00:0{}\n  host      : gpu17\n  rank      : {} (local_rank: {})\n  exitcode  : {}"
)
SUMMARY = (
    f"====\ntrain.py FAILED\n----\nFailures:\n[1]:\n{_FAILURE.format(1, 3, 1, '1 (pid: 78)')}\n  error_file: <N/A>\n"
    '  traceback : Traceback (most recent call last):\n    File "/job/train.py", line 12, in main\n'
    '      raise ValueError("no data")\n  ValueError: no data\n----\nRoot Cause (first observed failure):\n[0]:\n'
    f"{_FAILURE.format(0, 2, 0, '-9 (pid: 77)  (SIGKILL)')}\n  error_file: <N/A>\n"
    "  traceback : Signal 9 (SIGKILL) received by PID 77\n====\n"
)
RECORDS: tuple[dict[str, object], ...] = (
    {"log": WARN + "\n", "stream": "stderr", "time": "2026-11-22T10:00:00Z"},
    {"MESSAGE": WARN, "_HOSTNAME": "gpu17", "__REALTIME_TIMESTAMP": "1795341600000000"},
    {"textPayload": WARN, "timestamp": "2026-11-22T10:00:00Z", "labels": {"node": "gpu17"}},
    {"message": WARN, "timestamp": 1795341600000, "kubernetes": {"node_name": "gpu17"}},
    {"message": "an error", "timestamp": 1795341600000, "kubernetes": {"node_name": "gpu17"}},
    {"jsonPayload": {"message": WARN}, "timestamp": "2026-11-22T10:00:00.0Z"},
    {"message": 7, "timestamp": "x"},
)
NAMES = ("rank_3.log", "logs/rank12/out", "none_x1/attempt_0/3/stderr.log", "crank3", "n3", "job/dmesg-n7.txt",
         "dmesg.0", "kernel.n7.example.com.log", "dmesg.n7", "dmesg.log", "xdmesg-n7.txt")  # fmt: skip


def kept(log: JobLog) -> Mapping[str, object]:
    """Return what is kept of a log: its events, its ranks and its size."""
    ranks = {f"rank {number}": f"{each.host}:{each.pid}:{each.stream}" for number, each in log.ranks.items()}
    begun = {number: (each.init_started, each.init_complete, each.step) for number, each in log.ranks.items()}
    events = [
        f"{e.line}:{e.rank}:{e.local_rank}:{e.host}:{e.pid}:{e.level}:{e.place}:{e.time_s}:{e.step}:{e.text[-60:]}"
        for e in log.events
    ]
    return {"events": events, "size": log.world_size, **ranks, "begun": begun}


def events() -> Iterator[tuple[str, object]]:
    """Yield each log with what it is read as."""
    logs = {f"{at}: {prefix.strip()[:40]!r}": prefix + WARN for at, prefix in enumerate(PREFIXES)} | LINES
    logs |= {f"record {at}": json.dumps(record) for at, record in enumerate(RECORDS)}
    times = "".join(f"[pod/w-1/c] 2026-11-22T10:00:00Z {line}\n" for line in SUMMARY.splitlines())
    for name, text in (logs | {"torchrun's summary": SUMMARY, "torchrun's summary behind times": times}).items():
        yield name, kept(read([("a", [text.encode()])], ("no socket interface", "Out Of Memory")))
    for name in NAMES:
        yield f"file {name}", kept(read([(name, [b"[ 812.1] an error: no socket interface found\n"])], ("no socket",)))
    init = "n1:1:9 [0] NCCL INFO comm 0x1 rank {} nranks 2 cudaDev 0 busId 7000 commId 0x2 - Init START\n"
    same = [(name, [f"{init.format(rank)}n1:1:9 {WARN[14:]}\n".encode()]) for rank, name in enumerate("ab")]
    yield "containers of one host and process", kept(read(same, ("no socket interface",)))
    nodes = [(name, [f"[default2]:{WARN.replace('node1', name)}\n".encode()]) for name in ("node1", "node2")]
    yield "local ranks of two nodes", kept(read(nodes, ("no socket interface",)))
