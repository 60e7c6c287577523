/* The machine that the stand-ins of NVML and CUDA show, said by variables FAKE_NVML_…: GPUS (count), BUS (their addresses,
 * separated by commas; else their index is their bus), HOST (a number, for the UUIDs), UNLIKE (the first digits of
 * the UUIDs differ), NAME, MEMORY_MB, MIG (into how many instances each GPU is split, separated by commas), MODE (the compute
 * mode of all), BUSY (a GPU that another process has). A number below PART is a GPU, from there on an instance of one. */
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : otherwise;
}

static inline const char *word(const char *name, const char *otherwise) {
    const char *text = getenv(name);
    return text ? text : otherwise;
}

enum { PART = 256, EXCLUSIVE_THREAD = 1, PROHIBITED = 2, EXCLUSIVE_PROCESS = 3 };
static inline long gpu_of(long device) { return device % PART; }
static inline long instance_of(long device) { return device / PART - 1; } /* -1: a whole GPU */

static inline long listed(const char *name, long index, long otherwise) {
    const char *all = getenv(name);
    for (; all && index > 0; index--) all = strchr(all, ',') ? strchr(all, ',') + 1 : NULL;
    return all ? strtol(all, NULL, 10) : otherwise;
}
/* A process with a context on a GPU is a file in the folder FAKE_NVML_FOLDER. */
static inline int context_folder(char *path, size_t length) {
    snprintf(path, length, "%s", word("FAKE_NVML_FOLDER", ""));
    return *path != 0;
}
static inline void note_context(long gpu, int pid) {
    char folder[3500], path[4000];
    if (!context_folder(folder, sizeof folder)) return;
    snprintf(path, sizeof path, "%s/context-%ld-%d", folder, gpu, pid);
    FILE *file = fopen(path, "w");
    if (file) fclose(file);
}

static inline long instances(long gpu) { return listed("FAKE_NVML_MIG", gpu, 0); }

static inline long gpus(void) { return setting("FAKE_NVML_GPUS", 1); }
static inline const char *gpu_name(void) { return word("FAKE_NVML_NAME", "Fake H200"); }
static inline unsigned long long gpu_memory(void) { return (unsigned long long)setting("FAKE_NVML_MEMORY_MB", 141 << 10) << 20; }

static inline unsigned long long memory_of(long device) { return instance_of(device) < 0 ? gpu_memory() : gpu_memory() / 8; }
static inline void name_of(long device, char *text, size_t length) {
    snprintf(text, length, "%s%s", gpu_name(), instance_of(device) < 0 ? "" : " MIG 1g.10gb");
}

static inline void gpu_address(long gpu, unsigned int *domain, unsigned int *bus, unsigned int *device) {
    const char *all = getenv("FAKE_NVML_BUS");
    gpu = gpu_of(gpu);
    *domain = *device = 0;
    *bus = (unsigned int)gpu;
    for (; all && gpu > 0; gpu--) all = strchr(all, ',') ? strchr(all, ',') + 1 : NULL;
    if (all) sscanf(all, "%x:%x:%x", domain, bus, device);
}

static inline void gpu_uuid(long gpu, unsigned char uuid[16]) {
    unsigned int host = (unsigned int)setting("FAKE_NVML_HOST", 0);
    memset(uuid, 0, 16);
    uuid[8] = (unsigned char)(instance_of(gpu) + 1);
    gpu = gpu_of(gpu);
    if (setting("FAKE_NVML_UNLIKE", 0)) uuid[0] = (unsigned char)(0xa0 + gpu);
    uuid[2] = (unsigned char)(host >> 8);
    uuid[3] = (unsigned char)host;
    uuid[15] = (unsigned char)(gpu / 10 * 16 + gpu % 10);
}

static inline void gpu_uuid_text(long gpu, char text[41]) {
    static const char groups[] = {4, 6, 8, 10, 16};
    unsigned char uuid[16];
    int at = 0;
    gpu_uuid(gpu, uuid);
    text += sprintf(text, instance_of(gpu) < 0 ? "GPU" : "MIG");
    for (unsigned int i = 0; i < sizeof groups; i++)
        for (text += sprintf(text, "-"); at < groups[i]; at++) text += sprintf(text, "%02x", uuid[at]);
}
