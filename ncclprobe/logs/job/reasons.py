"""Why a rank does not go on, and what to do about it: a table of reasons by their kind, ``reasons.tsv``.

:func:`of_stack` finds the kind by the functions of libraries that a rank is in; other modules find it by the state of
its process, or by the calls of all ranks. The kind goes with the rank into the report, and :func:`advice` goes by it.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from ncclprobe.facts.files.flight_records import FlightFrame
from ncclprobe.logs.collectives import caller
from ncclprobe.model.causes import RankClass
from ncclprobe.model.findings import Blame
from ncclprobe.model.values import Struct

_TABLE = Path(__file__).with_name("reasons.tsv")
_LOOK = "Look at the named line of the program; `py-spy dump --pid PID` shows all of its threads."


class Reason(Struct, frozen=True):
    """Why a rank does not go on: its kind, who is at fault, in words as the rest of a sentence about it, what to do.

    `waits` is empty if only numbers of the rank say it.
    """

    kind: str
    blame: Blame
    waits: str
    advice: str


class Doing(Struct, frozen=True):
    """What a rank does, as the rest of a sentence about it, and the kind of why it does not go on; empty: unknown."""

    text: str
    reason: str = ""

    def but(self, text: str) -> "Doing":
        """Return the same with further words."""
        return Doing(f"{self.text}{text}", self.reason)


@cache
def reasons() -> Mapping[str, Reason]:
    """Return the table of reasons by their kind."""
    lines = _TABLE.read_text(encoding="utf-8").splitlines()
    rows = (msgspec.convert(line.split("\t"), tuple[str, Blame, str, str]) for line in lines if line[:1] != "#")
    return {kind: Reason(kind, blame, waits, advice) for kind, blame, waits, advice in rows}


def waits(kind: str) -> str:
    """Return what a rank waits for, as the rest of a sentence about it."""
    return reasons()[kind].waits


_OF_LIBRARIES: Sequence[tuple[str, frozenset[str], str]] = [
    (path, frozenset(names.split()), reason)
    for path, names, reason in (
        ("/pdb.py /bdb.py /cmd.py /code.py /IPython/ /ipdb/ /pudb/", "", "debugger"),
        ("/debugpy/ /pydevd", "", "debugpy"),
        ("/torch/utils/file_baton.py", "", "extension-build"),
        ("/filelock/ /portalocker/ /fasteners/ /lockfile/", "", "lock-file"),
        ("/torch/utils/data/", "", "data-loader"),
        ("/multiprocessing/pool.py /joblib/ /loky/", "", "pool"),
        ("/multiprocessing/queues.py", "_finalize_join _feed", "process-queue-full"),
        ("/multiprocessing/queues.py", "get", "process-item"),
        ("/multiprocessing/queues.py", "put", "process-queue-full"),
        ("/multiprocessing/synchronize.py", "wait wait_for", "process-event"),
        ("/multiprocessing/synchronize.py", "", "process-lock"),
        ("/multiprocessing/connection.py", "send send_bytes", "pipe-full"),
        ("/multiprocessing/managers.py /multiprocessing/connection.py", "", "process-message"),
        (
            "/multiprocessing/process.py /multiprocessing/popen_fork.py /torch/multiprocessing/spawn.py",
            "",
            "process-end",
        ),
        ("/subprocess.py", "", "program"),
        ("/queue.py", "get", "thread-item"),
        ("/queue.py", "put join", "thread-queue-full"),
        ("/concurrent/futures/", "result wait shutdown as_completed result_iterator __exit__ map", "pool"),
        ("/threading.py", "_shutdown", "program-end"),
        ("/threading.py", "join _wait_for_tstate_lock", "thread-end"),
        ("/threading.py", "Event.wait", "thread-event"),
        ("/threading.py", "Barrier.wait acquire __enter__", "thread-barrier"),
        ("/threading.py", "wait wait_for", "thread-condition"),
        ("/tenacity/ /backoff/ /retrying.py /retry/", "", "retries"),
        ("/urllib/ /urllib3/ /requests/ /httpx/ /httpcore/ /http/client.py /aiohttp/", "", "http"),
        ("/huggingface_hub/ /botocore/ /boto3/ /s3transfer/ /s3fs/ /gcsfs/ /fsspec/ /wandb/", "", "http"),
        ("/grpc/ /redis/ /psycopg /pymysql/ /pymongo/ /paramiko/ /ray/ /mlflow/ /xmlrpc/", "", "network-reply"),
        ("/smtplib.py /ftplib.py /imaplib.py /telnetlib.py", "", "network-reply"),
        ("/socket.py", "getaddrinfo gethostbyname", "dns"),
        ("/asyncio/", "", "event-loop"),
        ("/getpass.py", "", "password"),
        ("/torch/cuda/", "synchronize", "gpu"),
        ("/torch/_inductor/ /torch/_dynamo/ /triton/", "", "compilation"),
        ("/torch/serialization.py /safetensors/ /torch/distributed/checkpoint/", "", "checkpoint"),
        ("<frozen importlib", "", "import"),
    )
    for path in (path.split() if not path.startswith("<") else [path])
]
FOR_THREADS = ("thread-item", "thread-queue-full", "thread-event", "thread-condition")
"""Waits for other threads of the program."""
LOCKS = ("extension-build", "lock-file", "process-lock")
"""Waits for what another rank may hold."""
FOR_PROCESSES = ("program", "process-end", "pool", "polls-process")
"""Waits for processes that it has started."""
HALTED = ("storage", "stopped", "traced", "frozen")
"""States from which only somebody else can release a process."""
POLLS = "polls-"
"""What a loop with pauses asks again and again: the beginning of these kinds."""
_OF_PYTHON = ("/lib/python", "-packages/")
OTHER_GROUPS = "these may be different groups that wait for each other in a circle"
"""About ranks that are in one call of groups which the program made."""


def of_call(call: str) -> str:
    """Return the reason why ranks stay in a call whose arguments have to be equal, or that all have to make equally
    often; empty: it is another call.
    """
    kind = f"in-{call.replace('_', '-')}"
    return kind if kind in reasons() else ""


def of_stack(stack: Sequence[FlightFrame]) -> str:
    """Return the reason by the functions of libraries inside the program's innermost one: of the outermost that is
    known; empty: none is.

    In the program itself that is an operation of torch, or what a loop with pauses asks for.
    """
    own = caller(stack)
    if own is None:
        return ""
    package = "-packages/" in own.filename and "/torch/" not in own.filename
    no_own = not package and any(part in own.filename for part in _OF_PYTHON)
    inner = stack if no_own else stack[: [*stack].index(own)]
    for frame in reversed(inner):
        for path, names, reason in _OF_LIBRARIES:
            if path in frame.filename and (not names or names & {frame.name, frame.name.rpartition(".")[2]}):
                return reason
    values: Mapping[str, str] = getattr(own, "values", {}) if not inner else {}
    return values.get("asks", "") or ("awaited-operation" if values.get("work") else "")


def signalled(stack: Sequence[FlightFrame]) -> str:
    """Return that a rank is in the handler of a signal; empty: it is not, as far as known."""
    return "signal-handler" if any("signal" in getattr(frame, "values", {}) for frame in stack) else ""


def advice(row: RankClass) -> tuple[Blame, str]:
    """Return who is at fault by what was seen of ranks, and what to do about just that; empty: what usually helps."""
    found = reasons().get(row.reason)
    if found is not None:
        return found.blame, found.advice
    if row.name == "desync":
        return "job", ""
    return "job", _LOOK if row.processes and row.name in ("stuck outside", "not arrived") else ""
