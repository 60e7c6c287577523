"""Secrets, addresses and names in all spellings: what must go from a line of text, and what everyone has and stays."""

from pathlib import Path

from ncclprobe.redact.redactor import Redactor

DATA = Path(__file__).parent / "data" / "redact"
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
LATER = r"""bond0: (slave eth2): link status 3C-EC-EF-7A-01-9D down :: 3c-ec-ef-7a-01-9d
Vlan 12 mac 3cec.ef7a.019d learned on Eth1/7 :: 3cec.ef7a.019d
RTNETLINK: enx3cecef7a019d carrier lost :: 3cecef7a019d
neigh 0:25:90:a:1:9d failed :: 0:25:90:a:1:9d
link/infiniband 00:00:10:49:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:9b:77:1e brd :: 0c:42:a1:03:00:9b:77:1e
HWaddr 3C:EC:EF:7A:01:9D :: 3c:ec:ef:7a:01:9d
mac=3cecef7a019d vlan 4 :: 3cecef7a019d
port guid 0x0c42a103009b771f not found in fabric :: 0c42a103009b771f
sys_image_guid=b8cef603009a1122 :: b8cef603009a1122
node_guid: b8ce:f603:009a:1122 :: b8ce:f603:009a:1122
GID fe80:0000:0000:0000:b8ce:f603:009a:1122 idx 0 :: b8ce:f603:009a:1122
GID[3] ::ffff:10.77.3.19 RoCE v2 :: 10.77.3.19
CA 'mlx5_2' Node GUID: 0xb8cef603009a1124 :: b8cef603009a1124
connect to 0x0a4d0313 port 4791 failed :: 0a4d0313
  12: 13034D0A:1F90 00000000:0000 0A :: 13034d0a
host ip_10_77_3_19 is unreachable :: 10_77_3_19
pod 10-77-3-19.train.pod.cluster.local NotReady :: 10-77-3-19
lost ip-10-77-3-19.eu-west-1.compute.internal :: 10-77-3-19
IP 10.77.3.19.29500 > 10.77.3.20.41822: Flags [S] :: 10.77.3.19
19.3.77.10.in-addr.arpa lookup failed :: 19.3.77.10
sockaddr s_addr=172819219 refused :: 172819219
route 10.77.3.0/24 via 10.77.3.1 dev ib0 :: 10.77.3.1
NET/Socket : Using [0]eth0:10.77.3.19<0> :: 10.77.3.19
connect to /10.77.3.19:29500 timed out :: 10.77.3.19
[10.77.3.19]:29500 (errno: 111) :: 10.77.3.19
9.1.0.0.3.0.0.0.d.4.0.0.0.a.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa NXDOMAIN :: 9.1.0.0.3.0.0.0.d.4
connect to 2001:0db8:0000:0000:a000:4d00:0003:0019 failed :: a000:4d00:0003:0019
bind fe80::3eec:efff:fe7a:19d%enp1s0f0 :: 3eec:efff:fe7a:19d
The client socket has failed to connect to [2001:db8:7:3::19]:29500 :: 2001:db8:7:3::19
\\2001-db8-7-3--19.ipv6-literal.net\share :: 2001-db8-7-3--19
 0: B80D0120000700000300000019000000:73F4 0000000000000000 :: b80d0120000700000300000019000000
cannot resolve trainer3.quorvix.net :: trainer3
TCPStore: connect to dl-head.quorvix.io:29500 timed out :: quorvix
srun: error: r12u07n02: task 3: Killed :: r12u07n02
qvx-gpu-031:4711:4790 [2] NCCL INFO Bootstrap : Using eth0 :: qvx-gpu-031
ssh: connect to host qvx17-mgmt port 22: No route to host :: qvx17
SLURM_JOB_NODELIST=qvx[001-016,020] :: qvx[001
worker-0.llm-svc.quorvix-ns.svc.cluster.local: Name or service not known :: quorvix-ns
mpirun was unable to reach node qvx031a :: qvx031a
cannot open ~hvandam/run/train.py :: hvandam
File C:\Users\hvandam\proj\train.py not found :: hvandam
File "/home/hvandam/proj/train.py", line 4 :: hvandam
can't open file '/Users/hvandam/x.py' :: hvandam
OSError: /mnt/lustre/users/hvandam/ckpt/step_100.pt :: hvandam
notify h.vandam@quorvix.ai of the failure :: vandam
user=h.vandam%40quorvix.ai&x=1 :: vandam
Permission denied for user hvandam :: hvandam
hvandam@qvx031:~$ python train.py :: hvandam
uid=20313(hvandam) gid=4000(qvxteam) :: hvandam
sbatch: error: account=qvxacct is not permitted :: qvxacct
odbc: Server=db;Pwd=Tr1cky.Pony; :: tr1cky.pony
wandb login --key=9c1f7732aa4e0d1b2c3d4e5f60718293a4b5c6d7 :: 9c1f7732aa4e0d1b
HF_TOKEN=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 :: hf_qwerty
Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJodmQifQ.c2lnbmF0dXJl :: eyjhbgcio
AKIAQ3EGRQVXZ7T5L2MB could not be found :: akiaq3egrqvxz7t5l2mb
aws_secret_access_key = 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 :: wjalrxut
https://hvandam:s3cr3tpw@registry.quorvix.io/v2/ :: s3cr3tpw
remote: ghp_R4nd0mR4nd0mR4nd0mR4nd0mR4nd0mR4nd0 revoked :: ghp_r4nd0m
login failed, password "Blue-Horse-7" rejected :: blue-horse-7
openai: Incorrect API key provided: sk-proj-AbC123dEf456GhI789jKl012 :: sk-proj-abc123
AccessDenied: arn:aws:sts::481516234299:assumed-role/QvxNode/i-0abc1234def567890 :: 481516234299
pull 481516234299.dkr.ecr.us-east-1.amazonaws.com/qvx/train:7 :: 481516234299
s3://qvx-checkpoints-prod/run1/ckpt.pt: 403 :: qvx-checkpoints-prod
https://qvx-data.s3.eu-central-1.amazonaws.com/a.tar :: qvx-data
fatal: could not read git@gitlab.quorvix.io:ml/bigmodel.git :: quorvix
Cloning https://github.com/quorvix-ai/bigmodel-internal.git failed :: quorvix
View run at https://wandb.ai/quorvix/bigmodel/runs/3kx91qpa :: quorvix
gs://quorvix-train-bucket/tokens.bin missing :: quorvix-train-bucket
GPU serial number: 1324021045821 :: 1324021045821
GPU-3fa85f64-5717-4562-b3fc-2c963f66afa6 has fallen off the bus :: 3fa85f64
MIG-3fa85f64-5717-4562-b3fc-2c963f66afa6/1/0 :: 3fa85f64
machine-id 3fa85f6457174562b3fc2c963f66afa6 :: 3fa85f6457174562
POST https://hooks.slack.com/services/T0QVX1234/B0QVX5678/AbCdEfGhIjKlMnOpQrStUvWx 404 :: abcdefghijklmnop
https://qvxstore.blob.core.windows.net/c/x?sv=2022&sig=Zm9vYmFyYmF6cXV4Zm9vYmFy%3D :: qvxstore
AccountName=qvxstore;AccountKey=Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cQ==; :: qvxstore
abfss://data@qvxlake.dfs.core.windows.net/tokens :: qvxlake
trainer@quorvix-ml-4711.iam.gserviceaccount.com lacks storage.objects.get :: quorvix
projects/quorvix-ml-4711/zones/us-central1-a/instances/qvx-a3-07 :: quorvix
Failed to pull eu.gcr.io/quorvix-ml-4711/train:v3 :: quorvix
ErrImagePull: ghcr.io/quorvix-ai/train:sha-1 :: quorvix
slurmstepd: error: *** STEP 991.0 ON qvx031 CANCELLED AT 2026-01-01T10:00:00 DUE TO TIME LIMIT *** :: qvx031
-rw-r--r-- 1 hvandam qvxteam 4096 Jan  1 10:00 core.4711 :: hvandam
hvandam is not in the sudoers file.  This incident will be reported. :: hvandam
Jan  1 10:00:00 qvx031 kernel: NVRM: Xid (PCI:0000:1b:00): 79 :: qvx031
2026-01-01T10:00:00.123456+00:00 qvx031 kernel: NVRM: GPU lost :: qvx031
pod/qvxpretrain-worker-3 in namespace quorvix-ml was OOMKilled :: qvxpretrain
Warning FailedScheduling node(s) "gke-quorvix-a3-pool-7f3c9d11-x2kp" had taint :: quorvix
docker: Error response from daemon: pull access denied for quorvix/train :: quorvix/
machine api.wandb.ai login user password 9c1f7732aa4e0d1b2c3d4e5f60718293a4b5c6d7 :: 9c1f7732aa4e
Set-Cookie: session=d41d8cd98f00b204e9800998ecf8427e; Path=/ :: d41d8cd98f00b204
curl -u hvandam:Tr1ckyPony https://x :: hvandam
mysql -h db1 -phorse77x -u hvandam :: horse77x
{"username": "hvandam", "password": "Tr1cky.Pony"} :: hvandam
clientSecret: 7Qk~8zYxWvUtSrQpOnMlKjIhGfEdCbA :: 7qk~8zyx
postgresql://hvandam:Tr1cky@mlflow-db.quorvix.io:5432/mlflow :: hvandam
redis://:Tr1ckyPony@cache.quorvix.io:6379/0 :: tr1ckypony
https://s3.us-west-2.amazonaws.com/qvx-checkpoints/run/1 :: qvx-checkpoints
mount.nfs: filer2.quorvix.net:/export/qvxdata failed: Connection timed out :: quorvix
LustreError: 11-0: qvxfs-OST0003-osc-ffff8: operation ost_connect to node 10.77.3.19@o2ib failed :: 10.77.3.19
Board Serial: MT2251X03312 :: mt2251x03312
System Information: Dell XE9680 Service Tag 7QK9ZZ3 :: 7qk9zz3
/lustre/fsw/portfolios/coreai/users/hvandam/code/train.py :: hvandam
COMET INFO: https://www.comet.com/quorvix/bigmodel/3kx91qpa0f :: quorvix
? (10.77.3.21) at 3c:ec:ef:7a:02:11 [ether] on bond0 :: 10.77.3.21
ibdev: lladdr 3c-ec-ef-7a-02-11 changed :: 3c-ec-ef-7a-02-11
match: {macaddress: 3CECEF7A0211} :: 3cecef7a0211
Port GUID: 0x946dae0300ab12f0 :: 946dae0300ab12f0
Switch 0x946dae0300ab12f0 MF0;qvx-leaf-03:MQM9700/U1 :: 946dae0300ab12f0
/sys/class/infiniband/mlx5_0/node_guid = 946d:ae03:00ab:12f0 :: 946d:ae03:00ab:12f0
mlx5_0 1 3 0000:0000:0000:0000:0000:ffff:0a4d:0315 10.77.3.21 v2 :: 0a4d:0315
{"pod_ip":"10.77.3.21","host":"qvx044"} :: 10.77.3.21
/tmp/hb_172_29_33_44.log :: 172_29_33_44
ip-172-29-33-44.us-west-2.compute.internal:8471 unreachable :: 172-29-33-44
IP6 2001:db8:7:3::21.29500 > 2001:db8:7:3::22.40112: Flags [R.] :: 2001:db8:7:3::21
tcp 0 0 10.77.3.21:29500 10.77.3.22:51234 ESTABLISHED 4711/python :: 10.77.3.21
dig: _etcd._tcp.etcd.quorvix.internal: SERVFAIL :: quorvix
ipmitool: host qvx044-bmc: connection timed out :: qvx044
[rank3]:[W101 10:00:00.1 socket.cpp:464] connect to qvx044.hpc.quorvix.edu, 29500 failed :: qvx044
(RayWorker pid=4711, ip=10.77.3.21) CUDA error :: 10.77.3.21
slurmctld: update_node: node qvx044 reason set to: NHC failed :: qvx044
Unavailable nodes: nodelist=qvx044,qvx051 :: qvx044
Nov 29 10:00:00 qvx044 nvidia-persistenced[991]: failed :: qvx044
#SBATCH --mail-user=j.vanroe@quorvix.io :: vanroe
environment location: /home/jvanroe/miniconda3/envs/llm :: jvanroe
FileNotFoundError: '/scratch/users/jvanroe/data/idx.bin' :: jvanroe
/tmp/pytest-of-jvanroe/pytest-3 :: jvanroe
su: Authentication failure for user jvanroe :: jvanroe
chown: invalid user: 'jvanroe:qvxteam' :: jvanroe
error: Association not found: user=jvanroe account=qvx_llm :: jvanroe
WANDB_API_KEY=0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c :: 0f1e2d3c4b5a
X-Api-Key: 7hGf3kLmN9pQrStUvWxYz1 :: 7hgf3klmn9
mlflow --token Zx81_kkPqT-11aa server :: zx81_kkpqt
  password: 'N0t-Th1s-0ne' :: n0t-th1s-0ne
https://0123456789abcdef0123456789abcdef@o4711.ingest.sentry.io/42 :: 0123456789abcdef0123456789abcdef
xoxb-2345678901-2345678901234-AbCdEfGhIjKlMnOpQrStUvWx :: abcdefghij
/subscriptions/3fa85f64-5717-4562-b3fc-2c963f66afa6/resourceGroups/qvx-rg/providers/Microsoft.Compute :: 3fa85f64
arn:aws:eks:us-east-1:481516234299:cluster/qvx-train :: 481516234299
oss://qvx-datasets/shard-0001.tar not found :: qvx-datasets
https://qvxlake2.blob.core.windows.net/ckpt/step1.pt 403 :: qvxlake2
ssh://git@git.quorvix.io:2222/ml/bigmodel.git :: quorvix
https://huggingface.co/quorvix/bigmodel-7b/resolve/main/config.json 401 :: quorvix
[qvx-a100-12:03311] *** Process received signal *** :: qvx-a100-12
ORTE was unable to start daemon on host qvx-a100-12. :: qvx-a100-12
node/gke-qvx-pool-1-7f3c-x2kp condition DiskPressure :: gke-qvx-pool
LLDP neighbor qvx-tor-14 port swp3 :: qvx-tor-14
Connection closed by authenticating user kpatel 10.8.9.10 port 22 [preauth] :: kpatel
drwxr-x--- 5 kpatel nlp-core 4096 Nov 29 10:00 runs :: kpatel
export HF_HOME=/mnt/weka/kpatel/hf :: kpatel
PermissionError: [Errno 13] Permission denied: '/data/kpatel/ckpts' :: kpatel
wandb: Currently logged in as: kpatel (nlp-core) :: kpatel
cloning https://oauth2:glpat-abcDEF123456ghiJKL78@gitlab.quorvix.io/nlp/core.git :: glpat-abc
docker login -u kpatel -p S3cr3tPw registry.quorvix.io :: kpatel
aws_session_token=IQoJb3JpZ2luX2VjEXAMPLE//////////wEaCXVzLWVhc3QtMSJHMEUCIQ :: iqojb3jp
AZURE_CLIENT_SECRET=Xyz8Q~abcdefghijklmnopqrstuvwxyz012345 :: xyz8q~abc
ANTHROPIC_API_KEY=sk-ant-api03-AAAAbbbbCCCCdddd1111 :: aaaabbbb
neptune: project quorvix/llm-pretrain not found :: quorvix
tensorboard --logdir gs://qvx-tb/kpatel/run :: qvx-tb
mount.lustre: mount 10.8.9.10@tcp:/qvxwork at /work failed :: 10.8.9.10
inet 10.8.9.10 netmask 255.255.255.0 broadcast 10.8.9.255 :: 10.8.9.10
link/ether 94:6d:ae:ab:12:f0 brd ff:ff:ff:ff:ff:ff :: 94:6d:ae:ab:12:f0
Ca 1 "H-946dae0300ab12f0" # "qvx-a100-12 mlx5_0" :: 946dae0300ab12f0
[SN] Serial number: MT2312X07651 :: mt2312x07651
    Serial Number                         : 1652922012345 :: 1652922012345
    GPU UUID                              : GPU-0fe1d2c3-b4a5-9687-7869-5a4b3c2d1e0f :: 0fe1d2c3
container id 4f5e6d7c8b9a4f5e6d7c8b9a4f5e6d7c8b9a4f5e6d7c8b9a4f5e6d7c8b9a4f5e exited :: 4f5e6d7c8b9a4f5e
InstanceId: i-0f1e2d3c4b5a69788 :: 0f1e2d3c4b5a69788
vpc-0a1b2c3d4e5f60718 subnet-0a1b2c3d4e5f60719 :: 0a1b2c3d4e5f60718
projects/_/buckets/qvx-tokens/objects/x :: qvx-tokens
BatchHost=qvxg12 StdOut=/home/kpatel/slurm-1.out :: qvxg12
  8812  gpu pretrain   kpatel  R  1:00  4 qvxg[12-15] :: qvxg[12
JobId=12 UserId=kpatel(3003) MCS_label=N/A :: kpatel
torchrun --rdzv_endpoint=qvxg12:29400 train.py :: qvxg12
MASTER_ADDR=qvxg12 MASTER_PORT=29500 :: qvxg12
Connected to etcd at etcd-0.qvx-train.svc:2379 :: qvx-train
nfs: server qvxfiler not responding, still trying :: qvxfiler
RDMA_CM_EVENT_ADDR_ERROR dst fdab:12:34::9 :: fdab:12:34::9
token xapp-1-A012-345-abcdef0123456789abcdef rejected :: abcdef0123456789
Ticket for kpatel@QUORVIX.IO expired :: kpatel
LSB_HOSTS="qvxg12 qvxg13" :: qvxg12
http://qvxg12:8888/?token=5f2d0c1b3a4e5f6071829304a5b6c7d8e9f00112 :: qvxg12
MAILTO=kpatel@quorvix.io :: kpatel
Unicast reply from 10.31.7.8 [0C:42:A1:77:10:02] :: 10.31.7.8
mac-address 0c42.a177.1002 flapping :: 0c42.a177.1002
"mac": "0c42a1771002" :: 0c42a1771002
{"node_guid": "0x0c42a10300771002"} :: 0c42a10300771002
DR path slid 0; dlid 0; 0,1,17 GUID 0c42a10300771002 :: 0c42a10300771002
NCCL_COMM_ID=0a1f0708 parsed; peer 0x0A1F0708 :: x0a1f0708
peers: 10.31.7.8,10.31.7.9;10.31.8.1 :: 10.31.7.8
wandb run on host ip-10-31-7-8 :: 10-31-7-8
fe80::e42:a1ff:fe77:1002%ib0 :: e42:a1ff:fe77:1002
10.31.7.8 mnemo14.cl.mnemosyne.lab mnemo14 :: mnemo14
mnemo14:812:812 [0] NCCL INFO NET/Socket: Using [0]eth0:10.31.7.8<0> :: mnemo14
[INFO] [runner.py:568:main] cmd = pdsh -w mnemo14,mnemo15 deepspeed :: mnemo14
mnemo14 slots=8 :: mnemo14
mpirun -H mnemo14:8,mnemo15:8 -np 16 ./a.out :: mnemo14
ray.exceptions.NodeDiedError: node mnemo14 died :: mnemo14
JobId=77 Nodes=mnemo[14-15] CPU_IDs=0-127 :: mnemo[14
PBS: exec_host mnemo14/0*64+mnemo15/0*64 :: mnemo14
Job <771> was submitted from host <mnemo-login1> by user <fschmidt> in cluster <mnemosyne>. :: mnemo-login1
Successfully assigned ml-mnemo/pretrain-7b-worker-2 to gke-mnemo-np-1 :: gke-mnemo-np-1
Back-off pulling image "registry.mnemosyne.ai/ml/train:9" :: mnemosyne
sacct: error: User fschmidt not found :: fschmidt
-rw------- 1 fschmidt mnemo-ml 12 Nov 29 10:00 key :: fschmidt
Process 812 owned by fschmidt (uid 4021) :: fschmidt
HOME=/gpfs/home/fschmidt :: fschmidt
/p/project/mnemo_llm/fschmidt/train.py :: fschmidt
Signed-off-by: Frida Schmidt <f.schmidt@mnemosyne.lab> :: f.schmidt
glpat-9xYzAbCdEfGh1234IjKl :: 9xyzabcdef
"private_key_id": "3f9a1c2b7d8e4f506172839405a6b7c8d9e0f1a2" :: 3f9a1c2b7d8e
token=eyJ0eXAiOiJKV1QiLCJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJtIn0.QkFTRTY0c2ln :: eyj0exaioi
Authorization: Basic ZnNjaG1pZHQ6aHVudGVyMg== :: znnjag1pzhq6
export MLFLOW_TRACKING_PASSWORD='hunter2-Yes' :: hunter2-yes
hf_hub_download(token='hf_AbCdEfGhIjKlMnOpQrStUvWxYz12345678') :: abcdefghij
aws s3 cp s3://mnemo-ckpt/7b/step.pt . --endpoint https://minio.mnemosyne.lab:9000 :: mnemo-ckpt
arn:aws:s3:::mnemo-ckpt/7b/* :: mnemo-ckpt
481516234300.dkr.ecr.eu-west-1.amazonaws.com/mnemo/train@sha256:abc :: 481516234300
Repository Not Found for url: https://huggingface.co/api/models/mnemosyne/llm7b. :: mnemosyne
Dell Inc. PowerEdge XE9680, Service Tag: 9HX2KL4 :: 9hx2kl4
Chassis Serial Number : 1692823000123 :: 1692823000123
default via 10.64.2.1 dev bond0 proto static src 10.64.2.77 :: 10.64.2.1
LISTEN 0 128 [fd12:3456:9::77]:29500 *:* :: fd12:3456:9::77
GID fe80::946d:ae03:ab:12f0 LID start 17 :: 946d:ae03:ab:12f0
Permanent address: 94:6d:ae:ab:12:f1 :: 94:6d:ae:ab:12:f1
interface enx946daeab12f1: dropped :: 946daeab12f1
77.2.64.10.in-addr.arpa name = thule77.thulecorp.com. :: 77.2.64.10
Host key for thule77 has changed and you have requested strict checking :: thule77
scp thule-io3:/data/x.tar . : No route to host :: thule-io3
PING thule77.thulecorp.com (10.64.2.77) 56(84) bytes of data. :: thule77
thule77: Permission denied (publickey). :: thule77
RendezvousConnectionError: connection to the C10d store at thule77:29400 has failed :: thule77
  host      : thule77.thulecorp.com :: thule77
[E thule77 rank5] Watchdog caught collective :: thule77
flux-broker: thule77 (rank 3) disconnected :: thule77
NHC on thule[77-79,81]: check failed :: thule[77
thule77 = { ncpus = 128 ; ngpus = 8 } :: thule77
scontrol update nodename=thule77 state=drain reason='Xid 79' :: thule77
#SBATCH -w thule[001-004] :: thule[001
Error from server (NotFound): pods "llm-0" not found in namespace: thule-research :: thule-research
configmap thule-research/train-cfg missing :: thule-research
agarcia@thule-login2 ~]$ srun -n 8 :: agarcia
USER=agarcia LOGNAME=agarcia :: agarcia
File "/fsx/agarcia/repos/thulelm/train.py", line 9 :: agarcia
Disk quotas for usr agarcia (uid 5011): :: agarcia
/apps/thulecorp/modules/cuda/12.4 :: thulecorp
fatal: repository 'https://git.thulecorp.com/ml/thulelm.git/' not found :: thulecorp
Looking in indexes: https://agarcia:tok_9xk2@pypi.thulecorp.com/simple :: tok_9xk2
Invalid token hf_ZyXwVuTsRqPoNmLkJiHgFeDcBa98765432 :: zyxwvutsrq
VAULT_TOKEN=hvs.CAESIJabcdEFGH1234ijklMNOP5678 :: caesijabcd
OPENAI_API_KEY: sk-svcacct-1a2B3c4D5e6F7g8H9i0J :: 1a2b3c4d5e
Enter passphrase for key '/home/agarcia/.ssh/id_ed25519' :: agarcia
machine git.thulecorp.com login agarcia password 7up-Zebra :: thulecorp
smtp_pass=Zebra-7up-9 :: zebra-7up-9
Cookie: _xsrf=2|ab12|cd34; session_id=9f8e7d6c5b4a :: 9f8e7d6c5b4a
https://storage.googleapis.com/thule-tokens/shard1.bin :: thule-tokens
abfss://train@thulelake.dfs.core.windows.net/x :: thulelake
User: arn:aws:iam::730335412345:user/agarcia is not authorized :: 730335412345
wandb: Syncing run lucky-sun-7 at https://wandb.ai/thulecorp/thulelm/runs/q7w8e9r0 :: thulecorp
Serial Number: 1655123000777 board part 692-2G520 :: 1655123000777"""

