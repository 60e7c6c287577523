"""Texts of logs of hosts: networks, GPUs, limits, plugins; tests.log.single says how to read them."""

from tests.log.single import around, logs
from tests.log.single_ranks import MET
from tests.log.whole import of

PLACE = "Bootstrap : Using "
REFUSES = "W@net.cc:Net : Connect to 127.0.0.1<40211> failed : Connection refused"
CONNECTIONS = logs(
    around("I:NCCL_COMM_ID set by environment to 10.0.0.9:7↵", "W, 2W, I",
          ":Call to bind failed : Cannot assign requested address"),
    around("W:", "Call to bind failed: Cannot assign requested address, no socket interface found, NET/Socket : no "
                 "interface found, NET/IB : No IP interface found, No usable listening interface found, No interface "
                 "found in the same subnet as remote address x, no device found matching eth9\\, verify "
                 "NCCL_OOB_NET_IFNAME, ocket creation failed : Address family not supported, socket creation failed : "
                 "Address family not supported by protocol"),
    around("", "I:NCCL_SOCKET_IFNAME set by environment to a↵, I:NCCL_SOCKET_FAMILY set by environment to AF_INET6↵, "
          "step 7↵", "W:connecting to address  with family 0 is neither AF_INET(2) nor AF_INET6(10)"),
    around(f"2I:{PLACE}eth0:10.0.0.2<0>↵I:{PLACE}",
          "lo:10.0.0.1<0>, eth0:127.0.0.1<0>, eth0:::1<0>, eth0:10.0.0.1<0>, lo:127.0.0.1<0>"),
    around(f"I:{PLACE}", "lo:10.0.0.1<0>, eth0:127.0.0.2<0>, eth0:::1<0>, eth0:10.0.0.1<0>", f"↵{REFUSES}"),
    around(f"I:{PLACE}lo:127.0.0.1<0>↵", "W:Net : Connect to 10.0.0.2<7> failed : Connection refused, I:connect to "
          "127.0.0.1<7> returned Connection refused\\, retrying (1/34), W:exceeded retries (20000)↵" + REFUSES),
    around(f"I:{PLACE}", "usb0:169.254.3.1<0>, docker0:172.18.0.1<0>↵I:NET/Socket : Using [0]docker0:172.18.0.1<0>, "
          "eth0:10.0.0.1<0>↵I:NET/Socket : Using [0]eth0:10.0.0.1<0> [1]veth1:10.9.0.1<0>, "
          "veth1:10.9.0.1<0>↵I:NET/Socket : Using [0]veth1:10.9.0.1<0> [1]docker0:172.18.0.1<0> [2]eth0:10.0.0.1<0>, "
          "eth0:10.0.0.1<0>↵I:NET/Socket : Using [0]eth0:10.0.0.1<0> [1]tun0:10.8.0.1<0>, "
          "tun0:10.8.0.1<0>↵I:NET/Socket : Using [0]tun0:10.8.0.1<0> [1]docker0:172.18.0.1<0>",
          "↵W:socketStartConnect: Connect to 10.0.0.2<4021> failed : No route to host"),
    around(f"I:{PLACE}docker0:172.18.0.1<0>↵",
          "I:Connect to 10.0.0.2<4> failed : x, [W socket.cpp:6] [c10d] connect to n2:2 exceeded retries, python: "
          "Connection refused, iteration 7/ 9 | loss 2↵W:exceeded retries (20000), W:exceeded timeouts (3)"),
    around("", "W, I", ":Connect to fe80::8c2a:1%veth2a9f61c<3911> failed : Network is unreachable"),
    around("W:Connect to ", "fe80::1%tun0<39> failed : Connection timed out, fe80::1%eth0<39> failed : Connection "
          "refused, fe80::1%eth0<39> failed : Connection timed out, 169.254.3.2<39> failed : Connection refused, "
          "10.0.0.2%wg0<39> failed : Connection refused, ::1<39> failed : Connection refused, 127.0.0.1<39> failed : "
          "No route to host, fe80::1%a%veth1<39> failed : Connection refused, 10.0.0.2<39> failed : Connection "
          "refused, 10.0.0.2<39> failed : Connection timed out, 10.0.0.2<39> failed : Network is unreachable, "
          "10.0.0.2<39> failed : No route to host"),
    around("", "c10d, gloo, NCCL, I:", ": W connect to 10.0.0.2<39> returned Connection refused, exceeded error retry "
                                   "count after 35 attempts"),
    around(f"I:{PLACE}eth0:10.0.0.1<0>↵2I:{PLACE}eth0:", "10.0.0.2, 10.9.0.2, fd00::2",
          "<0>↵W:Connect to 10.0.0.7<4> failed : No route to host"),
    around(f"I:{PLACE}eth0:", "10.0.0.1<0> [1]eth1:10.9.0.1, 10.9.0.1, fd00::1",
          f"<0>↵2I:{PLACE}eth0:10.0.0.2<0>↵W:Connect to 10.0.0.2<4> failed : No route to host↵W:Connect to fd00::9<4> "
          f"failed : No route to host"),
    around("I:connect to 10.0.0.2<4> returned Connection refused, retrying (31/34)↵",
          "I:connect to 10.0.0.2<4> returned Connection refused\\, retrying (32/34)↵, step 7↵",
          "I:connect to 10.0.0.2<4> returned Connection refused, retrying (33/34)"),
    around(f"W:exceeded retries (20000)↵I:{PLACE}eth0:172.17.0.2<0>↵2I:{PLACE}",
          "eth0:172.17.0.2, eth0:10.0.0.2, docker0:172.17.0.2, veth1:172.17.0.2", "<0>"),
    *(around(f"W:exceeded retries (20000)↵I:{PLACE}eth0:{at}<0>↵",
          f"2I:{PLACE}eth0:{at}<0>, 2I:{PLACE}eth0:{at}<0>↵[rank1]: step 7, step 7")
      for at in ("10.0.0.1", "127.0.0.1", "169.254.0.1", "fe80::1", "::1")),
    around(f"I:{PLACE}eth0:10.0.0.1<0>↵2I:{PLACE}eth0:10.0.0.1<0>↵",
          "step 7, I:RuntimeError: x, W:Connect to x, DistNetworkError: x"),
    around("RuntimeError: ", "Unable to find address for: eth9, Unable to find interface for: eth9, unsupported gloo "
                             "device"),
    around("[W P.cpp:7] Warning: Unable to resolve hostname to a (local) address↵", "RuntimeError: connectFullMesh "
          "failed, [W a.cpp:7] connectFullMesh failed, RuntimeError: Connection refused, RuntimeError: Connection "
          "closed by peer, I:Connection refused, I:Connection refused↵RuntimeError: connectFullMesh failed"),
    around("", "E connect [127.0.1.1]:50, E connection closed by peer 127.0.1.1, E 127.0.1.1 is odd, I:connect to "
               "127.0.1.1<5>, E Read error: closed by peer [127.0.1.1]:50"),
    around("RuntimeError: ", "Connect timeout [10.0.0.2]:50, Gloo connectFullMesh failed remote=[10.0.0.3]:5, timed "
                             "out connecting: [10.0.0.4]:5 x, timed out connecting: 10.0.0.4 x connection refused, "
                             "connectFullMesh failed remote=[none], Connect timeout [10.0.0.2] remote=[10.0.0.3] "
                             "connecting: 10.0.0.4 , connectFullMesh failed 127.0.0.1, connectFullMesh failed"),
    around("[rank0]: RuntimeError: NCCL ", "Connection closed by remote peer n2.a<5>, connection reset by peer recv "
          "from 10.0.0.2<5>, Connection closed by peer [10.0.0.3]:5, Socket unexpectedly closed, Broken pipe send to "
          "10.0.0.4<5> x, Read error [10.0.0.5]:7"),
    around("", "I:Connection closed by remote peer n2<5>, [W socket.cpp:7] [c10d] Connection reset by peer, "
               "ConnectionResetError: Connection reset by peer, W:Broken pipe, the Store: Broken pipe, the Gloo: "
               "Broken pipe, nccl: Broken pipe, UCX: Broken pipe, OFI: Broken pipe, socketProgress: Broken pipe, "
               "socketStartConnect: Broken pipe, socketPollConnect: Broken pipe, Dist: Broken pipe"),
    around(f"I:{PLACE}", "eth1:10.0.0.1, veth1:10.0.0.1",
          f"<0>↵2I:{PLACE}eth0:10.0.0.2<0>↵n3:9:9 [0] NCCL INFO {PLACE}docker0:172.17.0.1<0>"),
    around("Waiting in store_based_barrier_key (", "worker_count=8\\, world_size=4, worker_count=4\\, world_size=4, "
          "worker_count=3\\, world_size=4, worker_count=8\\, x, worker_count=x\\, world_size=4", ", timeout)"),
    around("I:", "NCCL_IB_DISABLE set by environment to 1, NCCL_P2P_DISABLE set by environment to 1., NCCL_SHM_DISABLE "
                 "set by environment to 1, NCCL_NVLS_ENABLE set by environment to 0, NCCL_MNNVL_ENABLE set by "
                 "environment to 0., NCCL_NET_GDR_LEVEL set by environment to LOC, NCCL_NET_GDR_LEVEL set by "
                 "environment to 0, NCCL_NET_GDR_READ set by environment to 0, NCCL_NET_GDR_READ set by environment to "
                 "01, NCCL_SHM_DISABLE set by environment to 1 and NCCL_SHM_DISABLE set by environment to 1, "
                 "NCCL_P2P_DISABLE set by environment to 10↵I:NCCL_P2P_DISABLE set by environment to 1."),
    around("2I:Using network Socket↵I:", "Failed to open libibverbs.so[.1], Failed to load libibverbs, No eligible "
          "providers were found, NET/IB : No device found., NCCL_IB_DISABLE set by environment to 1., NET/IB : Using "
          "[0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>, NET/IB : Using [RO]; OOB eth0:10.0.0.1<0>, Using network Socket, "
          "GPU Direct RDMA Enabled for HCA 0, NCCL_NET set by environment to Socket, NCCL_IB_HCA set to mlx5_0, "
          "NCCL_NET set by environment to Socket↵I:NCCL_IB_HCA set to mlx5_0"))  # fmt: skip
