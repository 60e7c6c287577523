"""What a rank waits for by the functions of libraries that it is in, and what to do about it.

One table has both, so that advice and finding belong together: :func:`of_stack` finds a row by a stack, and
:func:`advice` finds it again by its words in the text about a rank.
"""

from collections.abc import Iterator, Sequence

from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.logs.collectives import caller
from ncclprobe.model.causes import RankClass
from ncclprobe.model.findings import Blame
from ncclprobe.model.values import Struct

_PY_SPY = "`py-spy dump --pid PID` shows all of its threads"
_LOOK = f"Look at the named line of the program; {_PY_SPY}."
_ENVIRON = "`tr '\\0' '\\n' </proc/PID/environ`"


class Reason(Struct, frozen=True):
    """What a rank waits for, as the rest of a sentence about it, what to do, and who is at fault."""

    waits: str
    advice: str
    blame: Blame = "job"


_DEBUGGER = Reason(
    "is at the prompt of a debugger and reads its standard input",
    "Take `breakpoint()` or `pdb.set_trace()` out of the program, or continue it at its terminal with `c`.",
)
_DOWNLOAD = Reason(
    "waits for an answer of a server over HTTP",
    "See whether the server answers this node (`curl -sv URL`), and give the request a timeout in the program.",
    "unknown",
)
_BUILD = Reason(
    "waits for the lock file of an extension build",
    "If no process builds it any more, a killed job has left this lock: remove it. "
    "`find ${TORCH_EXTENSIONS_DIR:-~/.cache/torch_extensions} -name lock` finds those of torch.utils.cpp_extension.",
)
_FILE_LOCK = Reason(
    "waits for a lock file",
    "Find its holder (`fuser -v FILE`, `cat /proc/locks`). A lock file that nobody holds is stale: remove it.",
)
_PROCESS_LOCK = Reason(
    "waits for a lock that processes share",
    "Find the process that holds it. One that was killed while it held the lock never releases it: then start the job "
    "again, and hold the lock for less.",
)
_ITEM = Reason(
    "waits for an item of a queue that another process has to put",
    "Look at the process that fills this queue: it has ended, or is itself waiting.",
)
_FULL = Reason(
    "waits for room in a queue that another process has to empty",
    "Look at the process that empties this queue: it has ended, or is itself waiting.",
)
_THREAD_ITEM = Reason(
    "waits for an item of a queue that another thread has to put",
    "Look at the thread that fills this queue: if it has ended, the program's log shows its exception.",
)
_THREAD_FULL = Reason(
    "waits for room in a queue that another thread has to empty",
    "Look at the thread that empties this queue: if it has ended, the program's log shows its exception.",
)
_POOL = Reason(
    "waits for results from a worker pool",
    "Look at the workers. multiprocessing.Pool never reports a worker that was killed, and a task that submits to its "
    "own full pool waits for ever.",
)
_MESSAGE = Reason(
    "waits for a message from another process",
    "Look at the process at the other end of this pipe: it has ended, or is itself waiting.",
)
_UNREAD = Reason(
    "is blocked while it writes to a pipe that another process has to read",
    "Look at the process at the other end of this pipe: it has ended, or is itself waiting.",
)
_PROGRAM = Reason(
    "waits for a program that it has started",
    "Look at that program (`pstree -ap PID`): it hangs, or waits for its input or for its output to be read. Give it a "
    "timeout.",
)
_PROCESS_END = Reason(
    "waits for the end of a process that it has started",
    "Look at that process (`pstree -ap PID`). One that has put items into a queue ends only after these were taken.",
)
_THREAD_END = Reason("waits for the end of a thread", f"Find what that thread waits for: {_PY_SPY}.")
SHUTDOWN = Reason(
    "has come to the end of its program and waits for a thread that is not a daemon",
    "Let this thread end (an event, a sentinel in its queue), or start it with daemon=True.",
)
_PROCESS_EVENT = Reason(
    "waits for an event or condition that another process has to set",
    "Look at the process that has to set it: it has ended, or is itself waiting.",
)
_THREAD_EVENT = Reason(
    "waits for an event that another thread has to set",
    f"Find the thread that has to set it: {_PY_SPY}. The program's log shows the exception of one that has ended.",
)
_CONDITION = Reason(
    "waits for a condition of which another thread has to notify it",
    f"Find the thread that has to notify it: {_PY_SPY}.",
)
_THREAD_BARRIER = Reason(
    "waits at a barrier of threads or processes, or for a semaphore",
    f"Find who has not arrived there, or does not release it: {_PY_SPY}.",
)
_LOADER = Reason(
    "waits for its data loader",
    "Look at the workers of the loader. With num_workers=0 the same read happens in the rank, and its stack shows it; "
    "`timeout=` of the DataLoader turns the wait into an error.",
)
_REMOTE = Reason(
    "waits for a network reply from another program",
    "See whether the program at the other end is alive and answers, and give the call a timeout.",
    "unknown",
)
_NAME = Reason("looks up the address of a name", "See whether this node's DNS answers: `getent hosts NAME`.", "unknown")
_PASSWORD = Reason("asks for a password at its terminal", "Give it the password in another way: nobody types here.")
_RETRIES = Reason(
    "tries something again and again, with pauses",
    "The program's log shows what fails; let it give up after some tries.",
)
_EVENT_LOOP = Reason(
    "waits in an event loop (asyncio)",
    "Find the task that does not end: `asyncio.run(..., debug=True)`, or a timeout around what it awaits.",
)
_IMPORT = Reason("imports a module", "Look at the file system that holds the packages, and at what the module does.")
_COMPILES = Reason("compiles (torch.compile)", "Wait, or look at the compilers that it has started.")
_CHECKPOINT = Reason("reads or writes a checkpoint", "Look at the storage that holds the checkpoint.", "unknown")
_GPU = Reason(
    "waits for its GPU", "Look at the GPU and at the kernel's log of its node: `nvidia-smi`, `dmesg | grep Xid`."
)

