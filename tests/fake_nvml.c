/* A stand-in for libnvidia-ml.so.1, for tests of the real nvidia-ml-py above it. What box it shows is said by variables
 * FAKE_NVML_…: those of cuda_stand_in/machine.h, LINKS (of each GPU), SWITCHED (links end at NVSwitches; else at other GPUs), NVLINK5,
 * CUDA (12080: what the driver has), CLUSTER (a multi-node fabric), FABRIC (its state), DOWN ("gpu:link"), LOST (a GPU), LOST_LATE (one that is lost once its
 * handle is out), BUSY (a GPU in use), REFUSE ("function=code,…"), ERROR (of nvmlInit), HANG, CRASH, CHATTY (it prints),
 * MIG, MODE, EVENTS (below), ECC (a GPU with 3 uncorrectable errors since its reset, of 5, and a worn SRAM), P2P (0: none),
 * WRITE (a file to open, which may be on a frozen file system), LOG (a file that takes the name of every function called).
 * Compiled with -DOLD it is an older library, without functions and fields that later ones added.
 * Layouts of structures and numbers follow nvml.h as nvidia-ml-py declares them. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_stand_in/machine.h"

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15 };
enum { LINK_GPU = 0, LINK_SWITCH = 2, FABRIC_NOT_SUPPORTED = 0, FABRIC_COMPLETED = 3 };
enum { VALUE_UNSIGNED_INT = 1, VALUE_UNSIGNED_LONG_LONG = 3 };

typedef struct {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_info;

typedef struct {
    unsigned long long total, free, used;
} memory_info;

typedef struct {
    unsigned int pid;
    unsigned long long memory;
    unsigned int gpu_instance, compute_instance;
} process_info;

typedef struct {
    unsigned int field, scope;
    long long timestamp, latency;
    unsigned int type, refusal;
    union {
        unsigned int small;
        unsigned long long large;
    } value;
} field_value;

typedef struct {
    unsigned char cluster[16];
    unsigned int status, clique;
    unsigned char state;
} fabric_info;

typedef struct {
    unsigned int version;
    unsigned char cluster[16];
    unsigned int status, clique;
    unsigned char state;
    unsigned int health;
} fabric_info_v2;

static long links(void) { return setting("FAKE_NVML_LINKS", 0); }
static long index_of(void *handle) { return (long)handle - 1; }

static void logged(const char *function) {
    const char *path = getenv("FAKE_NVML_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s\n", function);
    fclose(file);
}

static int refused(const char *function) {
    const char *found = getenv("FAKE_NVML_REFUSE");
    size_t length = strlen(function);
    while (found && (found = strstr(found, function))) {
        if (found[length] == '=') return (int)strtol(found + length + 1, NULL, 10);
        found += length;
    }
    return SUCCESS;
}

static int state_of(void *handle, const char *function) {
    logged(function);
    if (index_of(handle) == setting("FAKE_NVML_LOST_LATE", -1)) return GPU_IS_LOST;
    return refused(function);
}

/* Every function that takes a GPU begins like this. */
#define ENTER(handle)                             \
    do {                                          \
        int state = state_of(handle, __func__);   \
        if (state != SUCCESS) return state;       \
    } while (0)

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    logged(__func__);
    if (setting("FAKE_NVML_CRASH", 0)) abort();
    if (setting("FAKE_NVML_CHATTY", 0)) printf("[\"this is no answer\"]\n"), fflush(stdout);
    if (getenv("FAKE_NVML_WRITE")) close(open(getenv("FAKE_NVML_WRITE"), O_CREAT | O_WRONLY, 0600));
    while (setting("FAKE_NVML_HANG", 0)) sleep(1);
    return (int)setting("FAKE_NVML_ERROR", SUCCESS);
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    (void)code;
    return "a code that nvidia-ml-py has no words for";
}

static int version(const char *function, char *text, unsigned int length, const char *what) {
    logged(function);
    snprintf(text, length, "%s", what);
    return refused(function);
}

static int new_driver(void) { return setting("FAKE_NVML_CUDA", 12080) >= 13000; }

int nvmlSystemGetDriverVersion(char *text, unsigned int length) {
    return version(__func__, text, length, new_driver() ? "580.65.06" : "570.86.15");
}

int nvmlSystemGetNVMLVersion(char *text, unsigned int length) {
    return version(__func__, text, length, new_driver() ? "13.580.65.06" : "12.570.86.15");
}

