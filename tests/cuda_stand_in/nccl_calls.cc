// NCCL's functions that are traced: these take the place of its own, which are weak for such a purpose.
#include <nccl.h>

extern "C" {

void fake_cuda_trace(const char* format, ...);

static void trace_call(const char* name, const void* send, const void* recv, size_t count, ncclDataType_t type,
                       ncclComm_t comm) {
  static const int SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  int rank = -1, ranks = -1;
  pncclCommUserRank(comm, &rank);
  pncclCommCount(comm, &ranks);
  fake_cuda_trace("call %s %lu %lu %lu %d %d", name, (unsigned long)send, (unsigned long)recv,
                  (unsigned long)count * (unsigned long)SIZES[type], rank, ranks);
}

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  trace_call("AllReduce", send, recv, count, type, comm);
  return pncclAllReduce(send, recv, count, type, op, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  trace_call("ReduceScatter", send, recv, count, type, comm);
  return pncclReduceScatter(send, recv, count, type, op, comm, stream);
}
ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  trace_call("Reduce", send, recv, count, type, comm);
  return pncclReduce(send, recv, count, type, op, root, comm, stream);
}
ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  trace_call("AllGather", send, recv, count, type, comm);
  return pncclAllGather(send, recv, count, type, comm, stream);
}
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  trace_call("Broadcast", send, recv, count, type, comm);
  return pncclBroadcast(send, recv, count, type, root, comm, stream);
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  trace_call("Send", send, nullptr, count, type, comm);
  return pncclSend(send, count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  trace_call("Recv", nullptr, recv, count, type, comm);
  return pncclRecv(recv, count, type, peer, comm, stream);
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  ncclResult_t result = pncclCommInitRankConfig(comm, ranks, id, rank, config);
  fake_cuda_trace("init");
  return result;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  fake_cuda_trace("destroy");
  return pncclCommDestroy(comm);
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  fake_cuda_trace("abort");
  return pncclCommAbort(comm);
}
}
