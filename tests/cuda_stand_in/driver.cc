// The driver's own functions, and how any of them is found: by name, in this library.
#include <dlfcn.h>

#include "fake_cuda.h"

using namespace fake;

static void* own_library() {
  Dl_info here;
  return dladdr((void*)cuInit, &here) ? dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
}

extern "C" {

// Called by functions that exist only to refuse (refusals.S), with their name.
void fake_cuda_refuses(const char* name) {
  fprintf(stderr, "fake CUDA: %s does not exist here\n", name);
  refuse(cudaErrorNotSupported);
}

CUresult cuGetProcAddress(const char* name, void** out, int, cuuint64_t, CUdriverProcAddressQueryResult* status) {
  static void* own = own_library();
  *out = nullptr;
  for (const char* version : {"_v4", "_v3", "_v2", ""}) {  // the newest that is not there only to refuse
    std::string whole = name + std::string(version);
    if (!*out && !dlsym(own, ("fake_cuda_refusing_" + whole).c_str())) *out = dlsym(own, whole.c_str());
  }
  if (status) *status = *out ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** out, unsigned int, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  cuGetProcAddress(name, out, 0, 0, nullptr);
  if (status) *status = *out ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char* name, void** out, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(name, out, 0, flags, status);
}

CUresult cuInit(unsigned int) { return visible().empty() ? CUDA_ERROR_NO_DEVICE : (CUresult)broken(); }
CUresult cuDriverGetVersion(int* version) { return (CUresult)cudaDriverGetVersion(version); }
CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = cudaGetErrorString((cudaError_t)error);
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = cudaGetErrorName((cudaError_t)error);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = (int)visible().size();
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* out, int index) {
  *out = index;
  return index >= 0 && index < (int)visible().size() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice index) {
  switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *value = (int)setting("FAKE_CUDA_CUMEM", 1); break;
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED: *value = (int)setting("FAKE_CUDA_MULTICAST", 0); break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: *value = 1; break;
    default: return (CUresult)cudaDeviceGetAttribute(value, (cudaDeviceAttr)attribute, index);
  }
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* out, CUdevice index) {
  gpu_uuid(visible()[index], (unsigned char*)out->bytes);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* text, int length, CUdevice index) {
  name_of(visible()[index], text, (size_t)length);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice index) {
  return (CUresult)cudaDeviceGetPCIBusId(text, length, index);
}
CUresult cuDeviceTotalMem(size_t* size, CUdevice index) {
  *size = memory_of(visible()[index]);
  return CUDA_SUCCESS;
}

static CUcontext context_of(int index) { return (CUcontext)(uintptr_t)(index + 1); }
CUresult cuCtxGetCurrent(CUcontext* out) {
  *out = context_of(device);
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  if (context) device = (int)(uintptr_t)context - 1;
  return CUDA_SUCCESS;
}
CUresult cuCtxCreate(CUcontext* out, CUctxCreateParams*, unsigned int, CUdevice index) {
  *out = context_of(index);
  return (CUresult)enter(index, __func__);
}
CUresult cuCtxDestroy(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* out) {
  *out = device;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice index, unsigned int* flags, int* active) {
  *flags = 0, *active = has_context(index);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice index) {
  *out = context_of(index);
  return (CUresult)enter(index, __func__);
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
}
