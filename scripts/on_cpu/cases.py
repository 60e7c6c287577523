"""What scripts/record_on_cpu.py plays."""

from dataclasses import dataclass, field
from typing import Literal

Launch = Literal["torchrun", "alone", "hand", "one-gpu"]
"""hand: ranks by hand, so that none ends the others; one-gpu: so, and each sees one GPU. alone: it starts its ranks."""


@dataclass(frozen=True)
class Case:
    """One job. `command`: Python's arguments; REPORT and JOB.py are replaced, as FOLDER in `env` is. `code`: the cause
    of what went wrong.
    """

    name: str
    launch: Launch
    ranks: int
    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    per_rank: dict[int, dict[str, str]] = field(default_factory=dict)
    absent: tuple[int, ...] = ()
    gpus: int = 8
    code: str = ""
    at_fault: tuple[int, ...] = ()
    deadline_s: float = 150.0


_END = ("--json", "REPORT", "--timeout", "100")
_PAIR = ("-e", "64K")
_SMALL = ("-b", "8", "-e", "1M", "-f", "64", "-n", "5", "-w", "1", "--batches", "1")


def ours(name: str, *arguments: str) -> tuple[str, ...]:
    """A command of ours with NCCL, as a module."""
    return ("-m", f"ncclprobe.{name}", "--backend", "nccl", *arguments, *_END)


def _bandwidth(*arguments: str) -> tuple[str, ...]:
    return ours("bandwidth", *_SMALL, *arguments)


def _strike(what: str, rank: int = 1) -> dict[str, str]:
    return {"FAKE_CUDA_FAULT": what, "FAKE_CUDA_FAULT_RANK": str(rank)}