int nvmlSystemGetCudaDriverVersion(int *number) {
    logged(__func__);
    *number = (int)setting("FAKE_NVML_CUDA", 12080);
    return refused(__func__);
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    logged(__func__);
    *count = (unsigned int)gpus();
    return refused(__func__);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    logged(__func__);
    if (index >= (unsigned int)gpus()) return INVALID_ARGUMENT;
    if ((long)index == setting("FAKE_NVML_LOST", -1)) return GPU_IS_LOST;
    *handle = (void *)(long)(index + 1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **handle) {
    unsigned int one[3], other[3];
    logged(__func__);
    if (sscanf(address, "%x:%x:%x", &one[0], &one[1], &one[2]) != 3) return INVALID_ARGUMENT;
    for (long i = 0; i < gpus(); i++) {
        gpu_address(i, &other[0], &other[1], &other[2]);
        if (!memcmp(one, other, sizeof one)) return nvmlDeviceGetHandleByIndex_v2((unsigned int)i, handle);
    }
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(void *handle, unsigned int *index) {
    ENTER(handle);
    *index = (unsigned int)index_of(handle);
    return SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned int length) {
    ENTER(handle);
    name_of(index_of(handle), text, length);
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned int length) {
    char uuid[41];
    ENTER(handle);
    gpu_uuid_text(index_of(handle), uuid);
    snprintf(text, length, "%s", uuid);
    return SUCCESS;
}

static void address(pci_info *pci, unsigned int domain, unsigned int bus, unsigned int device) {
    memset(pci, 0, sizeof *pci);
    pci->domain = domain, pci->bus = bus, pci->device = device;
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", domain, bus, device);
}

static void address_of(pci_info *pci, long gpu) {
    unsigned int domain, bus, device;
    gpu_address(gpu, &domain, &bus, &device);
    address(pci, domain, bus, device);
}

int nvmlDeviceGetPciInfo_v3(void *handle, pci_info *pci) {
    ENTER(handle);
    address_of(pci, index_of(handle));
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_info *memory) {
    ENTER(handle);
    memory->total = memory_of(index_of(handle));
    memory->used = index_of(handle) == setting("FAKE_NVML_BUSY", -1) ? 5ULL << 30 : 1ULL << 20;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetBAR1MemoryInfo(void *handle, memory_info *bar1) {
    ENTER(handle);
    bar1->total = 256ULL << 30;
    return SUCCESS;
}

#define NUMBER(name, answer)                          \
    int name(void *handle, unsigned int *number) {    \
        ENTER(handle);                                \
        *number = answer;                             \
        return SUCCESS;                               \
    }
#define TWO_NUMBERS(name, first, second)                                    \
    int name(void *handle, unsigned int *one, unsigned int *other) {        \
        ENTER(handle);                                                      \
        *one = first;                                                       \
        *other = second;                                                    \
        return SUCCESS;                                                     \
    }

NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 1) /* idle */
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetComputeMode, (unsigned int)setting("FAKE_NVML_MODE", 0))
NUMBER(nvmlDeviceGetPersistenceMode, 1)
TWO_NUMBERS(nvmlDeviceGetCudaComputeCapability, 9, 0)
TWO_NUMBERS(nvmlDeviceGetMigMode, instances(index_of(handle)) > 0, instances(index_of(handle)) > 0)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, instances(index_of(handle)) ? 7 : 0)
NUMBER(nvmlDeviceIsMigDeviceHandle, instance_of(index_of(handle)) >= 0)
NUMBER(nvmlDeviceGetGpuInstanceId, (unsigned int)instance_of(index_of(handle)) + 7)
NUMBER(nvmlDeviceGetComputeInstanceId, 0)
TWO_NUMBERS(nvmlDeviceGetEccMode, 1, 1)

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned int index, void **instance) {
    ENTER(handle);
    if (index >= (unsigned int)instances(index_of(handle))) return NOT_FOUND;
    *instance = (void *)(index_of(handle) + (index + 1L) * PART + 1);
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *handle, void **gpu) {
    ENTER(handle);
    *gpu = (void *)(gpu_of(index_of(handle)) + 1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    char known[41];
    logged(__func__);
    for (long gpu = 0; gpu < gpus(); gpu++)
        for (long part = 0; part <= instances(gpu); part++) {
            gpu_uuid_text(gpu + part * PART, known);
            if (!strcmp(uuid, known)) return *handle = (void *)(gpu + part * PART + 1), SUCCESS;
        }
    return NOT_FOUND;
}

/* Events, of FAKE_NVML_EVENTS: a file with a line of each, "GPU TYPE DATA", which the fake CUDA adds to. */
typedef struct {
    long read;
    unsigned long long types[PART];
} event_set;

typedef struct {
    void *device;
    unsigned long long type, data;
    unsigned int gpu_instance, compute_instance;
} event_data;

int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *types) {
    ENTER(handle);
    *types = 0x1 | 0x2 | 0x8; /* ECC errors, single and double, and Xids */
    return SUCCESS;
}

