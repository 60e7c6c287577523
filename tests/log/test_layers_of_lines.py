"""Which layer wrote a line, what it wraps, and what it offers to find out more."""

from ncclprobe.logs.job_log import LogEvent
from ncclprobe.logs.layers import PROGRAM, inside, layer_of
from ncclprobe.logs.reader import read

LINES = {
    "[1.2] [n1:7:0] ib_md.c:3 UCX  ERROR ibv_reg_mr failed": "ucx",
    "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND": "nixl",
    "slurmstepd: error: pyxis: couldn't start container": "scheduler",
    "slurmstepd: error: pyxis:     nvidia-container-cli: initialization error": "container",
    "srun: error: n1: task 0: Exited with exit code 1": "scheduler",
    "ssh: connect to host n1 port 22: Connection refused": "ssh",
    "ssh: Could not resolve hostname n1: Name or service not known": "dns",
    "NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus": "kernel",
    "instance/preempted TRUE: this VM is being preempted": "cloud",
    "src/modules/transport/ibgda/ibgda.cpp:2234: NULL value Unable to create ah.": "nvshmem",
    "libfabric:7:1::core:core:fi_getinfo_():1392<warn> fi_getinfo: provider efa output empty list": "libfabric",
    "NET/OFI Could not find any optimal provider": "network-plugin",
    "RdmaTransport: cannot open; rdma_context.cpp": "mooncake",
    "(raylet) store_runner.cc:83: System memory request exceeds memory available in /dev/shm": "ray",
    "KeyboardInterrupt": "terminal",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ": "launcher",
    "RuntimeError: CUDA error: device-side assert triggered": "cuda",
    "ValueError: loss is not a number": "program",
}


def test_each_line_is_of_the_layer_that_wrote_it() -> None:
    wrong = {text: found for text, name in LINES.items() if (found := layer_of(LogEvent(0, 1, text)).name) != name}
    assert not wrong
    assert len(LINES) >= 18


def test_what_nccl_warns_of_is_its_own_whatever_it_says() -> None:
    assert layer_of(LogEvent(0, 1, "something new", host="n1", pid=7, level="WARN")).name == "nccl"


def test_what_pyxis_repeats_is_the_container_runtimes_whatever_it_says() -> None:
    said = b"slurmstepd: error: pyxis:     mkdir: cannot create directory '/run/x': Permission denied\n"
    (event,) = read([("a.log", [said])]).events
    assert (event.text.split(":")[0], layer_of(event).name) == ("mkdir", "container")


def test_torchruns_summary_is_the_launchers() -> None:
    assert layer_of(LogEvent(0, 1, "exitcode: 1, ValueError: x", level="ROOT CAUSE")).name == "launcher"


def test_wrappers_wrap_what_is_inside_at_any_depth() -> None:
    assert "container" in inside("scheduler")
    assert {"ucx", "kernel"} <= inside("nixl")
    assert "launcher" not in inside(PROGRAM.name)
