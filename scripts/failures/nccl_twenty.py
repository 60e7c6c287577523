"""Twenty failures of NCCL alone, invented from its sources before the rules of `explain` were read.

`truth` is what was done, in plain words; `ranks` are those at fault, empty: all ranks alike. The list was committed
before any of it was played or judged, without the codes, which came after; reports/nccl-twenty.md has what was said at
first sight. Two are no failure: rank.py hands the id over itself, so that NCCL_COMM_ID of one rank counts for nothing.
"""

from failures.nccl_cases import NcclCase

_STEPS = ("all_reduce:1000", "all_reduce:3000", "all_gather:500")
_SOON = {"RANK_WAITS_S": "6"}
_NET = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


def _strike(what: str) -> dict[str, str]:
    return {"FAKE_CUDA_FAULT": what}


TRUTHS = {
    "20-buffer-differs": "rank 2 has another NCCL_BUFFSIZE",
    "20-p2p-off-on-one": "rank 1 has NCCL_P2P_DISABLE=1, the others not",
    "20-cumem-off-on-one": "rank 0 has NCCL_CUMEM_ENABLE=0, the others not",
    "20-address-space": "every rank may have 3 GB of address space (RLIMIT_AS)",
    "20-other-type": "rank 2 reduces doubles, the others floats",
    "20-leaves-early": "rank 3 ends well before the last operation of the others",
    "20-raises-before-init": "rank 2 ends with an exception before it joins",
    "20-root-killed-in-init": "rank 0, whose process is the bootstrap's root, is killed while rank 3 has not come",
    "20-gpu-lost": "the GPU of rank 1 is lost at its first kernel (unknown error)",
    "20-illegal-address": "a kernel of rank 2 reads an illegal address",
    "20-ecc": "the GPU of rank 0 has an uncorrectable memory error",
    "20-kernel-hangs": "a kernel of rank 3 never ends; NCCL has no word of it",
    "20-comm-id-port": "NCCL_COMM_ID of rank 2 has another port",
    "20-p2p-denied": "the driver denies P2P between GPUs with NVLink",
    "20-little-memory": "the GPU of rank 1 has no memory left for NCCL's buffers",
    "20-family-on-one": "rank 3 has NCCL_SOCKET_FAMILY=AF_INET6, and no interface an IPv6 address",
    "20-protocol-differs": "rank 2 has NCCL_PROTO=Simple, the others choose",
    "20-no-gpu-on-one": "rank 2 sees no GPU (CUDA_VISIBLE_DEVICES is empty)",
    "20-second-without-one": "ranks 0 to 2 make another communicator of four, which rank 3 never joins",
    "20-gpu-held": "the GPU of rank 3 is in EXCLUSIVE_PROCESS and another process has it",
}
TWENTY = (
    NcclCase(
        "20-buffer-differs",
        "env-mismatch",
        (2,),
        _STEPS,
        2,
        {**_SOON, "NCCL_PROTO": "Simple"},
        {2: {"NCCL_BUFFSIZE": "262144"}},
        deadline_s=25.0,
    ),
    NcclCase(
        "20-p2p-off-on-one", "env-mismatch", (1,), _STEPS, 1, _SOON, {1: {"NCCL_P2P_DISABLE": "1"}}, deadline_s=25.0
    ),
    NcclCase(
        "20-cumem-off-on-one", "env-mismatch", (0,), _STEPS, 1, _SOON, {0: {"NCCL_CUMEM_ENABLE": "0"}}, deadline_s=25.0
    ),
    NcclCase("20-address-space", "", (), _STEPS, 1, _SOON, prefix=("prlimit", "--as=3000000000"), deadline_s=25.0),
    NcclCase(
        "20-other-type",
        "collective-desync",
        (2,),
        ("all_reduce:1000", "2!all_reduce:3000:double", "0,1,3!all_reduce:3000"),
        1,
        {**_SOON, "NCCL_PROTO": "Simple"},
        deadline_s=25.0,
    ),
    NcclCase(
        "20-leaves-early",
        "collective-desync",
        (3,),
        ("all_reduce:1000", "all_gather:500", "0,1,2!all_reduce:3000"),
        2,
        _SOON,
        deadline_s=25.0,
    ),
    NcclCase("20-raises-before-init", "rank-crashed", (2,), ("2!raise", "init", *_STEPS), 1, _SOON, deadline_s=25.0),
    NcclCase(
        "20-root-killed-in-init",
        "rank-crashed",
        (0,),
        ("0!kill-in:1.5", "3!sleep:4", "init", *_STEPS),
        2,
        _SOON,
        deadline_s=25.0,
    ),
    NcclCase("20-gpu-lost", "gpu-hw-error", (1,), _STEPS, 1, _SOON, {1: _strike("999@1")}, deadline_s=25.0),
    NcclCase("20-illegal-address", "rank-crashed", (2,), _STEPS, 2, _SOON, {2: _strike("700@2")}, deadline_s=25.0),
    NcclCase("20-ecc", "gpu-hw-error", (0,), _STEPS, 1, _SOON, {0: _strike("214@2")}, deadline_s=25.0),
    NcclCase("20-kernel-hangs", "timeout-straggler", (3,), _STEPS, 1, _SOON, {3: _strike("hang@2")}, deadline_s=25.0),
    NcclCase(
        "20-comm-id-port",
        "",
        (),
        _STEPS,
        1,
        {**_SOON, "NCCL_COMM_ID": "127.0.0.1:29700"},
        {2: {"NCCL_COMM_ID": "127.0.0.1:29701"}},
        deadline_s=25.0,
    ),
    NcclCase("20-p2p-denied", "gpu-hw-error", (), _STEPS, 1, {**_SOON, "FAKE_NVML_P2P": "0"}, deadline_s=25.0),
    NcclCase("20-little-memory", "oom", (1,), _STEPS, 1, _SOON, {1: {"FAKE_NVML_MEMORY_MB": "530"}}, deadline_s=25.0),
    NcclCase(
        "20-family-on-one",
        "env-mismatch",
        (3,),
        _STEPS,
        2,
        _SOON,
        {3: {"NCCL_SOCKET_FAMILY": "AF_INET6"}},
        deadline_s=25.0,
    ),
    NcclCase(
        "20-protocol-differs", "env-mismatch", (2,), _STEPS, 1, _SOON, {2: {"NCCL_PROTO": "Simple"}}, deadline_s=25.0
    ),
    NcclCase(
        "20-no-gpu-on-one", "rank-crashed", (2,), _STEPS, 1, _SOON, {2: {"CUDA_VISIBLE_DEVICES": ""}}, deadline_s=25.0
    ),
    NcclCase(
        "20-second-without-one",
        "timeout-straggler",
        (3,),
        ("init", "all_reduce:1000", "0,1,2!init", "all_reduce:3000"),
        1,
        _SOON,
        deadline_s=25.0,
    ),
    NcclCase(
        "20-gpu-held",
        "rank-crashed",
        (3,),
        _STEPS,
        1,
        {**_SOON, "FAKE_NVML_MODE": "3", "FAKE_NVML_BUSY": "3"},
        deadline_s=25.0,
    ),
)
