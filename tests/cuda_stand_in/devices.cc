// Devices, their properties, errors.
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>

#include "errors.inc"
#include "fake_cuda.h"
#include "properties.h"

namespace fake {

thread_local int device = 0;
static thread_local cudaError_t last = cudaSuccess;
static std::atomic<int> sticky{cudaSuccess};

cudaError_t refuse(cudaError_t error) { return last = error; }
void break_context(cudaError_t error) { sticky = error; }
cudaError_t broken() { return (cudaError_t)sticky.load(); }

static cudaError_t take(long gpu) {  // for this process alone: the kernel gives a socket's name to one only
  if (gpu == setting("FAKE_NVML_BUSY", -1)) return cudaErrorDevicesUnavailable;
  sockaddr_un name{AF_UNIX, {}};
  unsigned long machine = std::hash<std::string>{}(word("FAKE_NVML_FOLDER", ""));
  int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "fake-cuda-%lx-%ld", machine, gpu);
  int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (!bind(file, (sockaddr*)&name, (socklen_t)(offsetof(sockaddr_un, sun_path) + 1 + (size_t)length))) return cudaSuccess;
  close(file);
  return cudaErrorDevicesUnavailable;
}

static std::atomic<bool> entered[MOST_DEVICES];
bool has_context(int index) { return entered[index]; }

cudaError_t enter(int index, const char* call) {
  static const long mode = setting("FAKE_NVML_MODE", 0);
  static std::mutex& lock = *new std::mutex;
  if (index >= (int)visible().size() || entered[index]) return cudaSuccess;
  std::lock_guard<std::mutex> held(lock);
  if (entered[index]) return cudaSuccess;
  cudaError_t refused = mode == PROHIBITED ? cudaErrorDevicesUnavailable : mode ? take(gpu_of(visible()[index])) : cudaSuccess;
  fake_cuda_trace("context %ld %s %s", visible()[index], refused ? "refused" : "made", call);
  entered[index] = !refused;
  if (!refused) note_context(gpu_of(visible()[index]), getpid());
  return refused;
}

static std::vector<long> all_devices() {  // in CUDA's own order; instances are found by their UUID, or one if there is no GPU
  std::vector<long> found;
  bool by_address = !strcmp(word("CUDA_DEVICE_ORDER", ""), "PCI_BUS_ID");
  for (long i = 0; i < gpus(); i++) {
    long gpu = by_address ? i : listed("FAKE_CUDA_ORDER", i, i);
    if (!instances(gpu)) found.push_back(gpu);
  }
  if (found.empty() && instances(0)) found.push_back(PART);
  return found;
}

static long find(const std::string& name) {  // an index, or the begin of one UUID; -1: none of this machine
  char* end;
  long index = strtol(name.c_str(), &end, 10);
  auto all = all_devices();
  if (!name.empty() && !*end) return index >= 0 && index < (long)all.size() ? all[index] : -1;
  all.clear();
  for (long gpu = 0; gpu < gpus(); gpu++)
    for (long part = 0; part <= instances(gpu); part++) all.push_back(gpu + part * PART);
  std::vector<long> named;
  for (long each : all) {
    char uuid[41];
    gpu_uuid_text(each, uuid);
    if (name.size() > 4 && !strncmp(name.c_str(), uuid, name.size())) named.push_back(each);
  }
  return named.size() == 1 ? named[0] : -1;
}

const std::vector<long>& visible() {
  static const std::vector<long>& all = *[] {
    auto* found = new std::vector<long>;
    const char* list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list) *found = all_devices();
    while (list) {  // ends at the first that there is not, as CUDA's; and at an instance, of which it takes one
      const char* comma = strchr(list, ',');
      long gpu = find(comma ? std::string(list, comma) : std::string(list));
      if (gpu < 0) break;
      found->push_back(gpu);
      list = comma && instance_of(gpu) < 0 ? comma + 1 : nullptr;
    }
    return found;
  }();
  return all;
}

static bool exists(int index) { return index >= 0 && index < (int)visible().size(); }

}  // namespace fake

using namespace fake;

extern "C" {

cudaError_t cudaGetLastError() {
  cudaError_t error = last;
  last = broken();
  return error;
}
cudaError_t cudaPeekAtLastError() { return last; }

const char* cudaGetErrorName(cudaError_t error) {
  for (auto& known : ERRORS)
    if (known.code == error) return known.name;
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch ((int)error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorDevicesUnavailable: return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorECCUncorrectable: return "uncorrectable ECC error encountered";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorNotSupported: return "operation not supported";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    case cudaErrorUnknown: return "unknown error";
    default: return cudaGetErrorName(error);
  }
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = (int)visible().size();
  return *count ? cudaSuccess : refuse(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* index) {
  *index = device;
  return visible().empty() ? refuse(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
  if (!exists(index)) return refuse(cudaErrorInvalidDevice);
  device = index;
  LIVING;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = (int)setting("FAKE_CUDA_DRIVER", CUDART_VERSION);
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* shown, int index) {
  if (!exists(index)) return refuse(cudaErrorInvalidDevice);
  show_properties(shown, visible()[index]);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int index) {
  cudaDeviceProp shown;
  if (cudaError_t error = cudaGetDeviceProperties(&shown, index)) return error;
  switch ((int)attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = shown.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = shown.minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)shown.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)shown.sharedMemPerBlockOptin; break;
    case cudaDevAttrMultiProcessorCount: *value = shown.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = shown.maxThreadsPerBlock; break;
    case cudaDevAttrWarpSize: *value = shown.warpSize; break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    default: *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int index) {
  if (!exists(index)) return refuse(cudaErrorInvalidDevice);
  unsigned int domain, bus, slot;
  gpu_address(visible()[index], &domain, &bus, &slot);
  snprintf(text, length, "%04x:%02x:%02x.0", domain, bus, slot);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int one, int other) {
  bool whole = exists(one) && exists(other) && instance_of(visible()[one]) < 0 && instance_of(visible()[other]) < 0;
  *can = one != other && whole && setting("FAKE_NVML_P2P", 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned int) { return cudaSuccess; }
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
}
