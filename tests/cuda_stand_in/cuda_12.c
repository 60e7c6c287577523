// libcudart.so.12, compiled with CUDA 12's headers: what differs from CUDA 13's. cuda_12.S, made at build, sends all other
// calls on to the function of that name in libcudart.so.13, which is the one CUDA of the process.
#include <dlfcn.h>

#include "properties.h"

extern const char* const forwarded_names[];
extern void* forwarded[];
extern void cuda_12_absent();  // calls cuda_12_refuses with the name
static void* cuda;

static void* found(const char* name) {
  void* there = dlsym(cuda, name);
  if (!there) fprintf(stderr, "fake CUDA: %s does not exist here\n", name), abort();
  return there;
}

cudaError_t cuda_12_refuses(const char* name) {
  fprintf(stderr, "fake CUDA: %s does not exist here\n", name);
  return cudaErrorNotSupported;
}

// A name of CUDA 12 with _v2 or _v3 is what CUDA 13 calls by its plain name.
__attribute__((constructor)) static void find(void) {
  cuda = dlopen("libcudart.so.13", RTLD_NOW);
  for (int i = 0; cuda && forwarded_names[i]; i++) {
    char name[128];
    snprintf(name, sizeof name, "%s", forwarded_names[i]);
    char* version = strstr(name, "_v");
    forwarded[i] = dlsym(cuda, name);
    if (!forwarded[i] && version) *version = 0, forwarded[i] = dlsym(cuda, name);
    if (!forwarded[i]) forwarded[i] = cuda_12_absent;
  }
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

#undef cudaGetDeviceProperties
cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp* shown, int index) {
  long gpu = ((long (*)(int))found("fake_cuda_gpu"))(index);
  if (gpu < 0) return cudaErrorInvalidDevice;
  show_properties(shown, gpu);
  return cudaSuccess;
}

// CUDA 13's structure is longer.
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* out, const void* at) {
  struct {
    struct cudaPointerAttributes first;
    long more[16];
  } longer;
  cudaError_t error = ((cudaError_t(*)(void*, const void*))found("cudaPointerGetAttributes"))(&longer, at);
  *out = longer.first;
  return error;
}

cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus* status,
                                        unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** nodes,
                                        size_t* count) {
  typedef cudaError_t (*Newer)(cudaStream_t, enum cudaStreamCaptureStatus*, unsigned long long*, cudaGraph_t*,
                               const cudaGraphNode_t**, const void**, size_t*);
  return ((Newer)found("cudaStreamGetCaptureInfo"))(stream, status, id, graph, nodes, NULL, count);
}
#undef cudaStreamGetCaptureInfo
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus* status, unsigned long long* id) {
  return cudaStreamGetCaptureInfo_v2(stream, status, id, NULL, NULL, NULL);
}
