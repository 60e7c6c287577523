"""Logs of networks; what each cause must find, and what it must leave alone."""

from ncclprobe.checks.log.fabric import BIND
from ncclprobe.checks.log.infiniband import ERROR_12, REFUSAL
from ncclprobe.checks.log.meeting import LINE
from tests.checks.cases import INFO, WARN, Cases
from tests.checks.cases.log_versions import GARBLED

_VIOLATED = (
    "n2:8:9 [0] transport/net_ib.cc:101 NCCL WARN NET/IB : mlx5_0:1 Got async event : local access violation work "
    "queue error\n"
    "n1:7:9 [0] transport/net_ib.cc:1290 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<40211> with status=9 "
    "opcode=0 len=0 vendor err 138 (Send)"
)


def _ended_with(status: int) -> str:
    return f"{WARN}NET/IB : Got completion from peer 10.0.0.2<4> with status={status} opcode=0 len=0 vendor err 0"


CASES: Cases = {
    "log.rank-behind/listed-as-missing": [
        (
            "FAIL unknown: example",
            "XlaRuntimeError: Barrier timed out. Timed out task names:\n/job:jax_worker/replica:0/task:3",
            "UNAVAILABLE: tasks are unhealthy (stopped sending heartbeats):\n/job:jax_worker/replica:0/task:3",
            "Stalled ops: grads/a [missing ranks: 1, 2]",
        ),
    ],
    "log.unreachable/rejected-by-a-firewall": [
        (
            "FAIL fabric: n1:7 on n1",
            f"{WARN}socketPollConnect: connect to 10.0.0.2<40211> returned No route to host, exceeded error retry "
            "count after 35 attempts",
            f"{INFO}Bootstrap : Using eth0:10.0.0.1<0>\n{WARN}socketStartConnect: Connect to 10.66.4.3<40211> failed "
            ": No route to host",
        ),
        f"{WARN}socketProgress: Connection closed by remote peer n2<40211>",
    ],
    "log.unreachable/connection-timed-out": [
        (
            "FAIL fabric: n1:7 on n1",
            f"{WARN}Net : Connect to 10.0.0.2<40211> failed : Connection timed out",
            f"{WARN}socketStartConnect: exceeded timeouts (3)",
        ),
        f"{WARN}socketStartConnect: Connect to 10.0.0.2<40211> failed : No route to host",
    ],
    "log.unreachable/peer-unreachable": [
        (
            "FAIL job: rank 1",
            "[rank1]: RuntimeError: Gloo connectFullMesh failed with "
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:144] Connect timeout [10.0.0.2]:41233",
        ),
        "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] connect [127.0.1.1]:5012",
    ],
    "log.unreachable/refused": [
        (
            "WARN unknown: n1:7 on n1",
            f"{WARN}socketPollConnect: connect to 10.0.0.2<40211> returned Connection refused, exceeded error retry "
            "count after 35 attempts",
            f"{WARN}Call to recv from 10.0.0.2<4021> failed : Connection refused",
        ),
    ],
    "log.closed-by-the-peer": [
        (
            "WARN unknown: rank 0",
            "[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
            "[10.0.0.2]:41233",
        ),
        ("WARN unknown: n1:7 on n1", f"{WARN}Net : Call to recv from 10.0.0.2<41> failed : Connection reset by peer"),
        "WARNING:urllib3.connectionpool:Retrying (Retry(total=4)) after ConnectionResetError(104, 'Connection reset "
        "by peer')",
    ],
    "log.nvlink-fabric/fabric-not-ready": [
        (
            "FAIL node: n1:7 on n1",
            f"{WARN}Cuda failure 802 'system not yet initialized'",
            f"{WARN}{BIND} of size 2097152 : CUDA error 401 'the operation cannot be performed in the present "
            "state'.\nThis is usually caused by a system or configuration error in the Fabric Manager or NVSwitches.",
        ),
        f"{INFO}{BIND} of size 2097152 : CUDA error 1 'invalid argument'. Proceeding without NVLS support.",
    ],
    "log.nvlink-fabric/no-imex-channel": [
        (
            "FAIL node: n1:7 on n1",
            f"{WARN}MNNVL (cliqueSize 8) is available but not supported on this system. Check the IMEX configuration.",
            f"{WARN}MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX channel "
            "configuration (/dev/nvidia-caps-imex-channels). Set NCCL_MNNVL_ENABLE=0 to ignore this issue.",
            f"{WARN}MNNVL is not supported on this system",
        ),
        f"{WARN}Cuda failure 800 'operation not permitted'",
    ],
    "log.nvls/nvls-used-up": [
        ("FAIL node: n1:7 on n1", f"{WARN}{BIND} of size 2097152 : CUDA error 2 'out of memory'."),
        f"{WARN}Cuda failure 2 'out of memory'",
    ],
    "log.ranks-missing/no-address-of-a-rank": [
        ("FAIL job: rank 3", f"[rank3]: {LINE}"),
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0",
        f"[rank3]: {LINE}\n[rank0]: torch.distributed.DistStoreError: Timed out after 9 seconds waiting for clients. "
        "3/4 clients joined.",
        {
            "rank3": LINE,
            "rank4": "ValueError: no data",
        },
    ],
    "log.rdma-transfer/no-acknowledgement": [
        (
            "FAIL fabric: example",
            "[1767323045.1] [n1:7 :0] ib_mlx5_log.c:177 UCX ERROR Transport retry count exceeded on mlx5_0:1/IB (synd "
            "0x15 vend 0x81 hw_synd 0/0)",
        ),
        (
            "FAIL fabric: n1:7 on n1",
            f"{WARN}NET/IB: Got completion from peer 10.0.0.2<40211> with status=IBV_WC_RETRY_EXC_ERR(12) "
            "opcode=IBV_WC_SEND(0) vendor_err=129  localGid ::ffff:10.1.0.1 remoteGids::ffff:10.2.0.2 hca mlx5_0",
            f"{WARN}NET/IB : Got completion with error 12, opcode 1, len 32478, vendor err 129",
            f"{INFO}NET/IB: Dev 0 Port 1 qpn 9 mtu 5 LID 1\nn2:8:9 [0] NCCL INFO NET/IB: Dev 0 Port 1 qpn 4 mtu 3 LID "
            f"2\n{WARN}{ERROR_12}",
        ),
    ],
    "log.rdma-transfer/flushed": [
        (
            "WARN unknown: n1:7 on n1",
            _VIOLATED,
            f"{WARN}NET/IB : Got completion from peer 10.0.0.2<4> with error 13, opcode 0, len 0, vendor err 135",
        ),
    ],
    "log.rdma-transfer/device-access-broken": [
        ("FAIL node: n1:7 on n1", *map(_ended_with, (4, 8, 10, 11))),
        _ended_with(5),
        (
            "FAIL node: n1:7 on n1",
            f"{WARN}NET/IB: Got completion from peer 10.0.0.2<40211> with status=IBV_WC_REM_OP_ERR(11) "
            "opcode=IBV_WC_SEND(0) vendor_err=137 hca mlx5_0",
        ),
        (
            "FAIL node: example",
            "[ 812.1] AMD-Vi: Event logged [IO_PAGE_FAULT device=41:00.0 domain=0x0001 address=0xe0001000 "
            "flags=0x0030]",
            "[ 812.1] DMAR: [DMA Write] Request device [5e:00.0] fault addr ff000000 [fault reason 05] PTE Write "
            "access is not set",
        ),
        "[ 0.41] DMAR: IOMMU enabled\n[ 0.41] AMD-Vi: Interrupt remapping enabled",
    ],
    "log.collective-mismatch/message-of-another-size": [
        ("FAIL job: n1:7 on n1", *map(_ended_with, (1, 9))),
        _VIOLATED,
    ],
    "log.rdma-path/port-went-down": [
        ("FAIL node: n1:7 on n1", *map(_ended_with, (2, 7, 19, 20, 21))),
        (
            "FAIL link: n1:7 on n1",
            f"{WARN}NET/IB : mlx5_3:1 Got non-fatal async event: port error(10)",
            f"{WARN}NET/IB : mlx5_3:1 async fatal event: local catastrophic error",
        ),
        (
            "FAIL link: example",
            "[ 912.1] mlx5_core 0000:5e:00.0 ens5f0np0: Link down",
            "[ 912.1] mlx5_core 0000:5e:00.0: Port module event: module 0, Cable unplugged",
        ),
        f"{WARN}NET/IB : mlx5_3:1 Got async event : client reregistration",
        f"{WARN}NET/IB : mlx5_3:1 GID table changed",
        "[ 12.1] mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
        "[ 12.1] e1000e 0000:00:1f.6 eno1: NIC Link is Down",
    ],
    "log.interface/no-interface": [
        (
            "FAIL job: node1:77 on node1",
            "node1:77:77 [0] bootstrap.cc:126 NCCL WARN Bootstrap : no socket interface found",
            "node1:77:77 [0] transport/net_socket.cc:78 NCCL WARN NET/Socket : no interface found",
            "node1:77:77 [0] bootstrap.cc:90 NCCL WARN no device found matching eth9, verify NCCL_OOB_NET_IFNAME",
        ),
        ("FAIL job: example", "[rank3]: Last error:\nBootstrap : no socket interface found\n"),
        (
            "FAIL job: rank 0",
            "[rank0]: ncclSocketInit: connecting to address  with family 0 is neither AF_INET(2) nor AF_INET6(10)",
        ),
        "node1:77:77 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
    ],
    "log.interface/loopback": [
        (
            "FAIL job: n1:7 on n1; FAIL job: n2:7 on n2",
            {
                "a": "n1:7:7 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>",
                "b": "n2:7:7 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>",
            },
        ),
        {
            "a": "n1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
            "b": "n2:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>",
        },
    ],
    "log.interface/container-interface": [
        (
            "FAIL job: n1:7 on n1",
            f"{WARN}Connect to fe80::8c2a:1cff:fe10:1%veth2a9f61c<3911> failed : Network is unreachable",
            f"{INFO}Bootstrap : Using usb0:169.254.3.1<0>\n{WARN}socketPollConnect: connect to 169.254.3.2<4021> "
            "returned Connection refused, exceeded error retry count after 35 attempts",
        ),
        f"{INFO}Bootstrap : Using eth0:10.0.0.1<0>\n{WARN}socketStartConnect: Connect to 10.0.0.2<4021> failed : No "
        "route to host",
    ],
    "log.interface/tunnel": [
        f"{WARN}socketPollConnect: connect to 10.8.0.7<4021> returned Connection timed out, exceeded error retry "
        "count after 35 attempts",
    ],
    "log.interface/bridge-network": [
        "f00d5a7c0ffe:7:7 [0] NCCL INFO Bootstrap : Using eth0:172.17.0.2<0>",
        f"{INFO}Bootstrap : Using eth0:10.18.3.10<0>\nn2:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.18.3.10<0>\n"
        "[rank0]: step 9 loss 2\n[rank1]: step 9 loss 2\n[rank1]: RuntimeError: x",
    ],
    "log.interface/gloo-interface": [
        ("FAIL job: rank 0", "[rank0]: RuntimeError: makeDeviceForInterface(): unsupported gloo device"),
    ],
    "log.interface/own-name-is-loopback": [
        (
            "FAIL image: example",
            "RuntimeError: [../gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:5012: Connection refused",
        ),
        "RuntimeError: [../gloo/transport/tcp/pair.cc:799] connect [10.0.0.2]:5012: Connection refused",
    ],
    "log.unresolved-name": [
        (
            "FAIL unknown: n1:7 on n1",
            f"{WARN}Net : error encountered when getting address info : Name or service not known",
        ),
        (
            "FAIL unknown: example",
            "[E socket.cpp:957] [c10d] The client socket has failed to connect to any network address of (head-0, "
            "29500). The IPv6 network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 - Name or "
            "service not known). The IPv4 network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 - "
            "Name or service not known",
            "[W socket.cpp:697] [c10d] The IPv4 network addresses of (head-0, 29500) cannot be retrieved (gai error: "
            "-3 - Temporary failure in name resolution).\n[E socket.cpp:1013] [c10d] The client socket has timed out "
            "after 60000ms while trying to connect to (head-0, 29500).",
            "ssh: Could not resolve hostname worker-1: Name or service not known",
        ),
        "WARNING urllib3: Retrying: HTTPSConnection('hub'): Failed to resolve (Temporary failure in name resolution)",
        "[W socket.cpp:697] [c10d] The IPv6 network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 - "
        "Name or service not known).\n[E socket.cpp:1013] [c10d] The client socket has timed out after 60000ms while "
        "trying to connect to (10.0.0.1, 29500).",
    ],
    "log.port/port-taken": [
        ("FAIL job: example", "OSError: [Errno 98] Address already in use"),
        ("FAIL job: n1:7 on n1", f"{WARN}Call to bind failed : Address already in use"),
        "n1:7:7 [0] ras/client_support.cc:160 NCCL WARN Call to bind failed: Address already in use\n"
        f"{INFO}RAS failed to establish a client listening socket at localhost:28028",
    ],
    "log.port/port-privileged": [
        ("FAIL job: n1:7 on n1", f"{WARN}Call to bind failed : Permission denied"),
    ],
    "log.store/master-unreachable": [
        (
            "FAIL job: example",
            "[E socket.cpp:957] [c10d] The client socket has failed to connect to any network address of (167772161, "
            "29500).",
        ),
        (
            "FAIL unknown: example",
            "RuntimeError: connect() timed out. Original timeout was 1800000 ms.",
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection has failed.",
        ),
        (
            "FAIL job: example",
            2 * "[W socket.cpp:601] [c10d] The client socket has failed to connect to [head-0]:29500 "
            "(errno: 113 - No route to host).\n",
        ),
    ],
    "log.ranks-missing/ranks-missing": [
        (
            "FAIL job: example",
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 17/16 clients joined.",
        ),
        (
            "FAIL job: n1:7 on n1",
            GARBLED.replace("4 vs 4", "4 vs 5"),
            f"{WARN}Bootstrap Root : mismatch in rank count from procs 16 : 8",
        ),
        ("FAIL job: n1:7", f"{WARN}Bootstrap Root : rank 0 of 16 ranks has already checked in"),
        (
            "FAIL job: example",
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 15/16 clients joined.",
        ),
        (
            "FAIL unknown: rank 0",
            "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: "
            "store_based_barrier_key:1 (world_size=2, worker_count=1, timeout=0:30:00)",
        ),
        ("FAIL unknown: example", "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"),
        GARBLED,
    ],
    "log.store/store-left": [
        (
            "WARN unknown: rank 1",
            "[rank1]: torch.distributed.DistNetworkError: Failed to recv, got 0 bytes.",
        ),
    ],
    "log.rdma-path/wrong-gid": [
        (
            "FAIL job: n1:7 on n1",
            f"{REFUSAL}22 Invalid argument, on dev mlx5_0:1, curr state INIT, next state RTR, local GID index 0, "
            "local GID fe80::ba3f:d2ff:fe11:1, remote GID ::ffff:10.0.0.2",
            f"{WARN}Call to ibv_modify_qp failed with error No data available errno 61",
            f"{WARN}NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument",
        ),
        f"{REFUSAL}110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR, local GID index 3, "
        "local GID ::ffff:10.1.0.1, remote GID ::ffff:10.2.0.2",
    ],
    "log.rdma-path/no-path-between-ports": [
        (
            "FAIL fabric: n1:7 on n1",
            f"{WARN}Call to ibv_modify_qp failed with error Connection timed out",
            f"{WARN}Call to ibv_modify_qp failed with error Network is unreachable",
        ),
    ],
    "log.registration/locked-memory": [
        ("FAIL unknown: example", "ucx ERROR ibv_reg_mr(address=0x7f, length=65536) failed: Cannot allocate memory"),
        (
            "FAIL unknown: n1:7 on n1",
            f"{WARN}Call to ibv_create_cq failed with error Cannot allocate memory",
            "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.\n    This will severely limit memory registrations.\n"
            f"{WARN}Call to ibv_create_qp failed",
        ),
        ("FAIL job: n1:7 on n1", f"{WARN}Call to ibv_create_qp failed"),
        "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.\n    This will severely limit memory registrations.\n",
    ],
    "log.registration/pinning-failed": [
        (
            "FAIL node: n1:7 on n1",
            f"{WARN}Call to ibv_reg_mr_iova2 failed with error Invalid argument errno 22",
            f"{WARN}Call to ibv_reg_mr failed",
            f"{WARN}Cuda failure 'OS call failed or operation not supported on this OS'",
        ),
        f"{INFO}Cuda failure 'OS call failed or operation not supported on this OS'",
        f"5.15.167.4-microsoft-standard-WSL2\n{WARN}Cuda failure 'OS call failed or operation not supported on this "
        "OS'",
    ],
    "log.rdma-device/verbs-library-missing": [
        (
            "FAIL image: n1 on n1",
            "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0\n"
            f"{INFO}NET/IB : No device found.",
        ),
        "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs2\n"
        f"{INFO}NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
        "n0:7:7 [0] NCCL INFO NET/IB : No device found.\nn0:7:7 [0] NCCL INFO NET/IB : Using [RO]; OOB "
        "eth0:10.0.0.1<0>\nn1:8:8 [0] NCCL INFO Failed to open libibverbs.so[.1]\nn1:8:8 [0] NCCL INFO Using network "
        "Socket",
    ],
    "log.rdma-device/no-device-of-that-name": [
        (
            "FAIL job: n1:7 on n1",
            f"{INFO}NCCL_IB_HCA set to mlx5_9\n{INFO}NET/IB : No device found.\n{INFO}Using network Socket",
        ),
    ],
    "log.networks-differ/networks-differ": [
        (
            "FAIL node: n2:7 on n2",
            {
                "a": "n1:7:7 [0] NCCL INFO Using network AWS Libfabric",
                "b": "n2:7:7 [0] NCCL INFO Using network Socket",
            },
        ),
        f"{INFO}Using network IB\nn1:8:8 [0] NCCL INFO Using network Socket",
    ],
}