static int next_event(event_set *set, event_data *event) {
    FILE *file = fopen(word("FAKE_NVML_EVENTS", ""), "r");
    long gpu, found = 0;
    if (!file) return 0;
    fseek(file, set->read, SEEK_SET);
    while (!found && fscanf(file, "%ld %llu %llu\n", &gpu, &event->type, &event->data) == 3) {
        event->device = (void *)(gpu + 1);
        event->gpu_instance = event->compute_instance = ~0U;
        found = (set->types[gpu_of(gpu)] & event->type) != 0;
        set->read = ftell(file);
    }
    fclose(file);
    return (int)found;
}

int nvmlEventSetCreate(void **set) {
    event_data ignored;
    event_set *made = calloc(1, sizeof *made);
    logged(__func__);
    while (next_event(made, &ignored)) continue;
    *set = made;
    return refused(__func__);
}

int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) {
    ENTER(handle);
    ((event_set *)set)->types[gpu_of(index_of(handle))] |= types;
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, event_data *event, unsigned int timeout_ms) {
    logged(__func__);
    for (unsigned int waited = 0;; waited += 10) {
        if (next_event(set, event)) return SUCCESS;
        if (refused(__func__)) return refused(__func__);
        if (waited >= timeout_ms) return TIMEOUT;
        usleep(10000);
    }
}

int nvmlEventSetFree(void *set) { return free(set), SUCCESS; }

static int struck(void *handle) { return index_of(handle) == setting("FAKE_NVML_ECC", -1); }

int nvmlDeviceGetTotalEccErrors(void *handle, unsigned int type, unsigned int counter, unsigned long long *count) {
    ENTER(handle);
    *count = type == 1 && struck(handle) ? (counter ? 5 : 3) : 0;
    return SUCCESS;
}

#ifndef OLD
typedef struct {
    unsigned int version;
    unsigned long long counts[11];
    unsigned int exceeded;
} sram_status;

int nvmlDeviceGetSramEccErrorStatus(void *handle, sram_status *status) {
    ENTER(handle);
    if (status->version != 0x01000068) return INVALID_ARGUMENT;
    status->exceeded = (unsigned int)struck(handle);
    return SUCCESS;
}
#endif

int nvmlDeviceGetRemappedRows(void *handle, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending,
                              unsigned int *failed) {
    ENTER(handle);
    *corrected = 2;
    *uncorrected = *pending = *failed = 0;
    return SUCCESS;
}

static unsigned long long clocks(void *handle) {
    return index_of(handle) == setting("FAKE_NVML_BUSY", -1) ? 0x88 : 1; /* slowed down by a power brake; else idle */
}

#ifndef OLD
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *reasons) {
    ENTER(handle);
    *reasons = clocks(handle);
    return SUCCESS;
}
#endif

int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) {
    ENTER(handle);
    *reasons = clocks(handle);
    return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned int *milliwatts) {
    ENTER(handle);
    *milliwatts = index_of(handle) == setting("FAKE_NVML_BUSY", -1) ? 200000 : 700000;
    return SUCCESS;
}

int nvmlDeviceGetPowerManagementDefaultLimit(void *handle, unsigned int *milliwatts) {
    ENTER(handle);
    *milliwatts = 700000;
    return SUCCESS;
}

int nvmlDeviceGetApplicationsClock(void *handle, unsigned int type, unsigned int *mhz) {
    ENTER(handle);
    *mhz = type == 1 ? 1980 : 0;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *handle, unsigned int sensor, unsigned int *celsius) {
    ENTER(handle);
    *celsius = sensor == 0 ? 31 : 0;
    return SUCCESS;
}

int nvmlDeviceGetTemperatureThreshold(void *handle, unsigned int threshold, unsigned int *celsius) {
    ENTER(handle);
    *celsius = threshold == 1 ? 92 : 0;
    return SUCCESS;
}