FABRIC = "W:Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 1 "
MACHINES = logs(
    around("[rank0]: ", "system not yet initialized, GPU fabric is not ready within 9 s, the versions don't match with "
          "driver version 5, x doesn't match driver version 5, x does not match driver version 5, Failed to start "
          "nvidia-fabricmanager, Failed to start NVIDIA fabric manager↵x does not match driver version 5"),
    around(FABRIC, "'invalid argument', 'the present state', 'operation not supported', 'unknown error', 'not "
                   "permitted', 'out of memory', 'x'↵W:out of memory, 'x'↵W:a↵W:b↵W:out of memory, 'x'. Proceeding "
                   "without NVLS"),
    FABRIC.replace("W:", "I:", 1) + "'out of memory'",
    around("", "Cuda failure, CUDA error: , CUDA driver error: , CUDA failure , HIP failure, HIP error: ",
          " 'an illegal memory access'"),
    around("", "W, I", ":P2P is disabled between NVLINK connected GPUs 0 and 1"),
    around("", "W:Check the IMEX configuration, W:/dev/nvidia-caps-imex-channels, W:no IMEX channel, I:no IMEX "
               "channel, W:MNNVL is not supported on this system, I:IMEX (NVLink fabric) service is not running"),
    around("I:MNNVL ", "1 cliqueId 7↵W@transport/p2p.cc, 1 cliqueId 7↵W@transport.cc, 1 cliqueId 7↵W@allocator.cc, 1 "
                       "cliqueId 7↵W@mem_manager.cc, 1 cliqueId 7↵W@init.cc, 0↵W@transport/p2p.cc",
                             ":Cuda failure 800 'operation not permitted'"),
    around("[rank3]: ", "uncorrectable ECC error encountered, uncorrectable NVLink error, hardware stack error, "
                        "Invalid access of peer GPU memory over nvlink, GPU is lost, Unable to determine the device "
                        "handle for GPU, Unable to determine the device handle for gpu"),
    around("", "I:GPU is lost, No devices were found,   No devices were found  , W No devices were found here"),
    around("[ 8.1] NVRM: Xid (PCI:0000:5e:00): ",
          "79\\, pid=9, 74\\, link, 145\\, Nonfatal, 95\\, No user action, 13\\, pid=9, 31\\, pid=9, 43\\, x, 45\\, "
          "caused by previous Xid 79, 45\\, caused by previous Xid 31, 48, 149"),
    around("[ 8.1] nvidia-nvswitch0: SXid (PCI:0000:c0:00.0): ",
          "20034\\, Fatal\\, Link 30, 20034\\, Non-fatal, 12028\\, Nonfatal"),
    around("Oct 25 06:04:11 n1 kernel: ", "NVRM: GPU 0000:04:00.0: RmInitAdapter failed! (0x63), NVRM: GPU at "
                                          "PCI:0000:04:00: GPU has fallen off the bus., NVRM: The NVIDIA GPU "
                                          "0000:b3:00.0 (x) has fallen off the bus, NVRM: GPU 04: fallen off the bus"),
    *(f"Oct 25 06:04:11 n1 kernel: NVRM: The NVIDIA GPU 0000:b3:00.0 x{'↵Oct 25 06:04:11 n1 kernel: NVRM: a' * n}↵Oct "
      f"25 06:04:11 n1 kernel: NVRM: fallen off the bus" for n in (0, 1, 2, 3)),
    around("[ 8.1] nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrect",
          "ed (Fatal), able (Fatal), ed (Non-Fatal)"),
    around("[ 8.1] NVRM: Xid (PCI:0000:3b:00): 79, x↵[ 8.2] pcieport 0000:3a:00.0: Uncorrected (Fatal) 0000:",
          "3b:00.0, 3c:00.0"),
    around("I:DIAG ", "ECC: uncorrected volatile errors on rank(s) 3\\, 5 (worst=2), NVLink: inactive link(s) on "
                      "rank(s) 1-2 (x)"),
    around("W:", "Multiple Ranks are using the same GPU, Multiple ranks detected using the same GPU, Duplicate GPU "
                 "detected : rank 1 and rank 0 both"),
    around("[rank0]: RuntimeError: ", "all CUDA-capable devices are busy or unavailable, CUDA-capable device(s) is/are "
                                      "busy or unavailable"),
    around("", "MIG-0a, MIG device, MIG mode, mig",
          "↵W:Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000"),
    around("[rank0]: ", "CUDA driver version is insufficient for CUDA runtime version, Driver/library version "
          "mismatch, forward compatibility was attempted on non supported HW, unsupported display driver / cuda driver "
          "combination, the provided PTX was compiled with an unsupported toolchain, API call is not supported in the "
          "installed CUDA driver, NVIDIA driver on your system is too old, CUDA Driver version found is 7, CUDA some "
          "PFN functions not found in the library, CUDA driver is a stub library, CUDA driver is older than the "
          "minimum version, couldn't communicate with the NVIDIA driver, Failed to initialize NVML: Driver Not Loaded"),
    around("W@transport/p2p.cc:", "failed to peer with device 8: 711 peer mapping resources exhausted, peer-mapping "
          "(BAR1 P2P) resources are exhausted, failed to open CUDA IPC handle, cudaIpcOpenMemHandle failed, "
          "cudaIpcGetMemHandle failed, failed to peer with device 3, peer access is not supported between these two "
          "devices, UDS: Sending data over socket, peer access not supported between the given devices, Cuda failure "
          "'invalid device context', Cuda failure 'invalid resource handle', Cuda failure 'invalid device pointer', "
          "Cuda failure 'x'"),
    around("W@init.cc:", "Cuda failure 'invalid argument', Cuda failure 'invalid device ordinal', Cuda failure 'no "
                         "CUDA-capable device is detected'"),
    around("[rank1]: ", "Found no NVIDIA driver on your system, No visible GPU devices, could not select device "
          "driver, No CUDA GPUs are available, nvmlDeviceGetHandleByPciBusId() failed: Not Found, CUDA error: peer "
          "access not supported between the given devices, CUDA error: peer access is not supported between these two "
          "devices, failed to peer with device 3, [W a.cpp:7] peer access is not supported between these two devices"),
    around("I:", "failed to peer with device 3, peer access is not supported between these two devices, failed to open "
                 "CUDA IPC handle"),
    around("", "GPU 3 had uncorrectable memory errors, GPU 4 had an uncontained error (XID 95), 2 faulty memory "
          "elements on GPU 5, A memory mismatch was detected on GPU 6, a double-bit ECC error has occured on GPU 7, "
          "Pending page retirements together with a DBE on GPU 1, Detected a miscompare failure in the L1 cache, GPU 2 "
          "was unsuccessfully written to in a peer-to-peer test, unsuccessfully wrote data in a peer-to-peer test, a "
          "host-side PCIe replay violation on GPU 8, Detected fatal NvSwitch SXID 7, Detected 0 x NvLink errors on GPU "
          "5, Detected 3 x NvLink errors on GPU 5, Detected XID 43 for GPU 3, Detected XID 48 for GPU 3"),
    around("   GPU Recovery Action : ", "None, N/A, Reset, Drain: P2P"),
    around("   ", "Remapping Failure Occurred : Yes, Drain and Reset Recommended : Yes, Reset Required : Yes, Reset "
                  "Required : No, Reset Required, the GPU Recovery Action : Reset"),
    around("n0:7 NCCL DIAG [INFO] ", "Xid 43 detected 1 time on host n3., SXid 43 detected 1 time on host n3., Xid 79 "
          "detected 1 time, Xid 79 is told, the Xid 79 detected x, p2p: 52/56 peer accesses passed verification, net "
          "bw: same-nic rank 3 (n1): 265.1 Gbit/s\\, >30% off median 391.5, net bw: same-nic rank 3 (n1): 391.5 "
          "Gbit/s\\, >30% off median 391.5, net bw: same-nic (n1): 9 Gbit/s\\, >30% off median 391.5"),
    around("[rank1]: RuntimeError: CUDA error: ", "an illegal memory access was encountered, device-side assert "
          "triggered, an illegal instruction was encountered, misaligned address, the launch timed out and was "
          "terminated, operation not supported on global/shared address space, invalid program counter, unspecified "
          "launch failure, unknown error, initialization error"),
    around("[rank1]: ", "CUBLAS_STATUS_EXECUTION_FAILED, CUBLAS_STATUS_INTERNAL_ERROR, CUDNN_STATUS_EXECUTION_FAILED, "
                        "CUDNN_STATUS_INTERNAL_ERROR, Cuda failure 'unknown error'"),
    around("I:", "CUBLAS_STATUS_INTERNAL_ERROR, an illegal memory access, device-side assert triggered"),
    around("x.cu:9: f: block: [1,0,0], thread: [7,0,0] Assertion `i7 < n` failed.↵", "x.cu:9: f: block: [2\\,0\\,0] "
          "Assertion `i8 < n` failed.↵, ", "[rank1]: RuntimeError: CUDA error: device-side assert triggered"),
    around("x.cu:9: f: ", "block: [1\\,0\\,0] Assertion `i7 < n` failed.↵x.cu:9: f: block: [2] Assertion `i8` failed, "
                          "Assertion `i7` failed"))  # fmt: skip
