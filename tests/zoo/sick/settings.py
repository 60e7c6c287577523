"""Machines whose devices are well: the fault is in variables, software, the launch or the operating system."""

import json

import zoo
from ncclprobe.model.values import replace
from zoo import changes as so
from zoo.sick.plant import plant

_HGX = zoo.MACHINES["hgx-h100"]
_MASTER = {"MASTER_ADDR": "hgx-h100", "MASTER_PORT": "29500"}
_TWO_NODES, _RESOLVED = so.torchrun(2, **_MASTER), so.resolves("hgx-h100", "10.0.0.11")

ENVIRONMENT = (
    plant(
        "ib-disable-word",
        "NCCL_IB_DISABLE=true",
        "fail env.value NCCL_IB_DISABLE",
        so.variables(NCCL_IB_DISABLE="true"),
    ),
    plant(
        "ib-disable-conf",
        "NCCL_IB_DISABLE=true in /etc/nccl.conf",
        "fail env.value NCCL_IB_DISABLE",
        so.file("/etc/nccl.conf", "NCCL_IB_DISABLE=true"),
    ),
    plant(
        "ib-disable",
        "NCCL_IB_DISABLE=1 on two nodes",
        "fail env.transport NCCL_IB_DISABLE",
        _TWO_NODES,
        _RESOLVED,
        so.variables(NCCL_IB_DISABLE="1"),
    ),
    plant(
        "conf-spaces",
        "spaces around the = in /etc/nccl.conf",
        "fail env.files NCCL_NET",
        so.file("/etc/nccl.conf", "NCCL_NET = IB"),
    ),
    plant("misspelt", "NCCL_IB_TIMEUOT", "warn env.name NCCL_IB_TIMEUOT", so.variables(NCCL_IB_TIMEUOT="22")),
    plant("out-of-range", "NCCL_IB_TIMEOUT=60", "fail env.value NCCL_IB_TIMEOUT", so.variables(NCCL_IB_TIMEOUT="60")),
    plant(
        "torch-cpu",
        "torch without CUDA on a machine with GPUs",
        "fail env.start torch",
        so.file(f"{_HGX.software.python}/torch/version.py", "__version__ = '2.6.0+cpu'\ncuda: Optional[str] = None\n"),
        so.no_library(f"{_HGX.software.python}/torch/lib/libtorch_cuda.so"),
    ),
    replace(
        plant(
            "nccl-shadowed",
            "an older libnccl.so.2 without its version in its name, by LD_LIBRARY_PATH",
            "warn env.start /opt/site/lib/libnccl.so.2",
            so.variables(LD_LIBRARY_PATH="/opt/site/lib"),
            so.shared_library("/opt/site/lib/libnccl.so.2", "ncclAllReduce", version="2.19.3"),
            so.calls(f"{_HGX.software.python}/torch/lib/libtorch_cuda.so", "ncclAllReduce", "ncclCommSplit"),
            so.dynamic(
                f"{_HGX.software.python}/torch/lib/libtorch_cuda.so",
                rpath="",
                runpath="$ORIGIN/../../nvidia/cuda_runtime/lib:$ORIGIN/../../nvidia/nccl/lib",
            ),
        ),
        also=("fail env.libraries libnccl.so.2",),
    ),
    replace(
        plant(
            "plugin-glibc",
            "a network plugin that was built for a newer system",
            "warn env.libraries libc.so.6",
            so.dynamic(
                "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so", needs_versions={"libc.so.6": ["GLIBC_2.38"]}
            ),
        ),
        like="aws-p4d",
        also=("warn env.transport libnccl-net.so",),
    ),
    plant("p2p-off", "NCCL_P2P_DISABLE=1", "warn env.transport NCCL_P2P_DISABLE", so.variables(NCCL_P2P_DISABLE="1")),
    replace(
        plant(
            "hca-hole",
            "NCCL_IB_HCA without mlx5_3",
            "warn env.hca NCCL_IB_HCA",
            so.variables(NCCL_IB_HCA="=mlx5_0,mlx5_1,mlx5_2,mlx5_4,mlx5_5,mlx5_6,mlx5_7"),
        ),
        also=("warn ib.gdr GPU3",),
    ),
    replace(
        plant(
            "hca-prefix",
            "mlx5_1 in NCCL_IB_HCA beside a storage port mlx5_10",
            "warn env.hca NCCL_IB_HCA",
            so.variables(NCCL_IB_HCA="mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_6,mlx5_7,mlx5_8,mlx5_9"),
        ),
        like="dgx-a100",
        renamed=("mlx5_5", "mlx5_10"),
    ),
    plant(
        "ifname-none",
        "NCCL_SOCKET_IFNAME of an interface that is not here",
        "fail env.ifname NCCL_SOCKET_IFNAME",
        so.variables(NCCL_SOCKET_IFNAME="ens3"),
    ),
    replace(
        plant("no-interface", "a network namespace without an interface", "fail env.start interfaces", so.no_network()),
        also=("fail launch.names lo",),
    ),
    replace(
        plant(
            "net-ofi",
            "NCCL_NET=ofi beside a plugin whose network is called AWS Libfabric",
            "fail env.start NCCL_NET",
            so.variables(NCCL_NET="ofi"),
        ),
        like="aws-p4d",
        also=("warn env.vendor NCCL_NET",),
    ),
    plant(
        "visible-twice",
        "a GPU twice in CUDA_VISIBLE_DEVICES",
        "fail env.visible CUDA_VISIBLE_DEVICES",
        so.torchrun(1),
        so.variables(CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,6"),
    ),
    replace(
        plant(
            "gid-link-local",
            "NCCL_IB_GID_INDEX of a link-local GID, on two nodes",
            "fail env.gid mlx5_0:1",
            so.torchrun(2, ranks=4),
            so.variables(NCCL_IB_GID_INDEX="1"),
        ),
        like="a100-bridged",
        also=("fail env.gid mlx5_1:1",),
    ),
)

_LISTENER = "   1: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 21874 1\n"

LAUNCH = (
    plant(
        "master-loopback",
        "the master's own name is 127.0.1.1 in its /etc/hosts",
        "fail launch.master hgx-h100",
        _TWO_NODES,
        so.resolves("hgx-h100", "127.0.1.1"),
        so.file("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 hgx-h100\n"),
    ),
    plant(
        "master-unknown",
        "a MASTER_ADDR that nobody knows",
        "fail launch.master hgx-h100",
        _TWO_NODES,
        so.resolves("hgx-h100"),
    ),
    plant(
        "port-ephemeral",
        "a MASTER_PORT that the kernel may hand out",
        "warn launch.port MASTER_PORT",
        so.by_hand(MASTER_ADDR="hgx-h100", MASTER_PORT="40123"),
        _RESOLVED,
    ),
    plant(
        "port-taken",
        "somebody listens on MASTER_PORT",
        "fail launch.port MASTER_PORT",
        so.by_hand(**_MASTER),
        _RESOLVED,
        so.file("/proc/net/tcp", f"  sl  local_address rem_address   st\n{_LISTENER}"),
    ),
    plant("half-set", "RANK without WORLD_SIZE", "fail launch.vars WORLD_SIZE", so.variables(RANK="0")),
)

_GROUP = "/sys/fs/cgroup/user.slice/user-0.slice/session-4.scope"
_SCALING = "/sys/devices/system/cpu/cpu0/cpufreq"

HOST = (
    plant(
        "shm-small",
        "/dev/shm of 64 MiB with NCCL 2.21",
        "fail host.shm /dev/shm",
        so.says(json.dumps({"total": 64 << 20, "available": 64 << 20}), "statvfs", "/dev/shm"),
    ),
    replace(
        plant(
            "memlock",
            "8 MiB of locked memory for a user",
            "fail host.limits RLIMIT_MEMLOCK",
            so.says(json.dumps([8 << 20, 8 << 20]), "rlimit", "RLIMIT_MEMLOCK"),
        ),
        like="hgx-h100-user",
    ),
    replace(
        plant(
            "one-socket",
            "a cpuset of the second socket only",
            "warn host.cpu GPU0",
            so.torchrun(1),
            so.processors("56-111,168-223"),
        ),
        also=tuple(f"warn host.cpu GPU{n}" for n in (1, 2, 3)),
    ),
    plant(
        "cpu-quota",
        "a quota of 4 processors for 8 ranks",
        "warn host.cpu cpu quota",
        so.torchrun(1),
        so.file(f"{_GROUP}/cpu.max", "400000 100000"),
    ),
    plant(
        "clock-adrift",
        "a clock that nothing keeps right, on two nodes",
        "warn host.timesync clock",
        _TWO_NODES,
        _RESOLVED,
        so.says("NTPSynchronized=no\n", "run", "timedatectl", "show", "--property=NTPSynchronized"),
    ),
    plant(
        "governor",
        "a governor that keeps the clock low",
        "warn host.cpu governor",
        so.file(f"{_SCALING}/scaling_driver", "intel_cpufreq"),
        so.file(f"{_SCALING}/scaling_governor", "powersave"),
    ),
)