int nvmlDeviceGetPcieReplayCounter(void *handle, unsigned int *count) {
    ENTER(handle);
    *count = 0;
    return SUCCESS;
}

int nvmlDeviceGetViolationStatus(void *handle, int policy, unsigned long long *reference_us_and_violation_ns) {
    (void)policy;
    ENTER(handle);
    reference_us_and_violation_ns[0] = 1700000000000000ULL;
    reference_us_and_violation_ns[1] = 0;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *count, process_info *processes) {
    unsigned int room = *count, pid;
    char folder[3500];
    long gpu;
    ENTER(handle);
    *count = index_of(handle) == setting("FAKE_NVML_BUSY", -1);
    if (*count && room) processes[0] = (process_info){.pid = 4711, .memory = 5ULL << 30};
    DIR *all = context_folder(folder, sizeof folder) ? opendir(folder) : NULL;
    for (struct dirent *each; all && (each = readdir(all));) {
        if (sscanf(each->d_name, "context-%ld-%u", &gpu, &pid) != 2 || gpu != gpu_of(index_of(handle)) || kill((int)pid, 0)) continue;
        if (*count < room) processes[*count] = (process_info){.pid = pid, .memory = 520ULL << 20};
        ++*count;
    }
    if (all) closedir(all);
    return room < *count ? INSUFFICIENT_SIZE : SUCCESS;
}

static int second_half(void *handle) { return index_of(handle) >= (gpus() + 1) / 2; }

int nvmlDeviceGetCpuAffinity(void *handle, unsigned int words, unsigned long *cpus) {
    ENTER(handle);
    memset(cpus, 0, words * sizeof *cpus);
    cpus[0] = second_half(handle) ? 0xff00000000000000 : 0xff;
    return SUCCESS;
}

#ifndef OLD
int nvmlDeviceGetMemoryAffinity(void *handle, unsigned int words, unsigned long *nodes, unsigned int scope) {
    ENTER(handle);
    (void)scope;
    memset(nodes, 0, words * sizeof *nodes);
    nodes[0] = second_half(handle) ? 2 : 1;
    return SUCCESS;
}
#endif

static unsigned char fabric_state(void) {
    return (unsigned char)setting("FAKE_NVML_FABRIC", getenv("FAKE_NVML_SWITCHED") ? FABRIC_COMPLETED : FABRIC_NOT_SUPPORTED);
}

int nvmlDeviceGetGpuFabricInfo(void *handle, fabric_info *fabric) {
    ENTER(handle);
    memset(fabric, 0, sizeof *fabric);
    fabric->state = fabric_state();
    return SUCCESS;
}

#ifndef OLD
int nvmlDeviceGetGpuFabricInfoV(void *handle, fabric_info_v2 *fabric) {
    ENTER(handle);
    if (fabric->version != 0x02000024) return INVALID_ARGUMENT;
    fabric->state = fabric_state();
    memset(fabric->cluster, setting("FAKE_NVML_CLUSTER", 0) ? 0xab : 0, sizeof fabric->cluster);
    fabric->clique = (unsigned int)setting("FAKE_NVML_CLUSTER", 0) * 32766;
    fabric->status = SUCCESS;
    fabric->health = 2; /* bandwidth not degraded, the rest not supported */
    return SUCCESS;
}
#endif

static int is_down(void *handle, unsigned int link) {
    char name[32];
    snprintf(name, sizeof name, "%ld:%u", index_of(handle), link);
    return getenv("FAKE_NVML_DOWN") && !strcmp(getenv("FAKE_NVML_DOWN"), name);
}

/* A field of a link by what it is called there: fields 84-89 and 132-137 are the speed of links 0-5 and 6-11. */
static int lane(unsigned int field, unsigned int first, unsigned int second) {
    if (field >= first && field < first + 6) return (int)(field - first);
    return field >= second && field < second + 6 ? (int)(field - second + 6) : -1;
}

static long counter(void *handle, long link) { return index_of(handle) * 100 + link; }

static int small(field_value *value, unsigned int number) {
    value->type = VALUE_UNSIGNED_INT;
    value->value.small = number;
    return SUCCESS;
}

static int large(field_value *value, long number) {
    value->type = VALUE_UNSIGNED_LONG_LONG;
    value->value.large = (unsigned long long)number;
    return SUCCESS;
}