OPENED = "{1}:7{0}:7{0} [0] NCCL INFO comm 0x1 rank {0} nranks 3 cudaDev 0 busId 7000 commId 0x9 - Init START\n"
UNUSABLE = "[rank0]: RuntimeError: NCCL error in: x.cpp:1, invalid usage (run with NCCL_DEBUG=WARN)"
WILD = "{} kernel: NVRM: Xid (PCI:0000:5e:00): {}, pid={}, name=python, Ch 00000010"
AT = "Nov 28 02:11:01 n1"
GPUS = {
    **{f"Xid {xid} of {pid} on {host or 'a host'}, {name}": f"{log}\n%- kern.log\n{WILD.format(host, xid, pid)}" for
        xid, pid, host in ((13, 100, AT), (31, 7, AT), (31, "'x'", AT), (31, 101, "[ 8.1]"), (31, 7, "Nov 28 02:11:01 "
        "n9"), (32, 100, AT)) for name, log in (("ranks", f"{MET}[rank0]: RuntimeError: x"),
        ("no number", "[rank0]: RuntimeError: x"), ("no failure", MET))},
    "Xids without a job": "\n".join(WILD.format("[ 8.1]", xid, 7) for xid in (13, 31, 43)),
    "an assertion of another log": "a.cu:1: block: [1] Assertion `i7` failed\n%- b.log\n[rank1]: CUDA error: "
                                   "device-side assert triggered",
    "ranks of one identity": "\n".join(f"[rank{rank}]: localhost:7:7 [0] NCCL INFO Bootstrap : Using "
        f"eth0:10.0.0.{rank + 1}<0>" for rank in range(3)) + "\n[rank2]: localhost:7:8 [0] init.cc:900 NCCL WARN "
        "Duplicate GPU detected : rank 2 and rank 1 both on CUDA device 7000",
    **{f"ranks of n1 and {host}": f"n1:7:7 [0] NCCL INFO comm 0x1 rank 0 nranks 2 busId 7 - Init START\n{host}:8:8 [0] "
        f"NCCL INFO comm 0x1 rank 1 nranks 2 busId 7 - Init START\n{host}:8:8 [0] init.cc:1 NCCL WARN Duplicate GPU "
        f"detected : rank 1 and rank 0 both" for host in ("n1", "n2")},
    **{f"one bus id, {name}":
        f"{''.join(OPENED.format(rank, host) for rank, host in ((2, 'n1'), (0, 'n1'), (1, other)))}{more}{UNUSABLE}" for
        name, other, more in (("two hosts", "n2", ""), ("three ranks", "n1", ""), ("MIG", "n1", "MIG-0a\n"), ("met",
        "n1", MET), ("told", "n1", "n1:7:9 [0] x.cc:1 NCCL WARN Duplicate GPU detected : rank 1 and rank 0\n"))},
    "two bus ids": f"{OPENED.format(0, 'n1')}{OPENED.format(1, 'n1').replace('7000', '8000')}{UNUSABLE}"}  # fmt: skip
