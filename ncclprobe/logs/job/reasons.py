"""Why a rank does not go on, and what to do about it: each reason has a kind, and its advice.

:func:`of_stack` finds the reason by the functions of libraries that a rank is in; other modules find it by the state of
its process, or by the calls of all ranks. The kind goes with the rank into the report, and :func:`advice` goes by it.
"""

from collections.abc import Mapping, Sequence

from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.logs.collectives import caller
from ncclprobe.model.causes import RankClass
from ncclprobe.model.findings import Blame
from ncclprobe.model.values import Struct

_PY_SPY = "`py-spy dump --pid PID` shows all of its threads"
_LOOK = f"Look at the named line of the program; {_PY_SPY}."
_ENVIRON = "`tr '\\0' '\\n' </proc/PID/environ`"
_REASONS: dict[str, "Reason"] = {}


class Reason(Struct, frozen=True):
    """Why a rank does not go on: its kind, in words as the rest of a sentence about it, what to do, who is at fault.

    `waits` is empty if only numbers of the rank say it.
    """

    kind: str
    waits: str
    advice: str
    blame: Blame = "job"


class Doing(Struct, frozen=True):
    """What a rank does, as the rest of a sentence about it, and why it does not go on; None: it is not known to be."""

    text: str
    reason: Reason | None = None

    def but(self, text: str) -> "Doing":
        """Return the same with further words."""
        return Doing(f"{self.text}{text}", self.reason)


def _reason(kind: str, waits: str, advice: str, blame: Blame = "job") -> Reason:
    made = _REASONS[kind] = Reason(kind, waits, advice, blame)
    return made


_OTHER_END = "Look at the process at the other end of this pipe: it has ended, or is itself waiting."
_TO_SET = "Look at the process that has to set it: it has ended, or is itself waiting."

