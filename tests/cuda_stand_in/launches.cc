// Launches: an operation of the stand-in of NCCL is a host function, of torch's kernels only filling is known here; any
// other is refused by name. FAKE_CUDA_FAULT=WHAT@N: at the N-th of these operations in this process (only that of
// FAKE_CUDA_FAULT_RANK, if it is set) WHAT happens: an error of CUDA by its number, for good; kill; stop; hang, a kernel
// without an end; lateSECONDS.
#include <cxxabi.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <map>

#include "fake_cuda.h"

namespace fake {

static std::mutex& lock = *new std::mutex;
static std::map<const void*, const char*>& names = *new std::map<const void*, const char*>;

// As the driver tells NVML: Xids and double ECC errors, and to which error of CUDA each belongs.
static void tell_nvml(int code) {
  static const struct {
    int code, xid, type;
  } KNOWN[] = {{cudaErrorIllegalAddress, 31, 8}, {cudaErrorECCUncorrectable, 48, 8}, {cudaErrorECCUncorrectable, 1, 2},
               {cudaErrorUnknown, 79, 8}};
  FILE* file = fopen(word("FAKE_NVML_EVENTS", ""), "a");
  if (!file) return;
  for (auto& each : KNOWN)
    if (each.code == code) fprintf(file, "%ld %d %d\n", visible()[device], each.type, each.xid);
  fclose(file);
}

// Whether this launch is the one at which something is to happen; then it has happened, and the kernel does not run.
static bool fault_is_due() {
  static std::atomic<long> launched{0};
  static const char *fault = word("FAKE_CUDA_FAULT", ""), *rank = word("RANK", ""), *struck = getenv("FAKE_CUDA_FAULT_RANK");
  const char* at = strchr(fault, '@');
  if (!at || (struck && strcmp(struck, rank)) || ++launched != atol(at + 1)) return false;
  std::string what(fault, at);
  if (what == "kill") raise(SIGKILL);
  if (what == "stop") raise(SIGSTOP);
  while (what == "hang") pause();
  if (what.compare(0, 4, "late") == 0) return usleep((unsigned int)(atof(what.c_str() + 4) * 1e6)), false;
  if (int code = atoi(what.c_str())) tell_nvml(code), break_context((cudaError_t)code);
  return broken() != cudaSuccess;
}

// torch's vectorized_elementwise_kernel<N, FillFunctor<T>, array<char*, 1>>(int count, FillFunctor<T>, array<char*, 1>)
static size_t filled_size(const char* name) {
  static const struct {
    const char* type;
    size_t size;
  } TYPES[] = {{"f", 4}, {"d", 8}, {"i", 4}, {"l", 8}, {"h", 1}, {"a", 1}, {"s", 2}, {"b", 1},
               {"N3c104HalfE", 2}, {"N3c108BFloat16E", 2}};
  const char* functor = strstr(name, "elementwise_kernel") ? strstr(name, "11FillFunctorI") : nullptr;
  for (auto& each : TYPES) {
    size_t length = strlen(each.type);
    if (functor && !strncmp(functor + 14, each.type, length) && functor[14 + length] == 'E') return each.size;
  }
  return 0;
}

struct Configuration {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
static thread_local std::vector<Configuration> configurations;

}  // namespace fake

using namespace fake;

extern "C" {

// For nccl.cc: `play(operation)` in its turn on the stream; `drop(operation)` once no stream or graph holds it any more.
cudaError_t fake_cuda_kernel(cudaStream_t stream, void (*play)(void*), void* operation, void (*drop)(void*)) {
  std::shared_ptr<void> held(operation, drop);
  if (broken()) return refuse(broken());
  fake_cuda_trace("kernel");
  compute(stream, [=] {
    if (!fault_is_due()) play(held.get());
  });
  return cudaSuccess;
}
int fake_cuda_broken() { return broken(); }

void** __cudaRegisterFatBinary(void*) { return (void**)malloc(sizeof(void*)); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  std::lock_guard<std::mutex> held(lock);
  names[host] = name;
}

cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  LIVING;
  std::string name = "one that was not registered";
  {
    std::lock_guard<std::mutex> held(lock);
    if (auto found = names.find(kernel); found != names.end()) name = found->second;
  }
  if (size_t size = filled_size(name.c_str())) {
    auto count = *(int*)arguments[0];
    std::string value((char*)arguments[1], size);
    char* to = **(char***)&arguments[2];
    issue(stream, [=] { for (int i = 0; i < count; i++) memcpy(to + i * size, value.data(), size); }, true);
    return cudaSuccess;
  }
  char* plain = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, nullptr);
  fprintf(stderr, "fake CUDA: this kernel does not exist here: %.300s\n", plain ? plain : name.c_str());
  free(plain);
  return refuse(cudaErrorNotSupported);
}
cudaError_t __cudaGetKernel(cudaKernel_t* out, const void* function) {
  *out = (cudaKernel_t)function;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel((const void*)kernel, grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* how, const void* kernel, void** arguments) {
  return cudaLaunchKernel(kernel, how->gridDim, how->blockDim, arguments, how->dynamicSmemBytes, how->stream);
}
unsigned int __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  Configuration last = configurations.back();
  configurations.pop_back();
  *grid = last.grid, *block = last.block, *shared = last.shared, *(void**)stream = last.stream;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
}