DONE = "W:NET/IB : Got completion from peer 10.0.0.2<4> with "
ROCE = "I:NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"
BARE = " localGid fe80::1:2 remoteGid fe80::1:3"
MODIFY = "W:Call to ibv_modify_qp failed with "
GIDS = ", on dev mlx5_0:1, curr state INIT, next state RTR, local GID index 3, local GID {}, remote GID {}"
NETWORKS = logs(
    around(f"{DONE}status=", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 19, 20, 21, 22",
          " opcode=0 len=0 vendor err 0 hca mlx5_0"),
    around("I:", "Got completion from peer 10.0.0.2<4> with status=4 opcode=0 len=0 vendor err 0, Call to "
                 "ibv_modify_qp failed with error x"),
    around("UCX: ", "transport retry counter exceeded on mlx5_1:1/IB x, transport retry count exceeded on mlx5_2:1 "
                    "(local_nic: mlx5_3\\, 7), transport retry counter (local_nic: mlx5_4\\, 7)"),
    *(f"{DONE}status=12 opcode=0 len=0 vendor err 129{other}{DONE.replace('W:', '↵2W:')}status=12 opcode=0 len=0 "
          f"vendor err 129" for other in (DONE.replace("W:", "↵3W:") + "status=12 opcode=0", DONE.replace("W:", "↵3W:"
          ).replace("2<", "9<") + "status=12 opcode=0", "")),
    around("I:NET/IB: Dev 0 Port 1 qpn 9 mtu ", "5 LID 1↵I:NET/IB: Dev 0 Port 1 qpn 4 mtu 5 LID, 5 LID 1↵I:the mtu 3 "
          "x, 5 LID↵I:NET/IB: Dev 0 Port 1 qpn 4 mtu 3 LID", f"↵{DONE}status=12 opcode=0 len=0"),
    around(f"{ROCE}↵", f"{DONE}status=12 opcode=0{BARE}↵{DONE}status=12 opcode=0 localGid ::ffff:10.0.0.1 remoteGid "
          f"::ffff:10.0.0.2, I:Dev 0 qpn 9 mtu 3 GID 0 (80FE/F6)↵I:Dev 1 qpn 9 mtu 3 GID 0 (0/FFFF)↵{DONE}status=12 "
          f"opcode=0, I:Dev 0 qpn 9 mtu 3 LID 7↵{DONE}status=12 opcode=0, iteration 7/ 9 | loss 2↵iteration 8/ 9 | "
          f"loss 2↵{DONE}status=12 opcode=0{BARE}, I:NCCL_IB_GID_INDEX set by environment to 0.↵{DONE}status=12 "
          f"opcode=0{BARE}, {DONE}status=12 opcode=0{BARE}, I:NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB "
          f"eth0:10.0.0.1<0>↵{DONE}status=12 opcode=0{BARE}"),
    around(f"{DONE}status=12 opcode=0 localGid ", "::ffff:10.0.0.1 remoteGid fe80::1, ::ffff:10.1.0.1 remoteGid "
          "::ffff:10.2.0.1, ::ffff:10.1.0.1 remoteGid ::ffff:10.1.0.2"),
    around(f"2W:mlx5_0:1 Got async event : local access violation↵{DONE}status=", "1, 9, 12, 5"),
    around("HINT: ACS is enabled", " which would break GPU Direct RDMA↵, \\, which breaks the GPU Direct RDMA↵, ↵",
          f"{DONE}status=4↵{DONE}status=8"),
    around("[ 8.1] DMAR: ", "[DMA Write] Request device [5e:00.0] fault, DRHD: handling fault status reg 2, x"),
    around("[ 8.1] ", "NET/IB, mlx5_core 0000:5e:00.0, mlx4_core, bnxt_re, bnxt_en, irdma, ionic, rdmavt, hfi1, "
                      "e1000e", ": x: Link down"),
    around("[ 8.1] mlx5_core 0000:5e:00.0: ", "port error, catastrophic error, link down, Link Down, async fatal, "
          "init_one failed with error, firmware internal error, Health issue observed, Port module event: module 0\\, "
          "Cable error, Cable unplugged, Port module event\\, Cable plugged"),
    around(f"{ROCE}↵{MODIFY}", "error Invalid argument errno 22, 22 Invalid argument, 61 No data, 19 No such device, "
          "110 Connection timed out, 101 Network is unreachable, 113 No route to host, 5 x, error x, x"),
    around(f"I:NCCL_IB_GID_INDEX set by environment to 3↵{MODIFY}", "22 Invalid argument, 61 No data"),
    *(f"{MODIFY}{error}{GIDS.format(own, peer)}" for error in ("5 x", "110 Connection timed out") for own, peer in ( (
          "::ffff:10.1.0.1", "::ffff:10.2.0.2"), ("::ffff:10.1.0.1", "::ffff:10.1.0.2"), ("fe80::1", "::ffff:10.1.0.2"))
          ),
    around("W:", "Call to ibv_query_gid failed, x failed in ncclIbRoceGetVersionNum: y"),
    around("W:", "failed to extend /dev/shm/x, failed to create shared memory file, insufficient shared memory, out of "
                 "shared memory, unable to open shared memory object, Error while creating shared memory segment, "
                 "unable to write to file </torch_7>, Call to posix_fallocate failed, Call to ftruncate failed, x "
                 "exceeds memory available in /dev/shm, mm_iface failed to allocate receive FIFO, unable to open "
                 "shared memory object↵W:Too many open files, too many open files"),
    around("[rank2]: ", "Out of memory: Kill, oom-kill, oom_kill, oom_reaper, OOMKilled, OOM Killed, killed due to "
          "memory pressure, running low on memory, Out Of Memory, Memory cgroup out of memory, exceeded K8s pod memory "
          "limits, TERM_MEMLIMIT: job killed, PBS: job killed: mem 9, DefaultCPUAllocator: can't allocate memory, "
          "DefaultCPUAllocator: not enough memory, Unable to allocate 7 GiB, Unable to allocate memory, Unable to "
          "allocate array, Unable to allocate 7 UAR, std::bad_alloc, cannot allocate memory for thread-local data, "
          "[Errno 12] Cannot allocate memory, " 'CUDA out of memory. running low on memory, "OOMKilled":false, '
          '"OOMKilled": false, oom_kill event, may have OOMKilled, oom-kill memory limits'),
    around("[ 9.1] python invoked oom-killer: x↵", "a↵b↵CONSTRAINT_MEMCG, a↵b↵c↵CONSTRAINT_MEMCG, a↵cgroup x, a"),
    around("", "E running low on memory (the node (IP: 10.0.0.7\\, ID: x), E running low on memory↵a↵Memory on the "
               "node (IP: 10.0.0.8\\, x), E running low on memory↵a↵b↵the node (IP: 10.0.0.8\\, x)"),
    around("[rank2]: ", "CUDA out of memory. x, torch.OutOfMemoryError: x, HIP out of memory. x, RESOURCE_EXHAUSTED: "
                        "Out of memory Error, OUT_OF_DEVICE_MEMORY, ray.exceptions.OutOfMemoryError: x, CUDA out of "
                        "memory, CUBLAS_STATUS_NOT_INITIALIZED, CUBLAS_STATUS_ALLOC_FAILED"),
    around("[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ", "2.00 GiB. GPU 3 has 79 GiB of "
          "which 2.99 GiB is free. Process 7 has 3 GiB memory in use. Process 8 has 4.5 MiB memory in use, 2.00 GiB. "
          "GPU 3 has 79 GiB of which 3.00 GiB is free, 512.00 MiB. GPU 1 has 79 GiB of which 1.51 GiB is free, 512.00 "
          "KiB of which 7.2 GiB is free, 2 of which 7 GiB, x GiB of which 9 GiB, 2.00 TiB of which 9 GiB"),
    around("", "[W a.py:7] , 2026-01-02 03:04:05 WARNING , iteration 7/ 9 | loss 2↵2026-01-02 03:04:05 WARNING , W:",
          "CUDA out of memory. Tried to allocate 2.00 GiB"),
    around("2026-01-02 03:04:05 WARNING CUDA out of memory. Tried 2 GiB↵",
          "ValueError: x, FATAL x, F0102 03:04:05.000000 77 x.cc:3] Check failed, step 7"),
    around("iteration 7/ 9 | loss 2↵2026-01-02 03:04:05 WARNING CUDA out of memory. Tried 2 GiB↵",
          "E RuntimeError, iteration 8/ 9 | loss 2↵iteration 9/ 9 | loss 2↵E RuntimeError"),
    around("W@transport/nvls.cc:Cuda failure 2 'out of memory'↵", "W:Cuda failure 2 'out of memory', [rank1]: "
          "OutOfMemoryError: CUDA error: out of memory, [rank1]: CUDA error: out of memory"),
    around("[ 8.1] ", "Node failure on n7, Kernel panic - not syncing: x, a DUE TO NODE FAILURE"),
    around("E RuntimeError: x↵3m Warning Evicted ", "pod/ns/w-0 The node was low on resource: memory. Threshold "
          "quantity, w-0 pod is evicted successfully, pod/w-0 The node was low on resource: disk.↵4m Normal Scheduled "
          "pod/w-0 Successfully assigned ns/w-0 to n4 , pod/w-0 The node was low on resource: disk.↵w-1:7:7 [0] NCCL "
          "INFO Bootstrap : Using eth0:10.0.0.1<0>↵4m Scheduled pod/w-1 Successfully assigned ns/w-1 to n4, "
          "pod/other-0 The node was low on resource: disk.↵w-1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>↵4m "
          "Scheduled pod/w-1 Successfully assigned x to n4"),
    'Mar  1 10:00:00 n3 kubelet: E RuntimeError: pod="ns/w-0" The node was low on resource: memory',
    around("[ 8.1] INFO: task python:42 blocked for more than ",
          "120 seconds.↵E RuntimeError: x, 120 hours.↵E RuntimeError: x, 120 seconds."),
    around("Timed out after 9 seconds waiting for clients. 1/2 clients joined.↵2m Warning FailedScheduling ",
          "0/4 nodes are available: 4 Insufficient gpu. preemption: 0/4 nodes are available: x., pod/ns/w-1 0/4 nodes "
          "are available: 4 a., x↵0/4 nodes are available: 1 b↵4m Scheduled Successfully assigned w-1 to n4, 0/4 nodes "
          "are available: 4 c↵I:comm 0x1 - Init COMPLETE"),
    around("W:Call to ", "ibv_reg_mr, ibv_reg_dmabuf_mr, ibv_create_cq, ibv_create_qp, ibv_alloc_pd",
          " failed with error Cannot allocate memory errno 12"),
    around("W:Call to ", "ibv_reg_mr, ibv_reg_dmabuf_mr, ibv_create_cq, ibv_create_qp, ibv_alloc_pd", " failed"),
    around("", "W:Call to ibv_reg_mr failed↵, W:Call to ibv_create_qp failed↵, W:Call to ibv_reg_mr failed with error  "
          "Cannot allocate memory↵, W:Call to ibv_reg_mr failed with error Bad address errno 14↵, ucx "
          "ibv_reg_mr(address=0x7f) failed: Cannot allocate memory↵", "$ ulimit -l '  ↵  unlimited"),
    around("W:Call to ibv_create_qp failed↵", "ulimit -l: 64, ulimit -l unlimited, ulimit -l=unlimited, $ ulimit "
          "-l↵64, n2:8:8 [0] NCCL INFO max locked memory 64, max locked memory 64, max locked memory (kbytes\\, -l) "
          "unlimited, Max locked memory unlimited unlimited bytes↵$ ulimit -l↵64, MEMLOCK max locked-in-memory address "
          "space unlimited unlimited bytes, -l: locked-in-memory size (kbytes) 64, RLIMIT_MEMLOCK is 7 bytes, the "
          "memlock limit is low, ulimit -l unlimited is needed"),
    around("W:OS call failed or operation not supported on this OS", "↵microsoft-standard, ↵WSL2, ↵x"))  # fmt: skip
