"""Facts from answers: the text the kernel or a tool gives, and what is made of it."""

import json
from contextlib import suppress
from typing import Any

import pytest
from conftest import answers
from hypothesis import given
from hypothesis import strategies as st

from ncclprobe.engine.collect import collect
from ncclprobe.facts import cpu, environment, interfaces, machine, names, nvidia_smi, nvml
from ncclprobe.facts.launcher import Launch
from ncclprobe.model.errors import Failed, Missing, ParseError, TimedOut
from ncclprobe.model.registry import Collector
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl import parameters
from tests.each_row import each_row


def learn(collector: Collector, said: dict[Any, Any], *others: Collector) -> Any:
    return collect(answers(said), [collector, *others])[collector.produces]


NODE = "/sys/devices/system/node"
CPUS = {
    ("read", "/sys/devices/system/cpu/online"): "0-3\n",
    ("read", "/proc/cpuinfo"): "processor\t: 0\nmodel name\t: Fast CPU\n",
    ("list", NODE): ["has_cpu", "node0", "node1", "online"],
    ("read", f"{NODE}/node0/cpulist"): "0-1\n",
    ("read", f"{NODE}/node1/cpulist"): "\n",
    ("read", f"{NODE}/node0/distance"): "10 20\n",
    ("read", f"{NODE}/node1/distance"): "20 10\n",
}


def test_cpus_and_numa_nodes_are_read_from_sysfs() -> None:
    seen = learn(cpu.cpu, CPUS)
    assert (seen.online, seen.model) == ((0, 1, 2, 3), "Fast CPU")
    assert [(n.id, n.cpus, n.distances) for n in seen.numa] == [(0, (0, 1), (10, 20)), (1, (), (20, 10))]


def test_a_kernel_without_numa_is_known_to_have_no_nodes() -> None:
    said = CPUS | {("list", NODE): Missing("not there")}
    assert learn(cpu.cpu, said).numa == ()


@each_row(("text", "cpus"), [("0", (0,)), ("0-2,5\n", (0, 1, 2, 5)), ("", ()), ("8,10-11", (8, 10, 11))])
def test_the_kernels_list_format_is_expanded(text: str, cpus: tuple[int, ...]) -> None:
    assert cpu.cpu_list(text) == cpus


@given(st.text(max_size=20))
def test_a_cpu_list_is_numbers_or_a_parse_error(text: str) -> None:
    with suppress(ParseError):
        assert all(isinstance(n, int) for n in cpu.cpu_list(text))


@each_row(
    ("text", "name"),
    [
        ('NAME="x"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"\n', "Ubuntu 22.04.4 LTS"),
        ("PRETTY_NAME='Rocky Linux 9'\n", "Rocky Linux 9"),
        ("NAME=x\n", ""),
        ("", ""),
    ],
)
def test_the_distribution_names_itself(text: str, name: str) -> None:
    assert machine.distribution(text) == name


def test_a_container_that_hides_the_boot_id_still_has_a_host_name() -> None:
    uname = {"hostname": "n0", "release": "6.1", "machine": "x86_64"}
    said = {
        ("uname",): uname,
        ("read", "/etc/os-release"): "",
        ("read", "/proc/sys/kernel/random/boot_id"): Failed("no"),
    }
    seen = learn(machine.system, said)
    assert (seen.hostname, seen.boot_id) == ("n0", None)


NET = "/sys/class/net"
ADDRESSES = {
    "eth0": [
        {"family": 2, "address": "10.0.0.5", "netmask": "255.255.255.0"},
        {"family": 10, "address": "fe80::1%eth0", "netmask": "ffff:ffff:ffff:ffff::"},
        {"family": 17, "address": "aa:bb:cc:dd:ee:ff", "netmask": None},
    ],
    "lo": [{"family": 2, "address": "127.0.0.1", "netmask": "255.0.0.0"}],
}
STATS = {
    "eth0": {"flags": "up,broadcast,running,multicast", "mtu": 9000, "speed": 0},
    "lo": {"flags": "up,loopback,running", "mtu": 65536, "speed": 0},
}
INTERFACES = {
    ("psutil", "net_if_addrs"): ADDRESSES,
    ("psutil", "net_if_stats"): STATS,
    ("read", f"{NET}/eth0/ifindex"): "2\n",
    ("read", f"{NET}/lo/ifindex"): "1\n",
    ("read", f"{NET}/eth0/speed"): "100000\n",
    ("read", f"{NET}/lo/speed"): Failed("Invalid argument"),
    ("link", f"{NET}/eth0/device/driver"): "../../../../bus/pci/drivers/mlx5_core",
    ("link", f"{NET}/lo/device/driver"): Missing("not there"),
}


def test_interfaces_come_in_the_kernels_order_with_speed_and_driver() -> None:
    lo, eth0 = learn(interfaces.interfaces, INTERFACES).all
    assert (lo.name, lo.loopback, lo.speed_mbps, lo.driver) == ("lo", True, None, "")
    assert (eth0.speed_mbps, eth0.driver, eth0.mtu, eth0.running) == (100_000, "mlx5_core", 9000, True)


def test_addresses_come_as_getifaddrs_lists_them() -> None:
    listed = learn(interfaces.interfaces, INTERFACES).addresses
    assert [(a.name, a.address, a.netmask) for a in listed] == [
        ("lo", "127.0.0.1", "255.0.0.0"),
        ("eth0", "10.0.0.5", "255.255.255.0"),
        ("eth0", "fe80::1%eth0", "ffff:ffff:ffff:ffff::"),
    ]


