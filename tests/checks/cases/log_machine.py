"""Logs of machines, their software and launchers; what each cause must find, and what it must leave alone."""

from ncclprobe.checks.log.crashes import ENDED_ITSELF
from tests.checks.cases import INFO, WARN, Cases

_LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO"
OPENED = "n1:7{0}:7{0} [0] NCCL INFO comm 0x1 rank {0} nranks 2 cudaDev 0 busId 7000 commId 0x9 - Init START\n"
UNUSABLE = (
    "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, invalid usage (run with NCCL_DEBUG=WARN)"
)

CASES: Cases = {
    "log.ended-from-outside": [
        (
            "FAIL unknown: example",
            f"step 7 loss 2\n{_LIMIT} PREEMPTION ***",
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***",
            "W0102 03:04:05.000000 77 api.py:723] Received 15 death signal, shutting down workers",
        ),
        f"{_LIMIT} NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        f"[rank0]: RuntimeError: shapes differ\n{_LIMIT} TIME LIMIT ***",
        "W0102 03:04:05.000000 77 api.py:900] Sending process 78 closing signal SIGTERM",
    ],
    "log.node-failed/node-failed": [
        ("FAIL node: example", f"{_LIMIT} NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"),
        (
            "FAIL node: example on n7",
            "33m  Normal  NodeNotReady  node/n7  Node n7 status is now: NodeNotReady\n[rank1]: RuntimeError: x",
        ),
        "33m  Normal  NodeNotReady  node/n7  Node n7 status is now: NodeNotReady\n[rank1]: step 7 loss 2",
    ],
    "log.program-raised/program-raised": [
        (
            "FAIL job: rank 3",
            '[rank3]: Traceback (most recent call last):\n[rank3]:   File "optim.py", line 12, in step\n[rank3]: '
            "AssertionError: Rank 3: found NaN in local grad norm in backward pass before data-parallel communication "
            "collective. Device: 3, node: n1\n",
            '[rank3]: Traceback (most recent call last):\n[rank3]:   File "ckpt.py", line 12, in load\n[rank3]: '
            "RuntimeError: cannot restore step 100: unexpected key\n",
        ),
        (
            "FAIL image: rank 1",
            '[rank1]: Traceback (most recent call last):\n[rank1]:   File "train.py", line 12, in <module>\n[rank1]: '
            "ImportError: /x/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEab\n",
        ),
        (
            "FAIL job: rank 1",
            '[rank1]: Traceback (most recent call last):\n[rank1]:   File "train.py", line 12, in <module>\n[rank1]: '
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This "
            "error indicates that your module has parameters that were not used in producing loss. You can enable "
            "unused parameter detection by passing the keyword argument `find_unused_parameters=True` to "
            "`torch.nn.parallel.DistributedDataParallel`\n",
            '[rank1]: Traceback (most recent call last):\n[rank1]:   File "train.py", line 12, in <module>\n[rank1]: '
            "TypeError: Input tensor data type is not supported for NCCL process group: UInt16\n",
        ),
        (
            "FAIL job: rank 3 on n2",
            "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-02_03:04:05\n  host      : n2\n  "
            "rank      : 3 (local_rank: 1)\n  exitcode  : 1 (pid: 77)\n  error_file: /tmp/e/error.json\n  traceback : "
            'Traceback (most recent call last):\n    File "train.py", line 12, in main\n  ValueError: batch 17 holds '
            "no tokens\n========\n",
        ),
        (
            "FAIL job: example",
            'multiprocess.pool.RemoteTraceback: \n"""\nTraceback (most recent call last):\n  File '
            '"/x/datasets/formatting.py", line 280, in __getitem__\n    value = self.data[key]\nKeyError: '
            '\'conversations\'\n"""\n\nThe above exception was the direct cause of the following exception:\n\n'
            'Traceback (most recent call last):\n  File "launcher.py", line 23, in <module>\n    launch()\nKeyError: '
            "'conversations'\n",
        ),
        'Traceback (most recent call last):\n  File "/x/ray/train/utils.py", line 43, in check\n    ray.get(ref)\n'
        "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n",
        "Traceback (most recent call last):\n  File \"hub.py\", line 1, in get\nKeyError: 'etag'\nretrying\n"
        + "step: loss 2\n" * 200,
        'Exception ignored in: <function Pool.__del__ at 0x7f>\nTraceback (most recent call last):\n  File "pool.py", '
        "line 1, in __del__\nAttributeError: _state\n",
    ],
    "log.memory-full/host-memory-full": [
        (
            "FAIL unknown: example",
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        ),
        (
            "FAIL job: example",
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=9.0. Some of your processes may have been "
            "killed by the cgroup out-of-memory handler.",
        ),
        (
            "FAIL unknown: rank 1",
            "[rank1]: RuntimeError: [enforce fail at alloc_cpu.cpp:113] . DefaultCPUAllocator: can't allocate memory",
        ),
    ],
    "log.kernel-faulted/kernel-faulted": [
        ("FAIL job: rank 1", "[rank1]: RuntimeError: CUDA error: device-side assert triggered"),
        ("FAIL job: n1:7 on n1", f"{WARN}Cuda failure 'an illegal memory access was encountered'"),
    ],
    "log.kernel-faulted/launch-failed": [
        ("FAIL unknown: n1:7 on n1", f"{WARN}Cuda failure 719 'unspecified launch failure'"),
        (
            "FAIL unknown: rank 1",
            "[rank1]: RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(`",
        ),
    ],
    "log.gpu-failed/gpu-failed": [
        ("FAIL node: n1:7 on n1", f"{WARN}nvmlDeviceGetHandleByIndex(3) failed: GPU is lost"),
        (
            "FAIL node: example",
            "[ 812.1] NVRM: Xid (PCI:0000:5e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "[ 812.1] NVRM: Xid (PCI:0000:5e:00): 45, pid=9, name=python3, Ch 00000002 caused by previous Xid 145",
            "[ 812.1] NVRM: Xid (PCI:0000:5e:00): 74, pid=9, NVLink: fatal error detected on link 4(0x10000, 0x0)",
            "[ 812.1] nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 20034, Fatal, Link 44 LTSSM Fault Up",
            "n1:7:7 [0] NCCL DIAG ECC: uncorrected volatile errors on rank(s) 3 (worst=2) across 8 ranks in comm 0x9",
            "[ 812.1] pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0\n[ 812.2] nvidia "
            "0000:3b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
        ),
        "[ 812.1] pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0",
        "[ 812.1] NVRM: Xid (PCI:0000:5e:00): 31, pid=9, Ch 00000010, MMU Fault: ENGINE GRAPHICS",
        "[ 812.1] nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 20012, Non-fatal, Link 44 egress",
        "n1:7:7 [0] NCCL DIAG ECC: no uncorrected volatile errors across 8 ranks in comm 0x9",
    ],
    "log.gpu-shared/two-ranks-on-one-gpu": [
        (
            "FAIL job: rank 1 on localhost",
            "[rank0]: localhost:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n[rank1]: localhost:7:7 [0] NCCL "
            "INFO Bootstrap : Using eth0:10.0.0.2<0>\n[rank1]: localhost:7:8 [0] init.cc:900 NCCL WARN Duplicate GPU "
            "detected : rank 1 and rank 0 both on CUDA device 7000",
        ),
        (
            "FAIL job: n1:7 on n1",
            f"{WARN}Multiple Ranks are using the same GPU/Partition.",
            f"CUDA_VISIBLE_DEVICES=MIG-0a1b\n{WARN}Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000",
        ),
        ("FAIL job: rank 0 on n1", f"{OPENED.format(0)}{OPENED.format(1)}{UNUSABLE}"),
        f"{OPENED.format(0)}{OPENED.format(0)}{UNUSABLE}",
        "CUDA_VISIBLE_DEVICES=MIG-0a1b\nloss 2",
    ],
    "log.driver/driver-does-not-fit": [
        (
            "FAIL image: n1:7 on n1",
            f"{WARN}nvmlInit_v2() failed: Driver/library version mismatch",
            f"{WARN}CUDA Driver version found is 10020. Minimum requirement is 11030",
        ),
        ("FAIL image: example", "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."),
    ],
    "log.peer-access/too-many-peers": [
        ("FAIL job: n1:7 on n1", f"{WARN}Cuda failure 'peer mapping resources exhausted'"),
    ],
    "log.peer-access/peer-memory-closed": [
        (
            "FAIL job: n1:7 on n1",
            f"{WARN}failed to open CUDA IPC handle : 11 invalid argument",
            f"{WARN}Cuda failure 'peer access is not supported between these two devices'",
            f"{WARN}UDS: Sending data over socket /tmp/nccl-socket-1-abc failed : Connection refused (111)",
            "n1:7:7 [0] transport/p2p.cc:270 NCCL WARN Cuda failure 'invalid argument'",
        ),
        (
            "FAIL unknown: n1:7 on n1",
            "n1:7:9 [1] misc/nvmlwrap.cc:183 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found",
        ),
    ],
    "log.gpu-failed/dcgm-found-a-fault": [
        (
            "FAIL node: example",
            "| Error: GPU 3 had uncorrectable memory errors and row remapping failed. Run a field diagnostic. |",
            "Detected 14 nvlink_flit_crc_error_count_total_lane NvLink errors on GPU 5's NvLink (should be 0)",
            "    GPU Recovery Action                   : Reset",
            "    Remapped Rows\n        Remapping Failure Occurred        : Yes",
            "Detected fatal NvSwitch SXID 20034",
        ),
        "        Remapping Failure Occurred        : No",
        "    GPU Recovery Action                   : None",
        "        Drain and Reset Recommended       : N/A",
        "Detected XID 43 for GPU 3",
        "GPU 3 had memory errors and row remappings are pending",
    ],
    "log.gpu-failed/nccl-diagnosed": [
        ("FAIL node: example", "n1:7 NCCL DIAG [INFO] p2p: only 52/56 GPU-to-GPU peer accesses passed verification"),
        (
            "WARN node: example",
            "n1:7 NCCL DIAG [INFO] net bw: same-nic rank 3 (n1): 265.1 Gbit/s, >30% off median 391.5 Gbit/s in comm 9",
        ),
        (
            "FAIL node: example on n",
            "n1:7 NCCL DIAG [INFO] SXid 20034 detected 1 time (NVSwitch driver reported Fatal, link(s) {44}) on host n",
        ),
        "n1:7 NCCL DIAG [OK]   p2p: verified P2P access in both directions between every GPU pair (56 accesses)",
        "n1:7 NCCL DIAG [INFO] net bw: same-nic rank 3 (n1): 591.5 Gbit/s, >30% off median 391.5 Gbit/s in comm 9",
    ],
    "log.kernel-faulted/driver-saw-a-wild-access": [
        "[ 812.1] NVRM: Xid (PCI:0000:5e:00): 43, pid=9, Ch 00000010",
    ],
    "log.rank-ended/killed-by-a-signal": [
        ("FAIL unknown: n1:7 on n1", "*** Process received signal ***\n[n1:7] Signal: Segmentation fault (11)"),
        (
            "FAIL unknown: rank 1",
            "[rank1]: Fatal Python error: Segmentation fault",
            "[rank1]: RuntimeError: DataLoader worker (pid 99) is killed by signal: Killed.",
        ),
        (
            "FAIL unknown: rank 3 on n2",
            "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-02_03:04:05\n  host      : n2\n  "
            "rank      : 3 (local_rank: 1)\n  exitcode  : -9 (pid: 77)\n  error_file: <N/A>\n  traceback : Signal 9 "
            "(SIGKILL) received by PID 77\n========\n",
        ),
        (
            "FAIL unknown: example",
            "ERROR 11-22 08:02:00 [multiproc_executor.py:140] Worker proc VllmWorker-1 died unexpectedly",
            "[n1:7 :0:9] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x8)",
            "[ERROR] [launch.py:321:sigkill_handler] ['python', 'a.py'] exits with return code = -9",
            "E0102 03:04:05.000000 77 api.py:1] failed (exitcode: -11) local_rank: 1 (pid: 78) of binary: python",
            "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
            "/usr/bin/bash: line 1:  1874 Killed                  torchrun --nnodes=2 train.py",
            "Loading checkpoint shards\nKilled",
        ),
        (
            "FAIL unknown: n2 on n2",
            "0: step 7\n1: step 7\n2: step 7\nsrun: error: n2: task 1: Killed",
            "srun: error: n2: task 1: Exited with exit code 137\nsrun: error: n1: task 0: Exited with exit code 1",
        ),
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-02_03:04:05\n  host      : n2\n  rank      "
        ": 3 (local_rank: 1)\n  exitcode  : -15 (pid: 77)\n  error_file: <N/A>\n  traceback : Signal 15 (SIGTERM) "
        "received by PID 77\n========\n",
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-02_03:04:05\n  host      : n2\n  rank      "
        ": 3 (local_rank: 1)\n  exitcode  : -6 (pid: 77)\n  error_file: <N/A>\n  traceback : Signal 6 (SIGABRT) "
        "received by PID 77\n========\n",
        "./job.sh: line 9:  1874 Killed                  nvidia-smi dmon",
        "[rank1]: Fatal Python error: Aborted",
        "[rank1]: loss 2",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nsrun: error: n2: tasks 0-1: Killed",
    ],
    "log.rank-ended/exited": [
        (
            "FAIL job: rank 3 on n2",
            "[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: Connection closed by peer\n"
            + ENDED_ITSELF.replace(": 3 (pid", ": 1 (pid"),
        ),
        ENDED_ITSELF.replace(": 3 (pid", ": -15 (pid"),
        ENDED_ITSELF.replace(": 3 (pid", ": 137 (pid"),
        ENDED_ITSELF.replace("To enable traceback", "none: that is the verdict FAIL above, not a crash"),
    ],
    "log.ended-by-others/ended-by-the-launcher": [
        ("WARN unknown: rank 1", "[rank1]: terminate called after throwing an instance of 'c10::DistBackendError'"),
        (
            "WARN unknown: example",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
            "E0102 03:04:05.000000 77 api.py:1] failed (exitcode: -6) local_rank: 1 (pid: 78) of binary: python",
            "[2026-01-02 03:04:05,000] [INFO] [launch.py:318:sigkill_handler] Killing subprocess 78",
        ),
    ],
    "log.memory-full/shared-memory-full": [
        f"{INFO}failed to extend /dev/shm/nccl-Ab12cd to 9637892 bytes",
        (
            "FAIL unknown: n1:7 on n1",
            f"{WARN}Call to posix_fallocate failed : No space left on device",
            f"{WARN}Error while creating shared memory segment /dev/shm/nccl-Ab12cd (size 9637888)",
        ),
        (
            "FAIL unknown: example",
            "ERROR: Unexpected bus error in worker. This might be caused by insufficient shared memory (shm).",
        ),
        f"{WARN}Error while attaching to shared memory segment /dev/shm/nccl-Ab12cd (size 9637888)",
    ],
    "log.memory-full/gpu-memory-full": [
        (
            "FAIL job: n1:7 on n1",
            f"{WARN}Cuda failure 2 'out of memory'\n{WARN}Failed to CUDA calloc async 6291456 bytes",
        ),
        (
            "FAIL job: rank 2",
            "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has a total "
            "capacity of 79.15 GiB of which 1.02 GiB is free.",
            "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 MiB. GPU 2 has a total "
            "capacity of 79.15 GiB of which 78.02 GiB is free.",
        ),
        "n1:7:7 [0] transport/nvls.cc:245 NCCL WARN Cuda failure 2 'out of memory'",
        "if you hit CUDA out of memory set PYTORCH_CUDA_ALLOC_CONF",
        f"{INFO}Bootstrap : Using eth0:10.0.0.1<0>\nWARNING - CUDA out of memory. Trying half the batch\nloss 2.1",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    ],
    "log.file-descriptors": [
        ("FAIL job: n1:7 on n1", f"{WARN}Call to socket failed : Too many open files"),
        (
            "FAIL job: example",
            "RuntimeError: Too many open files. Communication with the workers is no longer possible.",
        ),
    ],
    "log.rdma-device/no-efa-provider": [
        (
            "FAIL image: n1:7 on n1",
            f"{WARN}NET/OFI Couldn't find any optimal provider\n{WARN}Error: network AWS Libfabric not found.",
            f"{INFO}NET/OFI Setting FI_PROVIDER to efa\n{WARN}NET/OFI OFI fi_getinfo() call failed: No data available",
        ),
        f"{INFO}NET/OFI Selected provider is efa, fabric is efa (found 4 nics)",
    ],
    "log.rdma-path/efa-security-group": [
        (
            "FAIL fabric: example",
            "* This error indicates that the security group on either this instance or the peer instance",
        ),
    ],
    "log.plugin/plugin-not-found": [
        (
            "WARN image: n1:7 on n1",
            f"{INFO}NET/Plugin: Plugin name set by env to libnccl-net-aws.so\n{INFO}NET/Plugin: Could not find: "
            "libnccl-net-aws.so. Using internal network plugin.",
        ),
        ("FAIL image: n1:7 on n1", f"{WARN}Failed to initialize any NET plugin"),
        (
            "FAIL image: example",
            "[rank0]: Last error:\nError: network AWS Libfabric not found.",
            "[rank0]: Last error:\nError: network IB not found.",
        ),
        f"{INFO}NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
        f"{INFO}NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",
        f"{INFO}NET/IB : No device found.\n{WARN}Failed to initialize any NET plugin",
        f"{INFO}NET/Plugin: Plugin name set by env to none",
    ],
    "log.plugin/plugin-does-not-fit": [
        ("FAIL image: n1:7 on n1", f"{INFO}NET/Plugin: Failed to find ncclNetPlugin_v6 symbol."),
        (
            "FAIL image: n1:7 on n1",
            f"{WARN}NET/OFI EFA provider requires at least libfabric version 1.22.0.",
            f"{INFO}NET/Plugin: libnccl-net.so: undefined symbol: fi_fabric2, version FABRIC_1.7",
            f"{INFO}NET/Plugin: Plugin load returned 2 : libfabric.so.1: cannot open shared object file: No such file "
            "or directory : when loading libnccl-net.so",
            f"{INFO}NET/Plugin : dlerror=libfabric.so.1: cannot open shared object file: No such file or directory No "
            "plugin found (libnccl-net-ofi.so), using internal implementation",
        ),
        f"{INFO}NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object "
        "file: No such file or directory",
        f"{INFO}NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or "
        "directory : when loading libnccl-net.so",
        f"{INFO}NET/Plugin: Plugin load returned 2 : libnccl-net-ofi.so: cannot open shared object file: No such file "
        "or directory : when loading libnccl-net-ofi.so",
        f"{INFO}NET/Plugin: Failed to find ncclCollNetPlugin symbol (>= v5). ncclCollNetPlugin symbols v4 and lower "
        "are not supported.",
    ],
    "log.topology/topology-file": [
        f"{WARN}Attribute busid of node pci not found",
        (
            "FAIL job: n1:7 on n1",
            f"{WARN}XML Parse error : expecting '<', got '{{'",
            f"{INFO}NCCL_TOPO_FILE set by environment to /opt/topo.xml\n{WARN}Attribute busid of node pci not found",
            f"{WARN}XML Import Channel : dev 12 not found.",
        ),
        f"{INFO}Could not open XML topology file /var/run/nvidia-topologyd/virtualTopology.xml : No such file or "
        "directory",
    ],
}
