// What a GPU is, in the structure of the CUDA that includes this: its layout differs between CUDA 12 and 13.
#pragma once
#include <cuda_runtime_api.h>

#include "machine.h"

static inline void show_properties(struct cudaDeviceProp* shown, long gpu) {
  unsigned int domain, bus, slot;
  gpu_address(gpu, &domain, &bus, &slot);
  memset(shown, 0, sizeof *shown);
  name_of(gpu, shown->name, sizeof shown->name);
  gpu_uuid(gpu, (unsigned char*)shown->uuid.bytes);
  shown->pciDomainID = (int)domain, shown->pciBusID = (int)bus, shown->pciDeviceID = (int)slot;
  shown->totalGlobalMem = memory_of(gpu);
  shown->major = (int)setting("FAKE_CUDA_SM", 90) / 10, shown->minor = (int)setting("FAKE_CUDA_SM", 90) % 10;
  shown->multiProcessorCount = 132, shown->warpSize = 32, shown->maxThreadsPerMultiProcessor = 2048;
  shown->maxThreadsPerBlock = shown->maxThreadsDim[0] = shown->maxThreadsDim[1] = 1024, shown->maxThreadsDim[2] = 64;
  shown->maxGridSize[0] = 0x7fffffff, shown->maxGridSize[1] = shown->maxGridSize[2] = 65535;
  shown->sharedMemPerBlock = 49152, shown->sharedMemPerBlockOptin = 232448, shown->sharedMemPerMultiprocessor = 233472;
  shown->regsPerBlock = shown->regsPerMultiprocessor = 65536, shown->maxBlocksPerMultiProcessor = 32;
  shown->l2CacheSize = 50 << 20, shown->memoryBusWidth = 5120, shown->asyncEngineCount = 3;
  shown->canMapHostMemory = shown->unifiedAddressing = shown->memoryPoolsSupported = shown->concurrentKernels = 1;
  shown->cooperativeLaunch = shown->managedMemory = shown->computePreemptionSupported = 1;
}