_TRACE = {"FAKE_CUDA_TRACE": "FOLDER/calls"}
_LITTLE = {"FAKE_NVML_MEMORY_MB": "3000"}
_TRAIN = ("workload", "ddp", "--params", "200K", "--layers", "2", "--micro-batches", "1", "--compute", "0.01")
HEALTHY = (
    *(Case(f"bandwidth-{n}", "torchrun", n, _bandwidth("--op", "all")) for n in (2, 4)),
    Case("bandwidth-1", "torchrun", 1, _bandwidth(), gpus=1),
    Case("bandwidth-nproc", "alone", 2, ("-m", "ncclprobe", "bandwidth", "--nproc", "2", *_bandwidth()[2:])),
    Case("bandwidth-hand", "hand", 2, _bandwidth()),
    Case("bandwidth-one-gpu-each", "one-gpu", 2, _bandwidth()),
    Case("bandwidth-graph", "torchrun", 2, _bandwidth("--graph")),
    *(
        Case(f"order-{mode}", "torchrun", n, _bandwidth("--op", "all", "--no-transport-detection", *options), _TRACE)
        for mode, n, options in (("queued", 4, ()), ("graph", 2, ("--graph",)), ("blocking", 2, ("--mode", "blocking")))
    ),
    Case("bandwidth-blocking", "torchrun", 2, _bandwidth("--mode", "blocking")),
    Case("bandwidth-bfloat16-avg", "torchrun", 2, _bandwidth("--dtype", "bfloat16", "--redop", "avg")),
    Case("bandwidth-int8-max", "torchrun", 2, _bandwidth("--dtype", "int8", "--redop", "max")),
    *(Case(f"pairs-{n}", "torchrun", n, ours("pairs", *_PAIR)) for n in (2, 4)),
    Case("copies", "alone", 1, ours("copies"), gpus=4),
    Case("copies-2", "torchrun", 2, ours("copies"), gpus=2),
    Case(
        "accept-2", "torchrun", 2, ("-m", "ncclprobe", "accept", *_END[:-1], "170"), _LITTLE, gpus=2, deadline_s=200.0
    ),
    *(Case(f"workload-{n}", "torchrun", n, ours(*_TRAIN)) for n in (2, 4)),
    *(Case(f"affinity-{n}", "torchrun", n, ours("affinity", "-e", "64K")) for n in (1, 2)),
    *(Case(f"api-{n}", "torchrun", n, ("JOB.py", "api")) for n in (1, 2, 4)),
)
_EXCLUSIVE = {"FAKE_NVML_MODE": "3"}
_INSTANCES = {n: {"CUDA_VISIBLE_DEVICES": f"MIG-00000000-0000-0000-0100-00000000000{n}"} for n in range(2)}
_PARTS = {n: {"CUDA_VISIBLE_DEVICES": f"MIG-00000000-0000-0000-0{n + 1}00-000000000000"} for n in range(2)}
DEVICES = (
    Case("devices-exclusive", "torchrun", 2, _bandwidth(), _EXCLUSIVE, gpus=4),
    Case("copies-exclusive", "torchrun", 2, ours("copies"), _EXCLUSIVE, gpus=2),
    Case("accept-exclusive", "torchrun", 2, ("-m", "ncclprobe", "accept", *_END[:-1], "170"),
         {**_EXCLUSIVE, **_LITTLE}, gpus=2, deadline_s=200.0),
    Case("devices-held", "hand", 2, _bandwidth(), {**_EXCLUSIVE, "FAKE_NVML_BUSY": "1"}, gpus=4, at_fault=(1,)),
    Case("devices-prohibited", "hand", 2, _bandwidth(), {"FAKE_NVML_MODE": "2"}, gpus=4, at_fault=(0, 1)),
    Case("devices-mig", "hand", 2, _bandwidth(), {"FAKE_NVML_MIG": "2,2"}, _INSTANCES, gpus=2),
    Case("devices-mig-unlisted", "hand", 2, _bandwidth(), {"FAKE_NVML_MIG": "2,2"}, gpus=2, at_fault=(0, 1)),
    Case("devices-mig-same", "hand", 2, _bandwidth(), {"FAKE_NVML_MIG": "2,2"}, _PARTS, gpus=2),
    Case("devices-mig-one", "torchrun", 2, _bandwidth(), {"FAKE_NVML_MIG": "2,0,0"}, gpus=3),
    Case("devices-prefixes", "torchrun", 2, _bandwidth(),
         {"FAKE_NVML_UNLIKE": "1", "CUDA_VISIBLE_DEVICES": "GPU-a2,GPU-a0"}, gpus=4),
    Case("devices-order", "torchrun", 2, _bandwidth(), {"FAKE_CUDA_ORDER": "3,2,1,0", "FAKE_NVML_BUSY": "3"}, gpus=4),
    *(
        Case(f"doctor-{name}", "alone", 1, ("-m", "ncclprobe", "doctor", "--json", "REPORT"), env, gpus=4)
        for name, env in (
            ("held", {**_EXCLUSIVE, "FAKE_NVML_BUSY": "1"}),
            ("mig", {"FAKE_NVML_MIG": "2,2,2,2"}),
            ("ambiguous", {"CUDA_VISIBLE_DEVICES": "GPU-0000"}),
            ("none", {"CUDA_VISIBLE_DEVICES": "-1"}),
        )
    ),
)  # fmt: skip
FAULTS = (
    Case("bandwidth-killed", "hand", 2, _bandwidth(), _strike("kill@20"), code="rank-crashed", at_fault=(1,)),
    Case("bandwidth-stopped", "hand", 2, _bandwidth(), _strike("stop@20"), code="timeout-straggler", at_fault=(1,)),
    Case("bandwidth-rank-0-killed", "hand", 2, _bandwidth(), _strike("kill@20", 0), at_fault=(0,)),
    Case("bandwidth-rank-0-stopped", "hand", 2, _bandwidth(), _strike("stop@20", 0), at_fault=(0,), deadline_s=60.0),
    Case("bandwidth-killed-torchrun", "torchrun", 2, _bandwidth(), _strike("kill@20"), at_fault=(1,)),
    Case("bandwidth-kernel-hangs", "hand", 2, _bandwidth(), _strike("hang@20"), at_fault=(1,)),
    Case("bandwidth-slow", "hand", 2, _bandwidth("--batches", "5"), _strike("late5@45")),
    Case("bandwidth-absent", "hand", 2, _bandwidth(), absent=(1,), at_fault=(1,)),
    Case("bandwidth-illegal-address", "hand", 2, _bandwidth(), _strike("700@20"), at_fault=(1,)),
    Case("bandwidth-illegal-address-0", "hand", 2, _bandwidth(), _strike("700@20", 0), at_fault=(0,)),
    Case("bandwidth-ecc", "hand", 2, _bandwidth(), _strike("214@20"), at_fault=(1,)),
    Case("bandwidth-gpu-lost", "hand", 2, _bandwidth(), _strike("999@20"), at_fault=(1,)),
    Case(
        "bandwidth-no-memory",
        "torchrun",
        2,
        ours("bandwidth", "-b", "1G", "-e", "1G", "-n", "1"),
        _LITTLE,
    ),
    Case(
        "bandwidth-nccl-no-memory",
        "torchrun",
        2,
        _bandwidth(),
        {"FAKE_NVML_MEMORY_MB": "1200", "NCCL_BUFFSIZE": str(1 << 30)},
        at_fault=(0, 1),
    ),
    Case("bandwidth-other-channels", "hand", 2, _bandwidth(), per_rank={1: {"NCCL_MAX_NCHANNELS": "1"}}, at_fault=(1,)),
    Case("bandwidth-other-algorithm", "hand", 2, _bandwidth(), per_rank={1: {"NCCL_ALGO": "Tree"}}, at_fault=(1,)),
    Case("bandwidth-bogus-protocol", "torchrun", 2, _bandwidth(), {"NCCL_PROTO": "Bogus"}),
    Case("bandwidth-no-interface", "torchrun", 2, _bandwidth(), {"NCCL_SOCKET_IFNAME": "ib0"}),
    Case("bandwidth-no-p2p", "torchrun", 2, _bandwidth(), {"FAKE_NVML_P2P": "0"}),
    Case("bandwidth-same-gpu", "hand", 2, _bandwidth(), {"CUDA_VISIBLE_DEVICES": "0"}, at_fault=(0, 1)),
    Case("pairs-stopped", "hand", 2, ours("pairs", *_PAIR), _strike("stop@3"), at_fault=(1,)),
    Case("pairs-stopped-first", "hand", 4, ours("pairs", *_PAIR), _strike("stop@1"), at_fault=(1,)),
    Case("pairs-killed", "hand", 4, ours("pairs", *_PAIR), _strike("kill@3"), at_fault=(1,)),
    Case("pairs-illegal-address", "hand", 4, ours("pairs", *_PAIR), _strike("700@3"), at_fault=(1,)),
    Case("api-killed", "hand", 2, ("JOB.py", "api"), _strike("kill@20"), at_fault=(1,)),
    Case("api-stopped", "hand", 2, ("JOB.py", "api"), _strike("stop@20"), at_fault=(1,)),
    Case("api-illegal-address", "hand", 2, ("JOB.py", "api"), _strike("700@20"), at_fault=(1,)),
)
_CRASH, _LATE, _DESYNC = "rank-crashed", "timeout-straggler", "collective-desync"
_LOGS = {"NCCL_DEBUG": "INFO", "TORCH_NCCL_TRACE_BUFFER_SIZE": "200", "TORCH_FR_BUFFER_SIZE": "200"}
TRAINING = tuple(
    Case(f"job-{word}{'-quiet' * quiet}", "hand", 3, ("JOB.py", word), {} if quiet else _LOGS, code=code,
         at_fault=(1,) if code else (), deadline_s=60.0)
    for word, code in (
        ("none", ""), ("killed", _CRASH), ("segfault", _CRASH), ("raises", _CRASH), ("exits", _CRASH),
        ("stopped", _LATE), ("late", _LATE), ("absent-step", _LATE), ("other-operation", _DESYNC),
        ("other-size", _DESYNC), ("other-type", _DESYNC), ("out-of-memory", "oom"),
    )
    for quiet in (False,)
)  # fmt: skip
CASES = (*HEALTHY, *DEVICES, *FAULTS, *TRAINING)