MEETINGS = logs(
    around("socket.gaierror: ", "Name or service not known, Temporary failure in name resolution, No address "
                                "associated with hostname, nodename nor servname provided, Could not resolve hostname, "
                                "Name does not resolve"),
    around("E Name or service not known: ", "HTTP, urllib, huggingface, wandb, requests.get, s3.x, git fetch, gloo"),
    "I:Name or service not known",
    *(f"nslookup: can't resolve '{name}': Name does not resolve{'↵x' * n}" for name, n in (("head", 5), ("head", 6),
          ("(null)", 1))),
    around("[W socket.cpp:6] [c10d] The IPv4 network addresses of (head, 29500) cannot be retrieved (gai error: -2 - "
          "Name or service not known).↵", "[E a.cpp:1] The client socket has timed out after 9 s to (head\\, 29500), "
          "socket.gaierror: (head\\, 2), [E a.cpp:1] The client socket has failed to connect to (tail\\, 29500), %- "
          "b.log↵[E a.cpp:1] The client socket has timed out after 9 s to (head\\, 29500)"),
    around("", "[W a.cpp:1] , [E a.cpp:1] , W@ras/client.cc:, I:, W:", "bind to [::]:29500: Address already in use"),
    around("OSError: ", "address already in use port: 29501, EADDRINUSE, errno: 98 x, Address already in use port: "
                        "29501 [::]:29502"),
    around("E Address already in use", "; TORCHELASTIC_USE_AGENT_STORE is enabled so ignoring, \\, trying another "
                                       "port, ; trying 7↵E EADDRINUSE, \\, trying 8, x"),
    around("[E a.cpp:1] has failed to listen on any local network address↵",
          "[W a.cpp:1] [::]:29500 EADDRINUSE, %- b.log↵[W a.cpp:1] [::]:2 EADDRINUSE"),
    around("E server socket ", "errno: 13 - Permission denied, name: EACCES, [Errno 13], Call to bind failed : "
                               "Permission denied, x"),
    around("E open ", "errno: 13 - Permission denied, name: EACCES, [Errno 13], Call to bind failed: Permission "
                      "denied"),
    around("[E a.cpp:1] ", "The client socket has timed out after 9 ms while trying to connect to (n1\\, 29500), The "
          "client socket has failed to connect to any network address of (4294967295\\, 29500), The client socket has "
          "failed to connect to any network address of (42949672951\\, 29500), connect() timed out, The connection to "
          "the C10d store has failed, RendezvousConnectionError, the connection to the C10d store has failed, "
          "connect() timed out: network address of (a\\, 1) connect to (b\\, 2)"),
    around("", "x, [rank0]: Timed out after 9 seconds waiting for clients. 1/2 clients joined, [rank1]: Timed out "
               "after 9 seconds waiting for clients. 1/2 clients joined",
                     "↵[rank1]: connect() timed out↵[rank0]: connect() timed out"),
    around("", "E x has failed to send a keep-alive heartbeat to the rendezvous↵, iteration 7/ 9 | loss 2↵iteration 8/ "
               "9 | loss 2↵, E x has failed to send a keep-alive heartbeat to the rendezvous↵%- b.log↵",
                     "E RendezvousConnectionError↵E connect() timed out"),
    "E RendezvousConnectionError↵E x has failed to send a keep-alive heartbeat to the rendezvous",
    *("↵".join(f"[W socket.cpp:6] [c10d] The client socket has failed to connect to [h]:29500 (errno: {error} - x)."
               for error in errors) + end
      for errors in ((110, 113), (113, 113, 110), (113,), (111, 111), (110, 111)) for end in ("", "↵x")),
    around("W:", "mismatch in rank count from procs 16 : 8, Bootstrap Root : rank 3 of 16 ranks has already checked "
                 "in, Invalid rank requested : 8/8, improper usage of ncclCommInitRank"),
    around("[rank0]: Timed out after 9 seconds waiting for clients. ",
          "1/4 clients joined, 3/4 clients joined, 4/4 clients joined, 5/4 clients joined"),
    around("", "[rank1]: step 1↵[rank2]: step 1↵, INFO: Added key: store_based_barrier_key:1 to store for rank: 1↵, "
               "[rank2]: step 1↵INFO: Added key: store_based_barrier_key:1 to store for rank: 3↵",
                     "[rank0]: Timed out in store based barrier on rank 0 (world_size=4, num_workers_joined=2, x)"),
    around("[rank1]: The client socket has timed out after 9 ms", "\\, try=0↵, \\, try=1↵",
          "[rank0]: Timed out after 9 seconds waiting for clients. 1/2 clients joined"),
    around("", "Missing ranks: [3\\, 1], missing ranks: 10\\, 9, x missing ranks: none, timed out task "
               "names:↵/job:w/task:12↵/job:w/task:9, stopped sending heartbeats): /task:2 /task:1, Tasks have not "
               "arrived: 4, Missing ranks: 0\\, 1\\, 2\\, 3\\, 4\\, 5\\, 6\\, 7\\, 8\\, 9\\, 10\\, 11\\, 12\\, 13\\, "
               "14\\, 15\\, 16\\, 17"),
    around("[rank1]: c10d ", "wait timeout after 9, Socket Timeout, Failed to recv\\, got 0 bytes, Failed to send\\, "
          "sent 0 bytes, Store is down while x, Broken " 'pipe, Failed to check the "should dump" flag on TCPStore, '
          'recvValue failed, sendBytes failed, failed to recv\\, got 0 bytes'),
    around("", "[rank1]: , [rank4]: , [rank0]: x↵[rank4]: , [rank1]: wait timeout after 6 keys: a//cpu//0/4↵[rank2]: ",
          "torch.distributed.DistStoreError: wait timeout after 6000ms, keys:  a/0//cpu//0/4 , b//cpu//0/5"),
    around("[rank1]: wait timeout after 6 keys: ", "a//cpu//0/x, a//cpu//0/04, a//cuda//0/4, a//cpu//0/1"))  # fmt: skip