def test_a_labelled_address_is_an_interface_to_nccl_and_has_its_interfaces_properties() -> None:
    label = {"eth0:1": [{"family": 2, "address": "10.9.0.5", "netmask": "255.255.255.0"}]}
    found = learn(interfaces.interfaces, INTERFACES | {("psutil", "net_if_addrs"): ADDRESSES | label})
    assert [(a.name, a.address) for a in found.addresses if a.family == "inet"][-1] == ("eth0:1", "10.9.0.5")
    assert found.by_name["eth0:1"] is found.by_name["eth0"]
    assert [each.name for each in found.all] == ["lo", "eth0"]


def test_a_name_with_a_colon_of_its_own_is_no_label() -> None:
    said = INTERFACES | {
        ("psutil", "net_if_addrs"): ADDRESSES | {"eth0:1": []},
        ("psutil", "net_if_stats"): STATS | {"eth0:1": STATS["eth0"]},
        ("read", f"{NET}/eth0:1/ifindex"): "3\n",
    }
    assert [each.name for each in learn(interfaces.interfaces, said).all] == ["lo", "eth0", "eth0:1"]


@each_row("speed", ["-1\n", "0\n"])
def test_a_speed_that_the_driver_does_not_know_is_unknown(speed: str) -> None:
    said = INTERFACES | {("read", f"{NET}/eth0/speed"): speed}
    assert learn(interfaces.interfaces, said).all[1].speed_mbps is None


NVML = {
    ("nvml", "nvmlDeviceGetCount"): "2",
    ("nvml", "nvmlSystemGetCudaDriverVersion"): "12080",
    ("nvml", "nvmlSystemGetDriverVersion"): '"570.86.15"',
    **{("nvml", "nvmlDeviceGetName", n): '"NVIDIA H200"' for n in (0, 1)},
    **{("nvml", "nvmlDeviceGetUUID", n): f'"GPU-{n}"' for n in (0, 1)},
    **{("nvml", "nvmlDeviceGetPciInfo", n): {"busId": f"00000000:0{n}:00.0"} for n in (0, 1)},
    **{("nvml", "nvmlDeviceGetMemoryInfo", n): {"total": 1 << 37, "used": 0} for n in (0, 1)},
}


def test_gpus_are_read_through_nvml() -> None:
    seen = learn(nvml.nvml, NVML)
    assert (seen.driver, seen.cuda) == ("570.86.15", (12, 8))
    assert [(g.index, g.name, g.memory_bytes, g.lost) for g in seen.all] == [
        (0, "NVIDIA H200", 1 << 37, ""),
        (1, "NVIDIA H200", 1 << 37, ""),
    ]


def test_one_lost_gpu_does_not_hide_the_other() -> None:
    said = NVML | {("nvml", "nvmlDeviceGetName", 0): Failed("NVML nvmlDeviceGetName: GPU is lost")}
    assert [bool(g.lost) for g in learn(nvml.nvml, said).all] == [True, False]


def test_no_visible_gpu_is_not_knowing() -> None:
    seen = learn(nvml.nvml, {("nvml", "nvmlDeviceGetCount"): "0"})
    assert isinstance(seen, Absent)
    assert "0 GPUs" in seen.why


def test_nvidia_smi_that_does_not_come_back_is_knowledge() -> None:
    ask = ("run", "nvidia-smi", "-L")
    assert learn(nvidia_smi.nvidia_smi, {ask: TimedOut("no answer within 60 s")}).wedged
    assert learn(nvidia_smi.nvidia_smi, {ask: "GPU 0: NVIDIA H200 (UUID: GPU-1)\n"}).gpus == 1
    assert isinstance(learn(nvidia_smi.nvidia_smi, {ask: "no devices\n"}), Absent)
    assert isinstance(learn(nvidia_smi.nvidia_smi, {ask: Failed("exit code 9")}), Absent)


def test_resolving_is_asked_only_where_there_is_a_master() -> None:
    env = environment.environment
    launch = Collector(run=lambda host: Launch(master_addr="n0"), produces=Launch)
    nobody = Collector(run=lambda host: Launch(), produces=Launch)
    said = {("resolve", "n0"): {"addresses": ["127.0.1.1", "10.0.0.1"], "seconds": 0.1}}
    assert learn(names.resolver, {}, nobody, env) == names.Master()
    assert learn(names.resolver, said, launch).loopback == ("127.0.1.1",)
    assert learn(names.resolver, {("resolve", "n0"): Failed("resolve n0: unknown")}, launch).failure


def test_no_thread_of_torchs_may_end_a_rank_that_measures_and_its_calls_are_recorded() -> None:
    by_torchrun = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "9", "PATH": "/bin"}
    assert environment.measuring_environment(by_torchrun) == {
        **dict.fromkeys(environment.MEASURING, "0"),
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "9",
        "PATH": "/bin",
    }
    assert environment.measuring_environment({})["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"


@each_row("name", [*environment.MEASURING, *environment.EVENTS, *environment.RECORDING])
def test_what_a_measuring_run_sets_is_read_by_torch(name: str) -> None:
    assert parameters.table()[name].owner == "torch"


@each_row("text", ["", "[1]", '{"A": 1}', "nonsense"])
def test_an_environment_that_is_no_object_of_texts_is_not_understood(text: str) -> None:
    with pytest.raises(ParseError):
        environment.parse(text)


@given(st.dictionaries(st.text(), st.none() | st.text()))
def test_an_environment_survives_its_recording(variables: dict[str, str | None]) -> None:
    assert environment.parse(json.dumps(variables)).variables == variables