PUBLIC += "\nus-east-1\neurope-west4-b\nmodule.encoder.net\nnvidia-nvswitch0\ngpt-neox-20b\nNCCL user guide, page 3"
MUST_GO, MUST_STAY = 0.95, 0.99
"""Shares of lines: what a form of tomorrow looks like is not known."""


def hidden(text: str, secret: str) -> bool:
    return secret.lower() not in Redactor("key").text(text).lower()


def test_secrets_addresses_and_names_go_in_every_spelling() -> None:
    own = (DATA / "forms.txt").read_text()
    rows = [line.split(" :: ") for line in f"{KNOWN}\n{NEW}\n{LATER}\n{own}".splitlines()]
    rows = [[line.replace("\\n", "\n"), secret] for line, secret in rows]
    left = [(line, secret) for line, secret in rows if not hidden(line, secret)]
    assert len(rows) >= 590
    assert len(left) <= (1 - MUST_GO) * len(rows), left


def test_what_everyone_has_stays() -> None:
    every = [*PUBLIC.splitlines(), *(DATA / "public.txt").read_text().splitlines()]
    spoilt = {line: said for line in every if (said := Redactor("key").text(line)) != line}
    assert len(every) >= 580
    assert len(spoilt) <= (1 - MUST_STAY) * len(every), spoilt