PLUGINS = logs(
    around("", "W, I", ":NET/OFI Only EFA provider is supported"),
    around("I:", "FI_PROVIDER is efa↵, NCCL_NET set by environment to AWS↵, Using network AWS Libfabric↵, Using "
          "network Libfabric↵, x↵, RuntimeError: x↵", "I:No eligible providers were found"),
    around("W:Failed to initialize any NET↵W:", "Couldn't find any optimal provider, OFI fi_getinfo() call failed, "
          "NET/OFI aws-ofi-nccl initialization failed, NET/OFI Failed to initialize"),
    around("W:NET/OFI ", "security group on either this instance or the peer, Unreachable remote, never received a "
                         "response, FI_EHOSTUNREACH"),
    *(f"{steps}W:NET/OFI Request completed with error. {one}{end}" for steps in ("", "iteration 7/ 9 | loss "
          "2↵iteration 8/ 9 | loss 2↵") for one in ("RC: 20. x", "err: 20, x", "RC: 5. x") for end in ("",
          "↵2W:NET/OFI Request completed with error. RC: 20. x")),
    around("W:NET/OFI Unable to retrieve completion queue entries ",
          "↵W:unresponsive Peer host id: N/A, ↵W:Peer host id: N/A, Unreachable remote"),
    "W:a request completed with error",
    around("", "I:NET/IB : No device found↵, 2I:NET/IB : No device found↵, ", "[rank0]: Error: network IB not found"),
    around("", "W, I", ":Error: network Socket not found↵W:Error: network IB not found↵W:Error: network X not found"),
    around("Error: network ", "IB not found, AWS Libfabric not found, X not found, Socket not found"),
    around("", "I:NET/IB : No device found↵, 2I:NET/IB : No device found↵, I:NET/IB : No device found↵I:Initialized "
               "NET plugin Socket↵, I:NET/IB : No device found↵2I:Initialized NET plugin Socket↵, ",
                     "W:Failed to initialize any NET plugin↵I:Failed to initialize any NET plugin"),
    around("I:", "NCCL_NET_PLUGIN set by environment to  aws , NET/Plugin: Plugin name set by env to  none , "
                 "NET/Plugin: Plugin name set by env to x, NCCL_NET_PLUGIN set by environment to , NCCL_NET_PLUGIN set "
                 "by environment to x↵W:RuntimeError: x", "↵I:NET/Plugin: No plugin found"),
    around("I:NET/Plugin: Could not find: ",
          "libnccl-net.so., libfoo.so., libfoo.so libnccl-net.so., libnccl-net.so libfoo.so"),
    around("I:NET/Plugin", ": Loaded net plugin X↵I:, : Loaded net plugin X↵2I:, ↵I:",
          "Failed to find ncclNetPlugin_v6 symbol"),
    around("I:", "symbols v4 and lower are not supported, External network plugin is unsupported, the size is "
                 "unsupported, plugin has incompatible version, requires at least libfabric version 1, version "
                 "`FABRIC_1.7' not found, TUNER/Plugin: symbols v4 and lower are not supported, PROFILER/Plugin: "
                 "symbols v4 and lower are not supported, ncclCollNetPlugin symbols v4 and lower are not supported, "
                 "NET/Plugin: undefined symbol: x, a: undefined symbol: x"),
    around("I:NET/Plugin: ", "dlerror=a=libx.so: cannot open shared object file, libx.so: cannot open shared object "
          "file: libx.so, (libx.so) libx.so: cannot open shared object file, libnccl-net-x.so: cannot open shared "
          "object file, liby.so: cannot open shared object file: a: cannot open shared object file"),
    around("W:", "Could not open XML topology file /x, XML Topology has wrong version, XML Parse error, XML Parse : x, "
                 "XML Mismatch, in the provided topology file, TopoFillNet: parent is NULL, Could not open XML graph "
                 "file, XML Graph has wrong version, XML Import Channel : x, XML Export Channel : x"),
    around("I:", "NCCL_TOPO_FILE set by environment to /x↵, Loading topology file /x↵, a↵",
          "I:Could not open XML topology file /x↵I:Could not open XML topology file /virtualTopology.xml↵I:in the "
          "provided topology file↵I:XML Mismatch↵W:Attribute busid of node pci not found↵W:Attribute busid is odd"),
    around("I:NCCL_TOPO_FILE set by environment to /x↵I:NCCL_GRAPH_FILE set by environment to /y↵", "W, 2W",
          ":XML Mismatch↵W:TopoFillNet: parent is NULL"),
    "W:XML Mismatch↵I:NCCL_GRAPH_FILE set by environment to /y↵I:Loading topology file /x↵W:XML Mismatch",
    "I:NCCL_GRAPH_FILE set by environment to /y↵%- b.log↵I:x↵W:XML Mismatch",
    around("I:", "NCCL_IB_HCA set to a↵, NCCL_IB_GID_INDEX set by environment to 3↵, NCCL_NET set by environment to "
                 "IB↵, NCCL_IB_DISABLE set by environment to 0↵, Using network IB↵, NCCL_IB_HCA set to ^a↵, x↵",
                       "I:Failed to load libibverbs↵I:libibverbs.so.1: cannot open shared object file↵I:Failed to open "
                       "libibverbs.so↵2I:no userspace device-specific driver found↵2I:NET/IB : No device found"),
    around("", "I:NCCL_IB_HCA set to ^a↵, I:NCCL_IB_HCA set to ^a↵I:NCCL_IB_HCA set to b↵, W:Error: network IB not "
               "x↵", "I:NET/IB : No device found"),
    around("I:Using network ", "IB↵2I:Using network Socket↵3I:Using network  IB , IB↵2I:Using network OFI↵3I:Using "
          "network OFI, IB↵2I:Using network Socket↵3I:Using network OFI, Socket↵2I:Using network IB↵I:Using network "
          "IB, IB↵2I:Using network IB, Socket↵2I:Using network IB↵2I:Using network OFI"),
    around("I:", "GPU Direct RDMA Enabled for HCA 1 'b', GPU Direct RDMA Disabled for HCA 1 'b', Using network Socket, "
                 "x", "↵I:GPU Direct RDMA Disabled for HCA 0 'a'↵2I:GPU Direct RDMA Disabled for HCA 0 "
                      "'a'↵2I:NET/Socket GPU Direct RDMA Disabled for HCA 0"),
    around("I:NET/IB : Using [0]mlx5_0:1/", "IB [1]mlx5_1:1/RoCE, IB/SHARP [1]mlx5_1:1/RoCE, RoCE [1]mlx5_1:1/RoCE, "
                                            "IB", " [RO]; OOB eth0:10.0.0.1<0>↵W:NCCL failure"),
    around("# Out of bounds values : ", "34 FAILED, 0 OK, 7 x FAILED"),
    around("I:", "NCCL_ALGO, NCCL_PROTO, NCCL_BUFFSIZE, NCCL_NTHREADS, NCCL_LL_BUFFSIZE, NCCL_LL128_BUFFSIZE, "
                 "NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS, NCCL_MIN_CTAS, NCCL_MAX_CTAS, NCCL_CROSS_NIC, NCCL_NET, "
                 "NCCL_IB_DISABLE, NCCL_P2P_NET_CHUNKSIZE, NCCL_NCHANNELS_PER_NET_PEER, NCCL_COLLNET_ENABLE, "
                 "NCCL_NVLS_ENABLE, NCCL_CUMEM_ENABLE, NCCL_SHM_DISABLE, NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, "
                 "NCCL_IB_SPLIT_DATA_ON_QPS, NCCL_IB_QPS_PER_CONNECTION, NCCL_MNNVL_ENABLE, NCCL_PXN_DISABLE, "
                 "NCCL_SOCKET_FAMILY, NCCL_DEBUG",
                       " set by environment to 1 .↵2I:- Init START↵3I:- Init COMPLETE↵W:NCCL failure"),
    around("I:NCCL_PROTO set by environment to LL↵2I:NCCL_PROTO set by environment to Simple↵",
          "W:Cuda failure x, I:Cuda failure x, I:NCCL environment: mismatch across ranks, W:NCCL failure NCCL "
          "environment: mismatch across ranks, n1:7:7 [0] NCCL INFO comm 0x1 rank 0 nranks 2 - Abort COMPLETE"),
    around("W:", "Mismatched NCCL version detected, Mismatched NCCL git versions detected, NCCL version mismatch with "
                 "remote peer, NCCL library is too old, NCCL library version is too old, NCCL library is not backwards "
                 "compatible, compiled with too old version of NCCL, undefined symbol: ncclX, libnccl.so.2: cannot "
                 "open, libnccl.so: cannot open, libnccl.so.2: undefined"),
    around("I:", "NCCL library is too old, NET/Plugin: undefined symbol: ncclX"),
    *(f"I:NCCL version {version}+cuda12↵{line}" for version in ("2.18.9", "2.19.0", "2.21.4", "2.21.5", "2.23.9",
          "2.24.0", "2.26.1", "2.26.2", "2.28.9", "2.29.0") for line in ( "W@include/alloc.h:Cuda failure 'invalid "
          "argument'↵W:Message truncated : received 3072 bytes instead of 256↵W:ncclMaxSharedMem",)),
    around("I:NCCL version 2.25.1+cuda12↵", "W@transport/shm.cc:Cuda failure 'not supported', W@allocator.cc:CUDA "
          "error: not permitted, W@init.cc:Cuda failure 'not permitted', I:Cuda failure 'not permitted', "
          "W@allocator.cc:OS call not supported' Cuda failure, W@allocator.cc:not permitted"),
    around("I:NCCL version 2.19.3+cuda12↵", "I, 2W", ":Message truncated : received 3072 bytes instead of 256"),
)  # fmt: skip
TABLES = {"connections": of(CONNECTIONS), "machines": of(MACHINES), "gpus": of(GPUS), "networks": of(NETWORKS),
          "meetings": of(MEETINGS), "plugins": of(PLUGINS)}  # fmt: skip