_OF_LIBRARIES: Sequence[tuple[str, frozenset[str], Reason]] = [
    (path, frozenset(names.split()), reason)
    for path, names, reason in (
        ("/pdb.py /bdb.py /cmd.py /code.py /IPython/ /ipdb/ /pudb/", "", _DEBUGGER),
        ("/debugpy/ /pydevd", "", Reason("waits for a debugger to connect", "Connect it, or start without debugpy.")),
        ("/torch/utils/file_baton.py", "", _BUILD),
        ("/filelock/ /portalocker/ /fasteners/ /lockfile/", "", _FILE_LOCK),
        ("/torch/utils/data/", "", _LOADER),
        ("/multiprocessing/pool.py /joblib/ /loky/", "", _POOL),
        ("/multiprocessing/queues.py", "_finalize_join _feed", _FULL),
        ("/multiprocessing/queues.py", "get", _ITEM),
        ("/multiprocessing/queues.py", "put", _FULL),
        ("/multiprocessing/synchronize.py", "wait wait_for", _PROCESS_EVENT),
        ("/multiprocessing/synchronize.py", "", _PROCESS_LOCK),
        ("/multiprocessing/connection.py", "send send_bytes", _UNREAD),
        ("/multiprocessing/managers.py /multiprocessing/connection.py", "", _MESSAGE),
        (
            "/multiprocessing/process.py /multiprocessing/popen_fork.py /torch/multiprocessing/spawn.py",
            "",
            _PROCESS_END,
        ),
        ("/subprocess.py", "", _PROGRAM),
        ("/queue.py", "get", _THREAD_ITEM),
        ("/queue.py", "put join", _THREAD_FULL),
        ("/concurrent/futures/", "result wait shutdown as_completed result_iterator __exit__ map", _POOL),
        ("/threading.py", "_shutdown", SHUTDOWN),
        ("/threading.py", "join _wait_for_tstate_lock", _THREAD_END),
        ("/threading.py", "Event.wait", _THREAD_EVENT),
        ("/threading.py", "Barrier.wait acquire __enter__", _THREAD_BARRIER),
        ("/threading.py", "wait wait_for", _CONDITION),
        ("/tenacity/ /backoff/ /retrying.py /retry/", "", _RETRIES),
        ("/urllib/ /urllib3/ /requests/ /httpx/ /httpcore/ /http/client.py /aiohttp/", "", _DOWNLOAD),
        ("/huggingface_hub/ /botocore/ /boto3/ /s3transfer/ /s3fs/ /gcsfs/ /fsspec/ /wandb/", "", _DOWNLOAD),
        ("/grpc/ /redis/ /psycopg /pymysql/ /pymongo/ /paramiko/ /ray/ /mlflow/ /xmlrpc/", "", _REMOTE),
        ("/smtplib.py /ftplib.py /imaplib.py /telnetlib.py", "", _REMOTE),
        ("/socket.py", "getaddrinfo gethostbyname", _NAME),
        ("/asyncio/", "", _EVENT_LOOP),
        ("/getpass.py", "", _PASSWORD),
        ("/torch/cuda/", "synchronize", _GPU),
        ("/torch/_inductor/ /torch/_dynamo/ /triton/", "", _COMPILES),
        ("/torch/serialization.py /safetensors/ /torch/distributed/checkpoint/", "", _CHECKPOINT),
        ("<frozen importlib", "", _IMPORT),
    )
    for path in (path.split() if not path.startswith("<") else [path])
]
FOR_THREADS = (_THREAD_ITEM, _THREAD_FULL, _THREAD_EVENT, _CONDITION)
"""Waits for other threads of the program."""
LOCKS = (_BUILD, _FILE_LOCK, _PROCESS_LOCK)
"""Waits for what another rank may hold."""
FOR_PROCESSES = (_PROGRAM, _PROCESS_END, _POOL)
"""Waits for processes that it has started."""
_OF_PYTHON = ("/lib/python", "/site-packages/", "/dist-packages/")
_SIGNALLED = Reason(
    "waits for a lock inside the handler of a signal, which interrupted the code that may hold it",
    "A handler must not take a lock: let it only set a flag, and act on this flag in the main loop.",
)
AWAITED = Reason(
    "waits for a torch.distributed operation",
    "Compare its peer, tag, group and size with the calls of the other ranks.",
)
_STATES = (
    Reason(
        "uninterruptible sleep",
        "The storage is at fault: look at its server, and at `journalctl -k` of this node. A process in this state "
        "cannot be killed until the server answers.",
        "unknown",
    ),
    Reason(
        "is stopped by a signal",
        "resume it with `kill -CONT PID`, unless somebody stopped it on purpose; `ps -o pid,stat,cmd -p PID` shows its "
        "state",
        "unknown",
    ),
    Reason(
        "is stopped by process",
        "let the debugger continue, or end it: the traced process then continues",
        "unknown",
    ),
    Reason(
        "is frozen",
        "The container runtime or the scheduler has frozen its cgroup: `docker unpause`, `scontrol resume`, or 0 in "
        "its cgroup.freeze.",
        "unknown",
    ),
    Reason(
        "waits for a key",
        "Find the rank that sets this key of the store (`store.set`), and why not: another name, or a PrefixStore.",
    ),
    Reason(
        "holds)", "End the process that holds the lock, or wait until it is released: `ps -fp PID`, `cat /proc/locks`."
    ),
    Reason("waits for the lock on a file", "Find the process that holds it: `cat /proc/locks`, `fuser -v FILE`."),
    Reason("opens a FIFO", "Start the process that has to open the other end of this FIFO, or remove it."),
    Reason(
        "writes what is not taken",
        "Find the process that has to read it: `lsof -p PID` shows the pipe or socket. If that process has ended or "
        "hangs, end the write.",
    ),
    Reason("its standard input", "Nobody types here: start it with `</dev/null`, and take the question out."),
    Reason(
        "reads data that do not arrive",
        "Look at the process or server at the other end, and give the read a timeout.",
    ),
    Reason("waits for a process that it has started", _PROGRAM.advice),
    Reason("connects", "See whether the other end answers this node: `nc -vz ADDRESS PORT`.", "unknown"),
    Reason(
        "keeps a processor busy and reads and writes nothing",
        "Look at the loop around the line that is named: a value that is NaN never gets below a limit. `py-spy dump "
        "--pid PID`, run twice, shows whether the program makes progress.",
    ),
    Reason("waits for a signal", "Find who has to send this signal, and why it has not: it may have come too early."),
    Reason("waits for requests", "Find who has to connect to this socket, and why it does not."),
    Reason("waits for a disk", "Look at the storage, and at `journalctl -k` of this node.", "unknown"),
    Reason(
        "sleeps",
        "Look at the loop around the line that is named: what it waits for does not happen, or it has swallowed an "
        "error that the program's log shows.",
    ),
    Reason("waits for a lock or for another thread", f"Find the thread that holds it or has to act: {_PY_SPY}."),
)
"""States by words of the text about a rank, the more specific first."""
_OF_START = (
    Reason("is not below WORLD_SIZE=", "Ranks count from 0: start each rank with a RANK of 0 to WORLD_SIZE - 1."),
    Reason("have the same RANK", "Start every rank once, each with a RANK of its own: 0 to WORLD_SIZE - 1."),
    Reason("WORLD_SIZE=", f"start all ranks with the same WORLD_SIZE: {_ENVIRON} shows it"),
    Reason(
        "is not a rank of this job",
        "Give the job another MASTER_PORT, or end that program. The log of rank 0 has `EADDRINUSE`.",
    ),
    Reason(" meet at ", f"start all ranks with one MASTER_ADDR and MASTER_PORT: {_ENVIRON} shows them"),
    Reason(" meets at ", f"start all ranks with one MASTER_ADDR and MASTER_PORT: {_ENVIRON} shows them"),
    Reason(
        "cannot connect to",
        "Compare MASTER_ADDR and MASTER_PORT of all ranks, and make sure that this node reaches the port: "
        "`nc -vz ADDRESS PORT`.",
    ),
    Reason("no process of it", "Start this rank. If it was started, the end of its log shows why it ended."),
    Reason("torchrun", "Start torchrun on the missing nodes, with the same --rdzv-endpoint, --rdzv-id and --nnodes."),
)
_OF_PHRASES = {
    "of different groups": "Pass the same group on all ranks: None is the default group of all ranks.",
    "ranks wait for each other": "Let all ranks enter their groups in one order.",
    "receives tag": "Use the same tag for each send and its matching receive.",
    "receives from": "Compare src, dst and tag of the sends and receives: each receive needs the send of its source.",
    "none in its other side": "Let one side receive first, or use isend and irecv, or batch_isend_irecv.",
}
_OF_CALLS = {
    "backward": "DistributedDataParallel reduces gradients in backward. Give all ranks as many batches (or use "
    "`model.join()`), the same `no_sync()`, and find_unused_parameters=True if some ranks do not use all parameters.",
    "broadcast": "All ranks must pass the same src. Compare src and group of this call on all ranks.",
    "scatter": "All ranks must pass the same src. Compare src and group of this call on all ranks.",
    "reduce": "All ranks have to give one dst. Compare dst and group of this call on all ranks.",
    "gather": "All ranks have to give one dst. Compare dst and group of this call on all ranks.",
    "new_group": "Every rank of the job has to make the same groups in the same order, also those that it is not in.",
    "init_process_group": "Give all ranks one init_method, world size and group name, and each its own rank. A file of "
    "`file://` has to be on a file system that all ranks share, and new for each job.",
}
_GROUPS = (
    "Let all ranks enter their groups in one order. In a circle each rank waits in a group for one that is in another; "
    "sizes and types also have to be equal in a group."
)
_LINKS = (
    "Run `ncclprobe doctor` on these nodes to check links and ports, and search the kernel's logs for Xid and link "
    "events."
)
OTHER_GROUPS = "these may be different groups that wait for each other in a circle"
"""About ranks that are in one call of groups which the program made."""