static int old_field(void *handle, field_value *value) {
    int speed = lane(value->field, 84, 132), replays = lane(value->field, 46, 108);
    int recoveries = lane(value->field, 53, 114), crc_errors = lane(value->field, 32, 96);
    if (speed >= 0 && speed < links()) return small(value, 25781);
    if (replays >= 0 && replays < links()) return large(value, counter(handle, replays));
    if (recoveries >= 0 && recoveries < links()) return large(value, 0);
    return crc_errors >= 0 && crc_errors < links() ? large(value, 0) : INVALID_ARGUMENT;
}

static int link_field(void *handle, field_value *value) {
    int nvlink5 = setting("FAKE_NVML_NVLINK5", 0) != 0;
    if (value->scope >= links()) return INVALID_ARGUMENT;
    switch (value->field) {
    case 161: return nvlink5 ? NOT_SUPPORTED : large(value, counter(handle, value->scope));
    case 162:
    case 163: return nvlink5 ? NOT_SUPPORTED : large(value, 0);
    case 164: return is_down(handle, value->scope) ? NOT_SUPPORTED : small(value, nvlink5 ? 53125 : 26562);
    case 165: return small(value, !is_down(handle, value->scope));
    case 166: return small(value, 7);
    case 215:
    case 219: return nvlink5 ? large(value, counter(handle, value->scope)) : NOT_SUPPORTED;
    default: return INVALID_ARGUMENT;
    }
}

int nvmlDeviceGetFieldValues(void *handle, int count, field_value *values) {
    ENTER(handle);
    for (int i = 0; i < count; i++) {
        if (values[i].field == 91)
            values[i].refusal = (unsigned int)(links() ? small(&values[i], (unsigned int)links()) : NOT_SUPPORTED);
        else
#ifdef OLD
            values[i].refusal = (unsigned int)old_field(handle, &values[i]);
#else
            values[i].refusal = (unsigned int)link_field(handle, &values[i]);
#endif
    }
    (void)link_field, (void)old_field;
    return SUCCESS;
}

#define LINK(handle, link)                              \
    do {                                                \
        ENTER(handle);                                  \
        if (!links()) return NOT_SUPPORTED;             \
        if ((link) >= links()) return INVALID_ARGUMENT; \
    } while (0)

int nvmlDeviceGetNvLinkState(void *handle, unsigned int link, unsigned int *active) {
    LINK(handle, link);
    *active = !is_down(handle, link);
    return SUCCESS;
}

int nvmlDeviceGetNvLinkVersion(void *handle, unsigned int link, unsigned int *number) {
    LINK(handle, link);
    *number = 5;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned int link, unsigned int *type) {
    LINK(handle, link);
    *type = getenv("FAKE_NVML_SWITCHED") ? LINK_SWITCH : LINK_GPU;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned int link, pci_info *pci) {
    LINK(handle, link);
    if (getenv("FAKE_NVML_SWITCHED")) address(pci, 0, 0xf0 + link % 4, 0);
    else address_of(pci, (index_of(handle) + 1 + link % (gpus() - 1)) % gpus());
    return SUCCESS;
}

int nvmlDeviceGetP2PStatus(void *one, void *other, unsigned int capability, unsigned int *status) {
    ENTER(one);
    (void)other;
    *status = !setting("FAKE_NVML_P2P", 1) ? 1 : capability == 2 && !links() ? 5 : 0; /* no NVLink: not supported */
    return SUCCESS;
}

/* The names by which NCCL and torch ask. */
int nvmlSystemGetCudaDriverVersion_v2(int *number) __attribute__((alias("nvmlSystemGetCudaDriverVersion")));
int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned int *count, process_info *processes)
    __attribute__((alias("nvmlDeviceGetComputeRunningProcesses_v3")));
#define ALSO(name, declared) int name declared __attribute__((alias(#name "_v2")))
ALSO(nvmlDeviceGetCount, (unsigned int *count));
ALSO(nvmlDeviceGetHandleByIndex, (unsigned int index, void **handle));
ALSO(nvmlDeviceGetHandleByPciBusId, (const char *address, void **handle));
ALSO(nvmlDeviceGetNvLinkRemotePciInfo, (void *handle, unsigned int link, pci_info *pci));

int nvmlDeviceGetNvLinkCapability(void *handle, unsigned int link, unsigned int capability, unsigned int *result) {
    LINK(handle, link);
    *result = capability == 0; /* peers over it */
    return SUCCESS;
}