DEBUGGER = _reason(
    "debugger",
    "is at the prompt of a debugger and reads its standard input",
    "Take `breakpoint()` or `pdb.set_trace()` out of the program, or continue it at its terminal with `c`.",
)
_DEBUGPY = _reason("debugpy", "waits for a debugger to connect", "Connect it, or start without debugpy.")
HTTP = _reason(
    "http",
    "waits for an answer of a server over HTTP",
    "See whether the server answers this node (`curl -sv URL`), and give the request a timeout in the program.",
    "unknown",
)
_BUILD = _reason(
    "extension-build",
    "waits for the lock file of an extension build",
    "If no process builds it any more, a killed job has left this lock: remove it. "
    "`find ${TORCH_EXTENSIONS_DIR:-~/.cache/torch_extensions} -name lock` finds those of torch.utils.cpp_extension.",
)
LOCK_FILE = _reason(
    "lock-file",
    "waits for a lock file",
    "Find its holder (`fuser -v FILE`, `cat /proc/locks`). A lock file that nobody holds is stale: remove it.",
)
_PROCESS_LOCK = _reason(
    "process-lock",
    "waits for a lock that processes share",
    "Find the process that holds it. One that was killed while it held the lock never releases it: then start the job "
    "again, and hold the lock for less.",
)
_ITEM = _reason(
    "process-item",
    "waits for an item of a queue that another process has to put",
    "Look at the process that fills this queue: it has ended, or is itself waiting.",
)
_FULL = _reason(
    "process-queue-full",
    "waits for room in a queue that another process has to empty",
    "Look at the process that empties this queue: it has ended, or is itself waiting.",
)
THREAD_ITEM = _reason(
    "thread-item",
    "waits for an item of a queue that another thread has to put",
    "Look at the thread that fills this queue: if it has ended, the program's log shows its exception.",
)
_THREAD_FULL = _reason(
    "thread-queue-full",
    "waits for room in a queue that another thread has to empty",
    "Look at the thread that empties this queue: if it has ended, the program's log shows its exception.",
)
_POOL = _reason(
    "pool",
    "waits for results from a worker pool",
    "Look at the workers. multiprocessing.Pool never reports a worker that was killed, and a task that submits to its "
    "own full pool waits for ever.",
)
_MESSAGE = _reason("process-message", "waits for a message from another process", _OTHER_END)
_UNREAD = _reason("pipe-full", "is blocked while it writes to a pipe that another process has to read", _OTHER_END)
PROGRAM = _reason(
    "program",
    "waits for a program that it has started",
    "Look at that program (`pstree -ap PID`): it hangs, or waits for its input or for its output to be read. Give it a "
    "timeout.",
)
_PROCESS_END = _reason(
    "process-end",
    "waits for the end of a process that it has started",
    "Look at that process (`pstree -ap PID`). One that has put items into a queue ends only after these were taken.",
)
THREAD_END = _reason("thread-end", "waits for the end of a thread", f"Find what that thread waits for: {_PY_SPY}.")
SHUTDOWN = _reason(
    "program-end",
    "has come to the end of its program and waits for a thread that is not a daemon",
    "Let this thread end (an event, a sentinel in its queue), or start it with daemon=True.",
)
_PROCESS_EVENT = _reason("process-event", "waits for an event or condition that another process has to set", _TO_SET)
THREAD_EVENT = _reason(
    "thread-event",
    "waits for an event that another thread has to set",
    f"Find the thread that has to set it: {_PY_SPY}. The program's log shows the exception of one that has ended.",
)
_CONDITION = _reason(
    "thread-condition",
    "waits until another thread notifies a condition",
    f"Find the thread that has to notify it: {_PY_SPY}.",
)
_THREAD_BARRIER = _reason(
    "thread-barrier",
    "waits at a barrier of threads or processes, or for a semaphore",
    f"Find who has not arrived there, or does not release it: {_PY_SPY}.",
)
_LOADER = _reason(
    "data-loader",
    "waits for its data loader",
    "Look at the workers of the loader. With num_workers=0 the same read happens in the rank, and its stack shows it; "
    "`timeout=` of the DataLoader turns the wait into an error.",
)
_REMOTE = _reason(
    "network-reply",
    "waits for a network reply from another program",
    "See whether the program at the other end is alive and answers, and give the call a timeout.",
    "unknown",
)
_NAME = _reason(
    "dns", "looks up the address of a name", "See whether this node's DNS answers: `getent hosts NAME`.", "unknown"
)
_PASSWORD = _reason(
    "password", "asks for a password at its terminal", "Give it the password in another way: nobody types here."
)
_RETRIES = _reason(
    "retries",
    "tries something again and again, with pauses",
    "The program's log shows what fails; let it give up after some tries.",
)
_EVENT_LOOP = _reason(
    "event-loop",
    "waits in an event loop (asyncio)",
    "Find the task that does not end: `asyncio.run(..., debug=True)`, or a timeout around what it awaits.",
)
_IMPORT = _reason(
    "import", "imports a module", "Look at the file system that holds the packages, and at what the module does."
)
_COMPILES = _reason("compilation", "compiles (torch.compile)", "Wait, or look at the compilers that it has started.")
_CHECKPOINT = _reason(
    "checkpoint", "reads or writes a checkpoint", "Look at the storage that holds the checkpoint.", "unknown"
)
_GPU = _reason(
    "gpu", "waits for its GPU", "Look at the GPU and at the kernel's log of its node: `nvidia-smi`, `dmesg | grep Xid`."
)