def of_stack(stack: Sequence[FlightFrame]) -> Reason | None:
    """Return what the functions of libraries inside the program's innermost one wait for: the outermost that is known.

    In a handler of a signal that is a lock; in the program itself an operation of torch.
    """
    own = caller(stack)
    if own is None:
        return None
    inner = stack if any(part in own.filename for part in _OF_PYTHON) else stack[: [*stack].index(own)]
    for frame in reversed(inner):
        for path, names, reason in _OF_LIBRARIES:
            if path in frame.filename and (not names or names & {frame.name, frame.name.rpartition(".")[2]}):
                return reason
    if not inner and getattr(own, "values", {}).get("work"):
        return AWAITED
    return None


def signalled(stack: Sequence[FlightFrame]) -> Reason | None:
    """Return that a rank is in the handler of a signal; None: it is not, as far as known."""
    return _SIGNALLED if any("signal" in getattr(frame, "values", {}) for frame in stack) else None


def advice(row: RankClass) -> tuple[Blame, str]:
    """Return who is at fault by what was seen of ranks, and what to do about just that; empty: what usually helps."""
    if row.name in ("desync", "stuck inside"):
        return _advise_on_call(row)
    found = next((each for each in _known(row) if each.waits in row.doing), None)
    if found is not None:
        return found.blame, found.advice
    return "job", _LOOK if row.processes and row.name in ("stuck outside", "not arrived") else ""


