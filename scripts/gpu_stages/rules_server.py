"""``python -m gpu_stages.rules_server``: ask one libnccl once per case, as far as a GPU allows. JSON in, lines out.

The request on standard input: {library, driver, init, isolate, links, lo, cases: [{env, files}]}. The first line
of the answer holds NCCL's version and the interfaces of this network, each further one what came of a case: the result
codes of ncclGetUniqueId and, with `init`, of ncclCommInitRank on each of two ranks; their logs; the environment that
rank 0 left behind. With `isolate` the
network and /etc are this process's own (scripts/oracle_server.py); else they are the machine's, and files are not laid.

NCCL reads its variables once per process, so every rank of every case is a fork of this one, which has loaded the
libraries already and has not touched the GPU.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import oracle_server

from gpu_stages.nccl_calls import Nccl, NcclError
from ncclprobe.facts.interfaces import interfaces
from ncclprobe.host.live import LiveHost

RANKS = 2
CASE_S = 10
_ID_BYTES = 128
_MOST_LOG = 1 << 20
_DEAD: dict[str, Any] = {"id": None, "init": None, "log": "died or ran out of time", "environ": {}}


def main() -> None:
    """Answer the request."""
    request = json.load(sys.stdin)
    nccl = Nccl(Path(request["library"]))
    for name in request["driver"]:  # found now, as /etc/ld.so.cache may be hidden later
        with contextlib.suppress(OSError):
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    if request["isolate"]:
        oracle_server.isolate()
        oracle_server.build(request["links"], request["lo"])
    host = LiveHost((), lambda _name: False)
    print(nccl.version(), msgspec.json.encode(interfaces.run(host)).decode(), flush=True)
    host.close()
    for case in request["cases"]:
        print(json.dumps(ask(nccl, case["env"], case["files"], RANKS if request["init"] else 0)), flush=True)


def ask(nccl: Nccl, env: dict[str, str], files: dict[str, str], ranks: int) -> list[dict[str, Any]]:
    """What each rank of one case said and came to; of no ranks: what one process that only asks for an id said."""
    for path, content in files.items():
        Path(path).write_bytes(content.encode())
    pipes = [os.pipe() for _ in range(max(1, ranks))]
    ids = os.pipe()
    pids = []
    for rank, pipe in enumerate(pipes):
        if (pid := os.fork()) == 0:
            signal.alarm(CASE_S)
            _answer(nccl, {**env, "NCCL_HOSTID": f"hour-{rank}"} if rank else env, rank, ranks, ids, pipe[1])
        pids.append(pid)
    for end in (*ids, *(writing for _, writing in pipes)):
        os.close(end)
    answers = []
    for (reading, _), pid in zip(pipes, pids, strict=True):
        with os.fdopen(reading) as stream:
            text = stream.read()
        os.waitpid(pid, 0)
        answers.append(dict(json.loads(text)) if text else _DEAD)
    for path in files:
        Path(path).unlink(missing_ok=True)
    return answers


def _answer(nccl: Nccl, env: dict[str, str], rank: int, ranks: int, ids: tuple[int, int], out: int) -> None:
    """In the fork: make the calls with both outputs in a file of its own, answer, and end."""
    os.environ.clear()
    os.environ.update(env)
    log = os.memfd_create("log")
    os.dup2(log, 1)
    os.dup2(log, 2)
    found = _called(nccl, rank, ranks, ids)
    oracle_server.libc.fflush(None)
    said = os.pread(log, _MOST_LOG, 0).decode(errors="surrogateescape")
    environ = oracle_server.environ_of_c() if rank == 0 else {}
    os.write(out, json.dumps({**found, "log": said, "environ": environ}).encode())
    os._exit(0)


def _called(nccl: Nccl, rank: int, ranks: int, ids: tuple[int, int]) -> dict[str, Any]:
    """The result of each call: 0, NCCL's words, or null where it was not made."""
    found: dict[str, Any] = {"id": None, "init": None}
    try:
        if rank == 0:
            name = nccl.unique_id()
            found["id"] = 0
            os.write(ids[1], name * (ranks - 1))
        else:
            os.close(ids[1])  # so that reading ends where rank 0 got no id
            name = os.read(ids[0], _ID_BYTES)
        if ranks and len(name) == _ID_BYTES:
            nccl.communicator(name, rank, ranks)
            found["init"] = 0
    except NcclError as refusal:
        found["id" if found["id"] is None and rank == 0 else "init"] = str(refusal)
    return found


if __name__ == "__main__":
    main()
