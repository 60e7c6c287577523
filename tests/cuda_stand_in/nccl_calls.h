// What nccl.cc needs of NCCL's public interface: NVIDIA's header if a wheel of NCCL has brought it, else these, our own.
#pragma once
#include <cuda_runtime_api.h>

#if __has_include(<nccl.h>)
#include <nccl.h>
#else
#define NCCL_VERSION_CODE 23203
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_CONFIG_UNDEF_INT (-0x7fffffff - 1)

typedef struct ncclComm* ncclComm_t;
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;
typedef struct {  // its first fields
  size_t size;
  unsigned int magic, version;
  int blocking;
} ncclConfig_t;
typedef enum {
  ncclSuccess,
  ncclUnhandledCudaError,
  ncclSystemError,
  ncclInternalError,
  ncclInvalidArgument,
  ncclInvalidUsage,
  ncclRemoteError,
  ncclInProgress
} ncclResult_t;
typedef enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg } ncclRedOp_t;
typedef enum {
  ncclInt8,
  ncclUint8,
  ncclInt32,
  ncclUint32,
  ncclInt64,
  ncclUint64,
  ncclFloat16,
  ncclFloat32,
  ncclFloat64,
  ncclBfloat16
} ncclDataType_t;
#endif
