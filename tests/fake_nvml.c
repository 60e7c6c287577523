/* A stand-in for libnvidia-ml.so.1, steered by FAKE_NVML_* variables, for tests of the real nvidia-ml-py above it.
 * Layouts of structures follow nvml.h as nvidia-ml-py declares them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, GPU_IS_LOST = 15 };

typedef struct {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_info;

typedef struct {
    unsigned long long total, free, used;
} memory_info;

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : otherwise;
}

static long index_of(void *handle) { return (long)handle - 1; }

static int state_of(void *handle) { return index_of(handle) == setting("FAKE_NVML_LOST", -1) ? GPU_IS_LOST : SUCCESS; }

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    if (setting("FAKE_NVML_CRASH", 0)) abort();
    while (setting("FAKE_NVML_HANG", 0)) sleep(1);
    return (int)setting("FAKE_NVML_ERROR", SUCCESS);
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *text, unsigned int length) {
    snprintf(text, length, "570.86.15");
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion(int *version) {
    *version = 12080;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = (unsigned int)setting("FAKE_NVML_GPUS", 1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    if (index >= (unsigned int)setting("FAKE_NVML_GPUS", 1)) return INVALID_ARGUMENT;
    *handle = (void *)(long)(index + 1);
    return SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned int length) {
    snprintf(text, length, "Fake H200");
    return state_of(handle);
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned int length) {
    snprintf(text, length, "GPU-00000000-0000-0000-0000-%012ld", index_of(handle));
    return state_of(handle);
}

int nvmlDeviceGetPciInfo_v3(void *handle, pci_info *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = (unsigned int)index_of(handle);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return state_of(handle);
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_info *memory) {
    memory->total = 141ULL << 30;
    memory->free = memory->total;
    memory->used = 0;
    return state_of(handle);
}
