"""Secrets, addresses and names in all spellings: what must go from a line of text, and what everyone has and stays."""

from ncclprobe.redact.redactor import Redactor

KNOWN = """\
login with key f8b46287cced9041dff02cee737443e210471948 failed for entity x :: f8b46287cced9041dff02cee737443e210471948
key NRAK-ACM4D68YJFNC3LGLC0GAXIT9QTL invalid :: ACM4D68YJFNC3LGLC0GAXIT9QTL
token bkua_8f134a069e3fab8c3bfc5e740e61572b4e3c02ea invalid :: 8f134a069e3fab8c3bfc5e740e61572b4e3c02ea
key fw_MLOfjSokiCOzfc2CEmnUxa invalid :: MLOfjSokiCOzfc2CEmnUxa
wrong password 'k0xUDvKDy7wuav' for user x :: k0xUDvKDy7wuav
cannot open C:\\Users\\jroe77\\run.py :: jroe77
mail jane.roe%40zorg-labs.io bounced :: jane.roe
mail jane.roe%40zorg-labs.io bounced :: zorg-labs
cannot resolve gpu17.zorglabs :: zorglabs
lost r07u12n03 in the middle :: r07u12n03
connect to zorg17-ib0 failed :: zorg17
connect to ps1.zorglabs.net:2049 failed :: zorglabs
cannot read gs://zorg-secret-bucket/datasets/x.tar :: zorg-secret-bucket
not authorized: arn:aws:iam::123456789012:role/ZorgTrainer :: 123456789012
not authorized: arn:aws:iam::123456789012:role/ZorgTrainer :: ZorgTrainer
fatal: git@github.com:zorglabs/secret-model.git denied :: zorglabs
host 172-29-33-44.ns.pod.cluster.local refused :: 172-29-33-44
connect 172.29.33.44.5 refused :: 172.29.33.44
link 0C-42-A1-9B-77-1E down :: 0C-42-A1-9B-77-1E
enx0c42a19b771e down :: 0c42a19b771e
lid 17 node_guid=0c42a103009b771e :: 0c42a103009b771e
JOBID 8812345 USER jroe77 ACCOUNT zorgacct :: jroe77
JOBID 8812345 USER jroe77 ACCOUNT zorgacct :: zorgacct"""
NEW = """\
peer 10_11_12_13 is gone :: 10_11_12_13
route to 0x0a0b0c0d lost :: 0a0b0c0d
IP 10.11.12.13.44321 > 10.11.12.14.4791: UDP, length 64 :: 10.11.12.13
IP 10.11.12.13.44321 > 10.11.12.14.4791: UDP, length 64 :: 10.11.12.14
13.12.11.10.in-addr.arpa has no name :: 13.12.11.10
7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.2.1.0.0.8.b.d.0.1.0.0.2.ip6.arpa :: 0.0.2.1.0.0.8.b.d
switch port 0c42.a19b.771e flapped :: 0c42.a19b.771e
hwaddr=0c42a19b771e :: 0c42a19b771e
link 0c-42-a1-9b-77-1e down :: 0c-42-a1-9b-77-1e
HWaddr 0C:42:A1:9B:77:1E :: 0C:42:A1:9B:77:1E
sys_image_guid: 0c42a103009b771e :: 0c42a103009b771e
Port GUID 0x0c42a103009b771e :: 0c42a103009b771e
disk eui.0c42a103009b771e is gone :: 0c42a103009b771e
disk wwn-0x5000c500a1b2c3d4 is gone :: 5000c500a1b2c3d4
worker 0x0c42a103009b771e:1 left :: 0c42a103009b771e
pod train-10-11-12-13 evicted :: 10-11-12-13
10.11.12.13:29500->10.11.12.14:5001 closed :: 10.11.12.13
fe80::e42:a1ff:fe9b:771e%eth0 is unreachable :: e42:a1ff:fe9b:771e
[2001:db8:12::7]:29500 refused :: 2001:db8:12::7
ip-10-11-12-13.us-west-2.compute.internal refused :: 10-11-12-13
cd ~jroe77/run failed :: jroe77
open C:/Users/jroe77/x.py :: jroe77
tcp 10.11.12.13%3A29500 refused :: 10.11.12.13
user=jroe77 uid=1001 :: jroe77
drwxr-xr-x 2 jroe77 zorggrp 4096 Jan  1 10:00 out :: jroe77
drwxr-xr-x 2 jroe77 zorggrp 4096 Jan  1 10:00 out :: zorggrp
Server=db1;Uid=x;Pwd=Hunter2zorg;Encrypt=yes :: Hunter2zorg
passwd: s3cr3tZorg :: s3cr3tZorg
run --api-key=0123456789abcdef0123456789abcdef01234567 :: 0123456789abcdef0123456789abcdef01234567
Authorization: Basic am9lOnNlY3JldA== :: am9lOnNlY3JldA
clone https://joe:s3cret@git.x.io/y :: s3cret
pull 123456789012.dkr.ecr.us-east-1.amazonaws.com/zorg-train:latest :: 123456789012
arn:aws:s3:::zorg-bucket/x :: zorg-bucket
upload s3://zorg-bucket/ckpt/step-100 :: zorg-bucket
GET https://zorg-bucket.s3.us-east-1.amazonaws.com/x :: zorg-bucket
remote: git@gitlab.zorg.io:ml/secret-model.git :: secret-model
MAC=0C42A19B771E :: 0C42A19B771E
abfss://data@zorgaccount.dfs.core.windows.net/x :: zorgaccount
view run at https://wandb.ai/zorglabs/llm-7b/runs/abc123 :: zorglabs
wandb: Currently logged in as: jroe77 (zorglabs) to https://api.wandb.ai :: jroe77
ssh://git@gitlab.com/zorglabs/secret.git :: zorglabs
clone https://github.com/zorglabs/secret-model.git :: zorglabs
loading zorglabs/secret from https://huggingface.co/zorglabs/secret :: zorglabs
pull gcr.io/zorg-project/train:1 :: zorg-project
connect to a3.zorglabs.org:22 :: zorglabs
resolve b12.hpc.zorg.de failed :: zorg.de"""
PUBLIC = """\
/opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2501, in all_reduce
/usr/local/lib/python3.10/dist-packages/torch/nn/parallel/distributed.py
/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5
/usr/lib/x86_64-linux-gnu/libcuda.so.535.161.08
/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so
/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so
src/transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer
src/transport/net_ib/connect.cc:15
src/misc/socket.cc:484 -> 6
src/init.cc:1501 NCCL WARN Duplicate GPU detected
src/include/alloc.h:228
graph/search.cc:1106
src/host/transport/transport.cpp:303: non-zero status: 7 init failed for transport: IBGDA
src/host/init/init.cu:972: non-zero status: 7: nvshmem setup connections failed
src/modules/transport/ibrc/ibrc.cpp:1480
/dvs/p4/build/sw/rel/gpgpu/toolkit/r12.4/main_nvshmem/src/modules/bootstrap/uid/bootstrap_uid.cpp:279
../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2044
/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970
/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534
[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms
torch/csrc/distributed/c10d/TCPStore.cpp:109
aten/src/ATen/native/cuda/Indexing.cu:1290
c10/cuda/CUDACachingAllocator.cpp
torch.distributed.elastic.multiprocessing.errors.ChildFailedError
torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275
megatron/core/parallel_state.py
deepspeed/runtime/engine.py
transformers/trainer.py
lightning/pytorch/strategies/ddp.py
site-packages/deepspeed/runtime/zero/stage3.py
site-packages/megatron/core/tensor_parallel/layers.py
site-packages/transformer_engine/pytorch/module/linear.py
site-packages/flash_attn/flash_attn_interface.py
site-packages/vllm/distributed/parallel_state.py
site-packages/accelerate/accelerator.py
site-packages/lightning/fabric/strategies/fsdp.py
libibverbs.so.1
libmlx5.so.1
libnvshmem_host.so.3
libnvidia-ml.so.1
libcudart.so.12
libc10_cuda.so
libtorch_cuda.so
libfabric.so.1
nvshmem_transport_ibrc.so.3
nvshmem_bootstrap_uid.so.3
mlx5_0
mlx5_bond_0
rocep26s0f0
ibp12s0
ens1f0np0
enp129s0f0np0
eth0
bond0
docker0
0000:1b:00.0
00000000:1B:00.0
0x15b3
NCCL version 2.21.5+cuda12.4
NCCL_IB_HCA=mlx5_0,mlx5_1
NCCL_SOCKET_IFNAME=^docker0,lo
NVIDIA H100 80GB HBM3
NVRM: Xid (PCI:0000:4e:00): 79, pid=1234, GPU has fallen off the bus.
WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000)
ncclCommInitRank comm 0x55d1c0a3e2b0 rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId 4e000
commId 0x9f1c3ad7bb2e41c0
ProcessGroupNCCL.cpp
c10d::ProcessGroupNCCL::watchdogHandler
std::runtime_error
cudaErrorIllegalAddress
ncclSystemError
ncclUnhandledCudaError
ncclRemoteError
ncclInternalError
Connection refused
Broken pipe
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
https://pytorch.org/docs/stable/elastic/errors.html
https://github.com/NVIDIA/nccl/issues/342
https://github.com/pytorch/pytorch/issues/12345
torchrun --nproc_per_node=8 --nnodes=2
python -m torch.distributed.run
Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
via NET/IB/0/GDRDMA
Setting affinity for GPU 0 to ffff,ffffffff
[rank3]:[E ProcessGroupNCCL.cpp:616]
2024-05-01 12:30:45.123456
I0501 12:30:45.123456 1234
elastic_launch
torch.distributed.launcher.api
FileStore
TCPStore
HashStore
PrefixStore
user buffer registration is enabled
user defined plugin is loaded
account for the overhead of launching
group 0 barrier timeout in 600 seconds
host memory is pinned
node rank 3 local rank 5
worker 3 died
pod is evicted
machine learning
key error: 'model'
password is required
secret handshake failed
token ring size 4
login shell not found
CUDA_VISIBLE_DEVICES=0,1,2,3
OMP_NUM_THREADS=1
MASTER_PORT=29500
WORLD_SIZE=16
TORCH_NCCL_ASYNC_ERROR_HANDLING=1
torch_nccl_heartbeat
nccl_tests/build/all_reduce_perf
all_reduce_perf -b 8 -e 8G -f 2 -g 1
cuda-12.4
python3.11
gcc-11.4.0
ubuntu-22.04
rdma-core 2410mlnx54
MLNX_OFED_LINUX-24.10-0.7.0.0
28.39.1002
535.161.08
550.54.15
1.2.3-rc4
fw_ver 28.39.1002
link_layer: InfiniBand
state: PORT_ACTIVE (4)
LOC_QP_OP_ERR
IBV_WC_RETRY_EXC_ERR
got completion with error 12, opcode 0, len 0, vendor err 129
127.0.0.1
0.0.0.0
255.255.255.0
255.255.0.0
::1
localhost
/dev/shm/nccl-
/dev/infiniband/uverbs0
/sys/class/infiniband/mlx5_0/ports/1
/proc/driver/nvidia/version
/etc/nccl.conf
/etc/hosts
/var/log/syslog
/usr/bin/python3
/usr/local/cuda/lib64
/opt/mellanox
all_gather_into_tensor
reduce_scatter_tensor
_engine_run_backward
optimizer.step()
loss.backward()
model.module.forward
torch.cuda.synchronize
dist.barrier()
RuntimeError: CUDA error: an illegal memory access was encountered
Exception raised from ncclCommWatchdog
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96
frame #3: <unknown function> + 0xd3b55
libstdc++.so.6
libpthread.so.0
SIGTERM
SIGKILL (exit code -9)
exitcode  : -9 (pid: 1234)
ECONNREFUSED
errno 111
Xid 79
Xid 94
SXid 12028
NVLink 18
NVSwitch
PCIe Gen5 x16
ACS
IOMMU
GPUDirect
nvidia_peermem
nv_peer_mem
ib_core
mlx5_core 0000:1b:00.0 ibp12s0
mlx5_core: health poll failed
bnxt_en
efa
rdmap16s27
AWS OFI
gIB
FasTrak
Spectrum-X
fabricmanager
nvidia-imex
dcgm-exporter
slurmstepd: error: *** STEP 123.0 ON
srun: error: task 3: Exited with exit code 1
kubelet
containerd
enroot
pyxis
kube-system
MPIJob
PyTorchJob
RayCluster
c10d rendezvous
etcd
NCCL INFO Bootstrap : Using eth0
NCCL INFO NET/Plugin: Could not find: libnccl-net.so
NCCL INFO comm 0x7f2c54009b10 rank 0 nranks 8
Trainable params: 7,241,732,096
tokens per second: 12345.6
iteration 1000/ 500000
loss scale: 1.0
grad norm: 0.512"""
MUST_GO, MUST_STAY = 0.95, 0.99
"""Shares of lines: what a form of tomorrow looks like is not known."""


def hidden(text: str, secret: str) -> bool:
    return secret.lower() not in Redactor("key").text(text).lower()


def test_secrets_addresses_and_names_go_in_every_spelling() -> None:
    rows = [line.split(" :: ") for line in f"{KNOWN}\n{NEW}".splitlines()]
    left = [(line, secret) for line, secret in rows if not hidden(line, secret)]
    assert len(rows) >= 60
    assert len(left) <= (1 - MUST_GO) * len(rows), left


def test_what_everyone_has_stays() -> None:
    every = PUBLIC.splitlines()
    spoilt = {line: said for line in every if (said := Redactor("key").text(line)) != line}
    assert len(every) >= 200
    assert len(spoilt) <= (1 - MUST_STAY) * len(every), spoilt