def _known(row: RankClass) -> Iterator[Reason]:
    if row.name == "not arrived":
        yield from _OF_START
    yield from (_SIGNALLED, SHUTDOWN, AWAITED, *_STATES[:4])
    yield from dict.fromkeys(reason for _, _, reason in _OF_LIBRARIES)
    yield from _STATES[4:]


def _advise_on_call(row: RankClass) -> tuple[Blame, str]:
    """Return what to do about ranks that are all in a call, or in calls that do not belong together."""
    found = next((each for each in _STATES[:4] if each.waits in row.doing), None)
    if found is not None:
        return found.blame, found.advice
    at_link = "acknowledged" in row.doing or "its GPU" in row.doing
    words = {*row.doing.replace(":", " ").split()}
    one = row.name == "stuck inside" or "different arguments" in row.doing  # else the ranks are in several calls
    fix = next((fix for call, fix in _OF_CALLS.items() if call in words and (one or call == "backward")), "")
    fix = next((of for phrase, of in _OF_PHRASES.items() if phrase in row.doing), fix)
    fix = "" if at_link else fix
    if row.name == "desync":
        return "job", fix
    on_gpus = any(each.source.endswith(":NVML") for each in row.evidence)
    return "unknown", fix or (_GROUPS if OTHER_GROUPS in row.doing or not (at_link or on_gpus) else _LINKS)
