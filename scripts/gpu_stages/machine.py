"""What the stages need of the machine: ranks on its one GPU, free ports, NCCL's library, and how we call ours.

Several ranks on one GPU: NCCL refuses them where host hash and GPU are equal, and the host hash comes from NCCL_HOSTID
(src/init.cc since 2.5.6, misc/utils.cc). Each rank is therefore a node of its own, and bytes go over NET/Socket. From
2.30.3 on NCCL_MULTI_RANK_GPU_ENABLE allows it outright. Times then mean nothing: the ranks' contexts take turns.
"""

import json
import os
import shutil
import socket
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpu_stages import processes
from gpu_stages.processes import End, Started
from gpu_stages.steps import Context, Refused

RAS_PORT = 28100
"""Of rank 0; every further rank listens one higher, so that a rank that is lost takes no other's answers with it."""
PLACES = {"in": "in place", "out": "out of place"}
_CLONE_NEWNET = 0x40000000
_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC", "SLURM_", "OMPI_", "PMI", "NCCL_", "TORCH_")
_QUESTION_S = 60.0


def variables(out: Path, root: Path, mark: str) -> dict[str, str]:
    """The environment of all that a stage starts: no launcher's or library's variable of the caller's gets in."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    path = [str(root), str(root / "scripts"), str(site(out)), mine.get("PYTHONPATH", "")]
    ours = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", processes.MARK: mark, "GLOO_SOCKET_IFNAME": "lo"}
    return {**mine, **ours, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def site(out: Path) -> Path:
    """Where carried wheels are unpacked."""
    return out / "site"


def unpack(wheels: Path, out: Path) -> list[str]:
    """Unpack the wheels of a folder for the stages to import; their names. Raises OSError, BadZipFile."""
    found = sorted(wheels.glob("*.whl"))
    for wheel in found:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site(out))
    return [wheel.name for wheel in found]


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def rank_variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The variables that make a process `rank` of `ranks`, each of which is a node of its own to NCCL."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "NCCL_HOSTID": f"hour-{rank}",
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_RAS_ADDR": f"localhost:{RAS_PORT + rank}",
    }


def ncclprobe(command: str, *arguments: object) -> list[str]:
    """The command line of one of our commands."""
    return [sys.executable, "-m", "ncclprobe", command, *map(str, arguments)]


def start_ranks(
    variables: Mapping[str, str],
    folder: Path,
    ranks: Sequence[int],
    of: int,
    command: Sequence[object],
    first: Mapping[str, str] = MappingProxyType({}),
) -> list[Started]:
    """Start `command` as each of `ranks` in a world of `of`; rank N writes to rankN.log in `folder`.

    `first` are variables of rank 0 alone.
    """
    env, port = dict(variables), free_port()
    own = ({**env, **rank_variables(rank, of, port), **(first if rank == 0 else {})} for rank in ranks)
    return [processes.start(command, folder / f"rank{rank}.log", each) for rank, each in zip(ranks, own, strict=True)]


def as_ranks(context: Context, folder: Path, of: int, command: Sequence[object], deadline_s: float) -> list[End]:
    """Run `command` as all ranks of a world and wait for them."""
    return processes.wait(start_ranks(context.variables, folder, range(of), of, command), deadline_s)


def output_of(context: Context, *command: object, log: Path, deadline_s: float = _QUESTION_S) -> str:
    """What a program writes. Raises Refused where it is not there, or does not end well."""
    if shutil.which(str(command[0]), path=context.variables.get("PATH")) is None:
        raise Refused(f"there is no {command[0]} here")
    ended = processes.run(command, log, context.variables, deadline_s)
    if ended.code != 0:
        raise Refused(str(ended))
    return ended.text


def report(path: Path) -> dict[str, Any]:
    """A JSON report as it was written. Raises OSError, ValueError."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or "exit_code" not in found:
        raise ValueError(f"{path.name} is no report")
    return found