_OF_LIBRARIES: Sequence[tuple[str, frozenset[str], Reason]] = [
    (path, frozenset(names.split()), reason)
    for path, names, reason in (
        ("/pdb.py /bdb.py /cmd.py /code.py /IPython/ /ipdb/ /pudb/", "", DEBUGGER),
        ("/debugpy/ /pydevd", "", _DEBUGPY),
        ("/torch/utils/file_baton.py", "", _BUILD),
        ("/filelock/ /portalocker/ /fasteners/ /lockfile/", "", LOCK_FILE),
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
        ("/subprocess.py", "", PROGRAM),
        ("/queue.py", "get", THREAD_ITEM),
        ("/queue.py", "put join", _THREAD_FULL),
        ("/concurrent/futures/", "result wait shutdown as_completed result_iterator __exit__ map", _POOL),
        ("/threading.py", "_shutdown", SHUTDOWN),
        ("/threading.py", "join _wait_for_tstate_lock", THREAD_END),
        ("/threading.py", "Event.wait", THREAD_EVENT),
        ("/threading.py", "Barrier.wait acquire __enter__", _THREAD_BARRIER),
        ("/threading.py", "wait wait_for", _CONDITION),
        ("/tenacity/ /backoff/ /retrying.py /retry/", "", _RETRIES),
        ("/urllib/ /urllib3/ /requests/ /httpx/ /httpcore/ /http/client.py /aiohttp/", "", HTTP),
        ("/huggingface_hub/ /botocore/ /boto3/ /s3transfer/ /s3fs/ /gcsfs/ /fsspec/ /wandb/", "", HTTP),
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
FOR_THREADS = (THREAD_ITEM, _THREAD_FULL, THREAD_EVENT, _CONDITION)
"""Waits for other threads of the program."""
LOCKS = (_BUILD, LOCK_FILE, _PROCESS_LOCK)
"""Waits for what another rank may hold."""
_OF_PYTHON = ("/lib/python", "-packages/")
SIGNALLED = _reason(
    "signal-handler",
    "waits for a lock inside the handler of a signal, which interrupted the code that may hold it",
    "A handler must not take a lock: let it only set a flag, and act on this flag in the main loop.",
)
AWAITED = _reason(
    "awaited-operation",
    "waits for a torch.distributed operation",
    "Compare its peer, tag, group and size with the calls of the other ranks.",
)

# By the state of a process.

STORAGE = _reason(
    "storage",
    "",
    "The storage is at fault: look at its server, and at `journalctl -k` of this node. A process in this state cannot "
    "be killed until the server answers.",
    "unknown",
)
STOPPED = _reason(
    "stopped",
    "",
    "resume it with `kill -CONT PID`, unless somebody stopped it on purpose; `ps -o pid,stat,cmd -p PID` shows its "
    "state",
    "unknown",
)
TRACED = _reason("traced", "", "let the debugger continue, or end it: the traced process then continues", "unknown")
FROZEN = _reason(
    "frozen",
    "is frozen with its cgroup",
    "The container runtime or the scheduler has frozen its cgroup: `docker unpause`, `scontrol resume`, or 0 in its "
    "cgroup.freeze.",
    "unknown",
)
HALTED = (STORAGE, STOPPED, TRACED, FROZEN)
"""States from which only somebody else can release a process."""
KEY = _reason(
    "store-key",
    "waits for a key",
    "Find the rank that sets this key of the store (`store.set`), and why not: another name, or a PrefixStore.",
)
HELD = _reason(
    "lock-held",
    "waits for the lock on a file",
    "End the process that holds the lock, or wait until it is released: `ps -fp PID`, `cat /proc/locks`.",
)
FILE_LOCK = _reason(
    "file-lock",
    "waits for the lock on a file",
    "Find the process that holds it: `cat /proc/locks`, `fuser -v FILE`.",
)
FIFO = _reason(
    "fifo",
    "opens a FIFO whose other end nobody opens",
    "Start the process that has to open the other end of this FIFO, or remove it.",
)
WRITE = _reason(
    "write",
    "writes what is not taken",
    "Find the process that has to read it: `lsof -p PID` shows the pipe or socket. If that process has ended or hangs, "
    "end the write.",
)
STDIN = _reason(
    "stdin",
    "reads its standard input, where nothing arrives",
    "Nobody types here: start it with `</dev/null`, and take the question out.",
)
READ = _reason(
    "read",
    "reads data that do not arrive",
    "Look at the process or server at the other end, and give the read a timeout.",
)
CHILD = _reason("child", "waits for a process that it has started", PROGRAM.advice)
CONNECT = _reason(
    "connect", "connects", "See whether the other end answers this node: `nc -vz ADDRESS PORT`.", "unknown"
)
SPIN = _reason(
    "spin",
    "",
    "Look at the loop around the line that is named: a value that is NaN never gets below a limit. `py-spy dump --pid "
    "PID`, run twice, shows whether the program makes progress.",
)
SIGNAL = _reason(
    "signal",
    "waits for a signal",
    "Find who has to send this signal, and why it has not: it may have come too early.",
)
REQUESTS = _reason("requests", "waits for requests", "Find who has to connect to this socket, and why it does not.")
DISK = _reason("disk", "waits for a disk", "Look at the storage, and at `journalctl -k` of this node.", "unknown")
SLEEP = _reason(
    "sleep",
    "sleeps",
    "Look at the loop around the line that is named: what it waits for does not happen, or it has swallowed an error "
    "that the program's log shows.",
)
LOCK = _reason(
    "lock",
    "waits for a lock or for another thread",
    f"Find the thread that holds it or has to act: {_PY_SPY}.",
)
LOCK_IN_CALL = _reason(
    "lock-in-collective",
    "",
    "Another thread of this rank is in a collective, and may hold the lock meanwhile. Release the lock before the "
    "collective, and call all collectives in one thread.",
)

# What a loop with pauses asks again and again.

POLLS = {
    kind: _reason(f"polls-{kind}", f"polls {what} in a loop", advice)
    for kind, what, advice in (
        (
            "file",
            "for a file",
            "Find who has to write this file: it has failed, writes to another folder, or this node does not see its "
            "file system. Give the loop a deadline.",
        ),
        ("key", "for a key of a store", KEY.advice),
        (
            "queue",
            "a queue",
            "Look at the thread or process that fills this queue: it has ended, or is itself waiting.",
        ),
        ("server", "a server", "See whether the server answers this node, and let the loop give up after some tries."),
        ("work", "for the end of a torch.distributed operation", AWAITED.advice),
        ("process", "for the end of a process", PROGRAM.advice),
        ("event", "for an event", THREAD_EVENT.advice),
        ("lock", "for a lock", LOCK_FILE.advice),
    )
}

FOR_PROCESSES = (PROGRAM, _PROCESS_END, _POOL, POLLS["process"])
"""Waits for processes that it has started."""

# Ranks that have not joined the store.

_ONE_MASTER = f"start all ranks with one MASTER_ADDR and MASTER_PORT: {_ENVIRON} shows them"
OUT_OF_RANGE = _reason(
    "rank-out-of-range", "", "Ranks count from 0: start each rank with a RANK of 0 to WORLD_SIZE - 1."
)
TWICE = _reason("rank-twice", "", "Start every rank once, each with a RANK of its own: 0 to WORLD_SIZE - 1.")
WORLD = _reason("world-size", "", f"start all ranks with the same WORLD_SIZE: {_ENVIRON} shows it")
STRANGER = _reason(
    "port-in-use",
    "",
    "Give the job another MASTER_PORT, or end that program. The log of rank 0 has `EADDRINUSE`.",
)
OTHER_STORE = _reason("other-store", "", _ONE_MASTER)
UNREACHABLE = _reason(
    "unreachable",
    "",
    "Compare MASTER_ADDR and MASTER_PORT of all ranks, and make sure that this node reaches the port: "
    "`nc -vz ADDRESS PORT`.",
)
NO_PROCESS = _reason("no-process", "", "Start this rank. If it was started, the end of its log shows why it ended.")
AGENT = _reason(
    "torchrun",
    "",
    "Start torchrun on the missing nodes, with the same --rdzv-endpoint, --rdzv-id and --nnodes.",
)

# Calls of ranks that do not belong together.

MIXED_GROUPS = _reason("mixed-groups", "", "Pass the same group on all ranks: None is the default group of all ranks.")
CROSSED = _reason("crossed-groups", "", "Let all ranks enter their groups in one order.")
TAG = _reason("p2p-tag", "", "Use the same tag for each send and its matching receive.")
PEER = _reason(
    "p2p-peer",
    "",
    "Compare src, dst and tag of the sends and receives: each receive needs the send of its source.",
)
CIRCLE = _reason(
    "p2p-circle",
    "",
    "Let one rank of the circle make its other call first, such as its send before its receive, or post all of them "
    "together with batch_isend_irecv.",
)
_SRC = "All ranks must pass the same src. Compare src and group of this call on all ranks."
_DST = "All ranks must pass the same dst. Compare dst and group of this call on all ranks."
THREADS = _reason(
    "collectives-of-threads",
    "",
    "Two threads of one rank call collectives, whose order then differs between ranks. Call all collectives of a group "
    "in one thread.",
)
OF_CALLS = {
    call: _reason(f"in-{call.replace('_', '-')}", "", fix, "unknown")
    for call, fix in {
        "backward": "DistributedDataParallel reduces gradients in backward. Give all ranks as many batches (or use "
        "`model.join()`), the same `no_sync()`, and find_unused_parameters=True if some ranks do not use all "
        "parameters.",
        **dict.fromkeys(("broadcast", "broadcast_object_list", "scatter", "scatter_object_list"), _SRC),
        **dict.fromkeys(("reduce", "gather", "gather_object"), _DST),
        "new_group": "Every rank of the job has to make the same groups in the same order, also those that it is not "
        "in.",
        "init_process_group": "Give all ranks one init_method, world size and group name, and each its own rank. A "
        "file of `file://` has to be on a file system that all ranks share, and new for each job.",
    }.items()
}
"""Calls whose arguments have to be equal on all ranks, or that all ranks have to make equally often."""
GROUPS = _reason(
    "groups",
    "",
    "Let all ranks enter their groups in one order. In a circle each rank waits in a group for one that is in another; "
    "sizes and types also have to be equal in a group.",
    "unknown",
)
LINKS = _reason(
    "links",
    "",
    "Run `ncclprobe doctor` on these nodes to check links and ports, and search the kernel's logs for Xid and link "
    "events.",
    "unknown",
)
OTHER_GROUPS = "these may be different groups that wait for each other in a circle"
"""About ranks that are in one call of groups which the program made."""


def of_stack(stack: Sequence[FlightFrame]) -> Reason | None:
    """Return what the functions of libraries inside the program's innermost one wait for: the outermost that is known.

    In the program itself that is an operation of torch, or what a loop with pauses asks for.
    """
    own = caller(stack)
    if own is None:
        return None
    package = "-packages/" in own.filename and "/torch/" not in own.filename
    no_own = not package and any(part in own.filename for part in _OF_PYTHON)
    inner = stack if no_own else stack[: [*stack].index(own)]
    for frame in reversed(inner):
        for path, names, reason in _OF_LIBRARIES:
            if path in frame.filename and (not names or names & {frame.name, frame.name.rpartition(".")[2]}):
                return reason
    values: Mapping[str, str] = getattr(own, "values", {}) if not inner else {}
    return POLLS.get(values.get("polls", "")) or (AWAITED if values.get("work") else None)


def signalled(stack: Sequence[FlightFrame]) -> Reason | None:
    """Return that a rank is in the handler of a signal; None: it is not, as far as known."""
    return SIGNALLED if any("signal" in getattr(frame, "values", {}) for frame in stack) else None


def advice(row: RankClass) -> tuple[Blame, str]:
    """Return who is at fault by what was seen of ranks, and what to do about just that; empty: what usually helps."""
    found = _REASONS.get(row.reason)
    if found is not None:
        return found.blame, found.advice
    if row.name == "desync":
        return "job", ""
    return "job", _LOOK if row.processes and row.name in ("stuck outside", "not arrived") else ""
