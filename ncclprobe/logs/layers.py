"""List the layers that write into a job's logs: their marks, what each wraps, its debug switch, where to look next.

A wrapper repeats that its child failed; the layer inside gives the reason. So the inner of two complaints is more
specific: enroot's 401 before pyxis' "container start failed", and that before srun's "task 0: Exited".
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from types import MappingProxyType

from ncclprobe.logs.job_log import SUMMARY, LogEvent
from ncclprobe.model.findings import Blame
from ncclprobe.model.values import Struct

_WITHIN = 512
_KEPT = 1 << 14


class Layer(Struct, frozen=True):
    """One layer. `marks`: texts of its lines, `begins`: how some of them begin, both at any log level.

    `wraps`: names of the layers whose failures it repeats; `fault`: who is usually at fault when it complains.
    `switch` makes it log more, and `look` names the place that already has more. Empty: nothing of the kind exists.
    """

    name: str
    title: str
    marks: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()
    wraps: tuple[str, ...] = ()
    fault: Blame = "unknown"
    switch: str = ""
    look: str = ""


_TRANSPORTS = ("ucx", "libfabric", "network-plugin", "nvshmem", "nixl", "mooncake", "deepep", "rccl", "nccl")
_LIBRARIES = (*_TRANSPORTS, "cuda", "kernel", "dns", "ssh", "store", "torch")
LAYERS = (
    Layer(
        "kernel", "the kernel",
        ("NVRM: ", "oom-kill:", "Out of memory: Kill", "mlx5_core ", "mlx5_cmd_check", "pcieport ", "AER: ",
         "nvidia-nvswitch", "segfault at ", "Memory cgroup out of memory", "hung_task", "blocked for more than "),
        fault="node", look="journalctl -k on that host, around the time of the line",
    ),
    Layer(
        "cloud", "the cloud's agent",
        ("is being preempted", "Spot interruption", "spot interruption", "instance-action", "maintenance event",
         "Scheduled Events", '"Preempt"', "was preempted", "google_metadata_script_runner",
         "aws-node-termination-handler",
         "Power key pressed", "Powering off"),
        fault="node", look="the instance's events in the cloud's console, then start the job again",
    ),
    Layer(
        "dns", "the resolver",
        ("Name or service not known", "Temporary failure in name resolution", "Name does not resolve",
         "can't resolve '", "Could not resolve host", "could not resolve host", "nodename nor servname",
         "getaddrinfo", "gaierror", "No address associated with hostname"),
        fault="job", look="`getent hosts NAME` in the same container; the headless service and its pods",
    ),
    Layer(
        "ssh", "ssh",
        ("Host key verification failed", "Permission denied (publickey", "authorized_keys", "ssh_exchange_",
         "ssh_dispatch_", "kex_exchange_", " port 22: "),
        ("ssh: ",), fault="node", switch="ssh -v HOST true",
        look="sshd's log on the host that it names (journalctl -u ssh)",
    ),
    Layer(
        "container", "the container runtime",
        ("enroot", "nvidia-container-cli", "OCI runtime", "containerd", "squashfs", "hooks.d/", "ImagePullBackOff",
         "ErrImagePull", "manifest unknown", "401 Unauthorized", "denied: requested access", "apptainer",
         "singularity", "manifests/"),
        ("docker: ", "crun: ", "runc ", "FATAL:   "), wraps=("kernel", "dns"), fault="node",
        look="the same image by hand on that node (enroot start, docker run, apptainer exec)",
    ),
    Layer(
        "scheduler", "the scheduler",
        ("slurm", "StepId=", "JobId=", "spank", "pyxis: ", "CANCELLED AT", "DUE TO TIME LIMIT", "FailedScheduling",
         "CrashLoopBackOff", "kubelet", "Back-off restarting", "Insufficient nvidia.com/gpu", "OOMKilled", "Evicted",
         "Job credential", "generic resource"),
        ("srun: ", "sbatch: ", "salloc: ", "pyxis: "), wraps=("container", "cloud", *_LIBRARIES, "launcher", "program"),
        look="scontrol show node NODE and sacct -j JOB; kubectl describe pod POD in Kubernetes",
    ),
    Layer(
        "nixl", "NIXL", ("NIXL_ERR", "nixl", "createBackend"), wraps=("ucx", "libfabric", "cuda", "mooncake"),
        switch="NIXL_LOG_LEVEL=DEBUG, and UCX_LOG_LEVEL=info for what is below it",
    ),
    Layer(
        "mooncake", "Mooncake's transfer engine",
        ("rdma_context.cpp", "rdma_transport.cpp", "rdma_endpoint.cpp", "transfer_engine", "transfer_task.cpp",
         "worker_pool.cpp", "mooncake", "Mooncake"),
        wraps=("kernel", "cuda"), fault="node",
        look="ibv_devinfo and show_gids in the same container",
    ),
    Layer(
        "ucx", "UCX", (" UCX ", "ucx_", "ucp_", "uct_", "ucs_", "pml_ucx"), wraps=("kernel", "cuda"), fault="node",
        switch="UCX_LOG_LEVEL=info", look="ucx_info -d and ibv_devinfo in the same container",
    ),
    Layer(
        "libfabric", "libfabric", ("libfabric:", "fi_getinfo", "fi_", "efa:", "prov/efa"), wraps=("kernel",),
        fault="node", switch="FI_LOG_LEVEL=info", look="fi_info -p efa in the same container",
    ),
    Layer(
        "network-plugin", "NCCL's network plugin", ("NET/OFI", "nccl_net_ofi", "NET/Plugin", "libnccl-net", "NET/gIB"),
        wraps=("libfabric", "ucx", "kernel"), fault="image",
        switch="NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,NET, and FI_LOG_LEVEL=info for libfabric",
    ),
    Layer(
        "nvshmem", "NVSHMEM", ("nvshmem", "NVSHMEM", "ibgda.cpp", "ibrc.cpp", "libfabric.cpp", "nvshmemt_",
         "remote transport: ", "the specified memory type"),
        wraps=("ucx", "libfabric", "cuda", "kernel"), fault="node", switch="NVSHMEM_DEBUG=INFO",
        look="nvidia_peermem or DMA-BUF, and IBGDA's module options (PeerMappingOverride), on the host",
    ),
    Layer(
        "deepep", "DeepEP", ("DeepEP", "deep_ep"), wraps=("nvshmem", "nccl", "cuda"),
        switch="NVSHMEM_DEBUG=INFO, below which DeepEP has no switch",
    ),
    Layer(
        "rccl", "RCCL", ("hipIpc", "HIP failure", "hsa_", "rccl", "RCCL", "/hipify/", "rocm_smi", "ROCr"),
        wraps=("kernel", "ucx", "network-plugin"), fault="node", switch="NCCL_DEBUG=INFO",
        look="rocm-smi and the amdgpu lines of journalctl -k on that host",
    ),
    Layer(
        "nccl", "NCCL", (" NCCL ", "NCCL WARN", "NET/IB", "ncclSystemError", "NCCL error", "ncclInternalError",
                         "ncclRemoteError", "ncclUnhandled", "ncclInvalid", "Test NCCL failure"),
        wraps=("network-plugin", "libfabric", "ucx", "cuda", "kernel"), switch="NCCL_DEBUG=INFO",
    ),
    Layer(
        "cuda", "CUDA or the driver",
        ("CUDA error", "CUDA driver", "Cuda failure", "CUDA failure", "CUBLAS_", "CUDNN_", "cudaError", "NVML", "nvml",
         "uncorrectable", "device-side assert", "illegal memory access", "Curand error", "CUDA_ERROR", "XID", "Xid"),
        wraps=("kernel",), fault="node", switch="CUDA_LAUNCH_BLOCKING=1 shows which call failed",
        look="nvidia-smi -q and the Xid lines of journalctl -k on that host",
    ),
    Layer(
        "store", "the job's store",
        ("TCPStore", "c10d store", "C10d store", "c10d] ", "RendezvousConnectionError", "RendezvousTimeout",
         "RendezvousClosed", "rendezvous", "store->get", "coordination service", "CoordinationService",
         "DistStoreError"),
        wraps=("dns", "kernel"), switch="TORCH_CPP_LOG_LEVEL=INFO with TORCH_DISTRIBUTED_DEBUG=DETAIL",
        look="the log of the process that owns the store: rank 0, or the first node's launcher",
    ),
    Layer(
        "torch", "torch",
        ("ProcessGroupNCCL", "ProcessGroupGloo", "DistBackendError", "WorkNCCL", "c10::", "c10d::", "/c10d/", "[c10d]",
         "Watchdog caught", "flight recorder"),
        wraps=(*_TRANSPORTS, "cuda", "store", "dns", "kernel"),
        switch="TORCH_CPP_LOG_LEVEL=INFO with TORCH_DISTRIBUTED_DEBUG=DETAIL",
        look="the flight records (TORCH_FR_BUFFER_SIZE, TORCH_NCCL_DUMP_ON_TIMEOUT), one for each rank",
    ),
    Layer(
        "ray", "Ray",
        ("raylet", "ray::", "ray.exceptions", "plasma", "ActorDiedError", "RayTaskError", "gcs_server", " RAY_",
         "Worker exit type", "node_manager.cc", "store_runner.cc", "dlmalloc.cc", "core_worker"),
        wraps=("program", "kernel", *_LIBRARIES), look="ray logs, and /tmp/ray/session_latest/logs on that node",
    ),
    Layer(
        "launcher", "the launcher",
        ("ChildFailedError", "torch.distributed.elastic", "torchelastic", "sigkill_handler", "ORTE ", "PRTE ",
         "PMIX ERROR", "mpirun", "mpiexec", "horovodrun", "MPI_ABORT", "MPI_ERRORS_ARE_FATAL", "BAD TERMINATION",
         " orted", "CalledProcessError", "returned non-zero exit status", "exits with return code", "SignalException",
         "death signal", "Exited with exit code", "a non-zero exit code"),
        ("torchrun", "prterun: ", "deepspeed: "), wraps=("program", "framework", "ray", "ssh", *_LIBRARIES),
        look="the output of the process that it names (torchrun --redirects 3 --log-dir DIR keeps a file for each "
            "rank)",
    ),
    Layer(
        "terminal", "the terminal", ("Hangup", "SIGHUP", "got signal: 1", "Received 1 death signal", "nohup: "),
        ("^C", "KeyboardInterrupt"), fault="job",
        look="who closed the session, and start jobs in tmux, with setsid, or as a batch job",
    ),
    Layer(
        "framework", "the framework",
        ("EngineCore", "WorkerProc", "Worker proc", "multiproc_executor", "Scheduler hit an exception",
         "sigquit from a", "Engine core", "Error executing method", "Error executing job", "worker group failed",
         "LLMEngine", "[TensorRT-LLM]", "Lightning"),
        wraps=("program", "ray", *_LIBRARIES), look="the log of the worker that it names",
    ),
)  # fmt: skip
"""The first row that matches a line wins, so inner layers come first if texts overlap."""
PROGRAM = Layer(
    "program", "the user's program", wraps=_LIBRARIES, fault="job",
    look="the traceback and the source line that it names",
)  # fmt: skip
"""Every other line."""


_BY_PREFIX: Mapping[str, str] = MappingProxyType({"pyxis": "container", "libfabric": "libfabric"})
"""Layers by what the reader takes for the place of a line as it takes its prefix away."""


@cache
def by_name() -> Mapping[str, Layer]:
    """Return the layers by their names."""
    return {layer.name: layer for layer in (*LAYERS, PROGRAM)}


def layer_of(event: LogEvent) -> Layer:
    """Return the layer that wrote a line."""
    if event.level in SUMMARY:
        return by_name()["launcher"]
    found = _layer_of_text(event.text[:_WITHIN])
    of_nccl = (event.host and event.pid) or any(source in event.place for source in (".cc:", ".h:"))
    if found is PROGRAM and event.level == "WARN" and of_nccl:
        return by_name()["nccl"]
    if found is PROGRAM and event.place in _BY_PREFIX:
        return by_name()[_BY_PREFIX[event.place]]
    if found is PROGRAM and ".cpp:" in event.place:
        return _layer_of_text(event.place)
    return found


@lru_cache(maxsize=_KEPT)
def _layer_of_text(text: str) -> Layer:
    for layer in LAYERS:
        if text.startswith(layer.begins) or any(mark in text for mark in layer.marks):
            return layer
    return PROGRAM


@cache
def inside(name: str) -> frozenset[str]:
    """Return the names of all layers that a layer wraps, at any depth; itself is none of them."""
    found, left = set[str](), list(by_name()[name].wraps)
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            left += by_name()[one].wraps
    return frozenset(found - {name})
