"""Who am I among the ranks, what do I measure with, and how do the ranks exchange their results?

The first half is pure and runs before torch is imported; the second half opens the job's own store. The store is
torch's rendezvous, as in any torch job: under torchrun the agent's (we are a client only), otherwise rank 0 serves it
on MASTER_PORT. Everything of ours lies under one key prefix, and values are JSON.
"""

import json
import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

from ncclprobe.errors import ProbeError, UsageError
from ncclprobe.facts.launcher import Launch

MAX_VALUE_BYTES = 8 << 20  # torch's TCPStore drops the connection above this (lab/recipes: seen with torch 2.13)
_POLL_S = 0.002

Backend = Literal["nccl", "gloo"]


@dataclass(frozen=True, slots=True)
class Seat:
    """This process among the ranks of a job, and where they meet. Complete: nothing in it is unknown."""

    kind: str
    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    nnodes: int
    address: str
    port: int
    agent_store: bool = False
    attempt: str = "0"

    @property
    def serves(self) -> bool:
        """Whether this rank hosts the store."""
        return self.rank == 0 and not self.agent_store


def seat(launch: Launch, variables: Mapping[str, str]) -> Seat | None:
    """The seat that the launcher's variables give this process; None: no launcher, hence one rank.

    Raises UsageError naming the variable that is missing or contradictory.
    """
    if launch.problems:
        problem = launch.problems[0]
        raise UsageError(f"{problem.subject} {problem.message}; start with torchrun, srun, mpirun or --nproc N")
    if launch.rank is None or launch.world_size is None:
        return None
    nnodes = launch.nnodes or 1
    local_ranks = launch.local_world_size or (launch.world_size if nnodes == 1 else 1)
    local_rank = launch.local_rank if launch.local_rank is not None else launch.rank % local_ranks
    return Seat(
        kind=launch.kind,
        rank=launch.rank,
        ranks=launch.world_size,
        local_rank=local_rank,
        local_ranks=local_ranks,
        nnodes=nnodes,
        address=launch.master_addr or _master_address(launch.kind, nnodes, launch.world_size, variables),
        port=launch.master_port or _master_port(variables),
        agent_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=variables.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def _master_address(kind: str, nnodes: int, ranks: int, variables: Mapping[str, str]) -> str:
    """Where rank 0 is, if nobody said: here on one node, Slurm's first node otherwise."""
    if nnodes == 1 or ranks == 1:
        return "127.0.0.1"
    nodelist = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST")
    if kind == "slurm" and nodelist:
        return first_host(nodelist)
    raise UsageError(
        f"MASTER_ADDR is not set and {kind} started ranks on {nnodes} nodes; "
        "set MASTER_ADDR to the host of rank 0 (mpirun -x MASTER_ADDR=HOST)"
    )


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list: ``gpu[007-010,20],cpu1`` begins with gpu007. Raises UsageError.

    The grammar is the one of ``scontrol show hostnames`` (slurm.conf(5), NodeName): prefixes with bracketed,
    comma-separated numbers and ranges, whose leading zeros count.
    """
    match = re.match(r"(?:[^,\[\]]|\[[^\[\]]*\])+(?=,|$)", nodelist.strip())
    first = re.sub(r"\[(\w+)[^\]]*\]", r"\1", match[0]) if match else ""
    if not re.fullmatch(r"[\w.-]+", first):
        raise UsageError(f"SLURM_JOB_NODELIST {nodelist!r} is not understood; set MASTER_ADDR to the host of rank 0")
    return first


def _master_port(variables: Mapping[str, str]) -> int:
    """A port that every rank of this job derives alike and another job on the node hardly shares: 20000-29999.

    Below Linux' ephemeral ports (32768 and up), which the job's own connections use.
    """
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PBS_JOBID", "LSB_JOBID")
    job = "/".join(variables.get(name, "") for name in names)
    return 20000 + zlib.crc32(job.encode()) % 10000


@dataclass(frozen=True, slots=True)
class Devices:
    """The GPUs of this node as this process sees them: `nodes` counts /dev/nvidia<N>, `usable` what torch can use.

    `usable` is None before torch was asked.
    """

    nodes: int
    usable: int | None = None
    torch: str = ""


def choose_backend(asked: Backend | None, kind: str, local_ranks: int, devices: Devices) -> tuple[Backend, str]:
    """What `local_ranks` ranks started by `kind` measure with, and what the reader must be told (empty: nothing).

    Never falls back silently where there is an NVIDIA device. Raises UsageError naming the remedy.
    """
    if asked == "gloo":
        return "gloo", ""
    count = devices.nodes if devices.usable is None else devices.usable
    if devices.usable == 0 and devices.nodes:
        raise UsageError(
            f"this node has NVIDIA devices but torch {devices.torch} can use none; "
            "install a CUDA build of torch and check CUDA_VISIBLE_DEVICES, or ask for --backend gloo"
        )
    if count == 0 and asked is None:
        return "gloo", "no GPU can be seen, so this measured gloo over the CPU; that says nothing about NCCL"
    if count == 0 and devices.usable is not None:
        raise UsageError("--backend nccl needs a GPU per rank and none can be seen; ask for --backend gloo")
    bound_per_rank = count == 1 and kind in ("slurm", "openmpi", "pmi")  # such as srun --gpus-per-task=1
    if 0 < count < local_ranks and not bound_per_rank:
        raise UsageError(
            f"{local_ranks} ranks on this node and {count} GPU{'s' * (count > 1)}: start one rank per GPU "
            "(--nproc-per-node=gpu), or ask for --backend gloo"
        )
    return "nccl", ""


def device_index(seat: Seat, usable: int) -> int:
    """The CUDA index for this rank: its local rank, or the only one that the launcher left visible."""
    return seat.local_rank if seat.local_rank < usable else 0


class Store(Protocol):
    """What is used of torch's TCPStore."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def check(self, keys: list[str], /) -> bool: ...
    def delete_key(self, key: str, /) -> bool: ...


def connect(seat: Seat, *, serve: bool, timeout_s: float) -> Any:
    """A new connection to the job's store (clients are not safe across threads: one each); `serve`: host it as well.

    Raises UsageError where the port is taken, ProbeError where nobody answers within `timeout_s`. A server that is
    stopped can block longer than that: the caller is watched by a thread that touches no store.
    """
    from torch.distributed import TCPStore

    try:
        return TCPStore(
            seat.address,
            seat.port,
            is_master=serve,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        where = f"{seat.address}:{seat.port}"
        if "EADDRINUSE" in str(error):
            raise UsageError(f"port {seat.port} on this host is in use; set MASTER_PORT to a free one") from None
        text = str(error).partition("\n")[0]
        raise ProbeError(f"the store of rank 0 at {where} does not answer: {text}") from None


def key(seat: Seat, name: str) -> str:
    """The store key for `name`: our own prefix, and one per attempt of torchrun."""
    return f"ncclprobe/{seat.attempt}/{name}"


class Exchange:
    """Ranks hand their numbers to rank 0, and rank 0 its decisions to all, over the store: never the measured group.

    Each wait has `deadline_s` and names the ranks that did not answer. Every rank must make the same calls in order.
    """

    def __init__(self, store: Store, seat: Seat, deadline_s: float) -> None:
        self._store, self._seat, self._deadline_s = store, seat, deadline_s
        self._round = 0

    def gather(self, values: Sequence[float]) -> list[list[float]] | None:
        """All ranks' numbers on rank 0, by rank; None elsewhere."""
        return self.collect(list(values))

    def agree(self, value: float) -> float:
        """Rank 0's number on every rank."""
        return float(self.share(value))

    def collect(self, value: Any) -> list[Any] | None:
        """All ranks' JSON values on rank 0, by rank; None elsewhere."""
        names = [self._name(rank) for rank in range(self._seat.ranks)]
        self._round += 1
        self._put(names[self._seat.rank], value)
        if self._seat.rank:
            return None
        self._wait(names)
        values = [json.loads(text) for text in self._store.multi_get(names)]
        for name in names:
            self._store.delete_key(name)
        return values

    def share(self, value: Any) -> Any:
        """Rank 0's JSON value on every rank; what the others pass is not looked at."""
        name = self._name(0)
        self._round += 1
        if self._seat.rank == 0:
            self._put(name, value)
            return value
        self._wait([name])
        return json.loads(self._store.get(name))

    def _name(self, rank: int) -> str:
        return key(self._seat, f"exchange/{self._round}/{rank}")

    def _put(self, name: str, value: Any) -> None:
        text = json.dumps(value, allow_nan=False)
        if len(text) >= MAX_VALUE_BYTES:
            raise ProbeError(f"{len(text)} bytes are too many for one value of torch's store: use fewer --batches")
        self._store.set(name, text)

    def _wait(self, names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        deadline = clock() + self._deadline_s
        while not self._store.check(list(names)):
            if clock() > deadline:
                silent = [name.rpartition("/")[2] for name in names if not self._store.check([name])]
                raise ProbeError(f"no answer from rank {', '.join(silent)} within {self._deadline_s:.0f} s")
            time.sleep(_POLL_S)
