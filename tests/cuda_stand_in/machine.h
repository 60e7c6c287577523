/* The machine that the stand-ins of NVML and CUDA show, said by variables FAKE_NVML_…: GPUS (count), BUS (their addresses,
 * separated by commas; else their index is their bus), HOST (a number, for the UUIDs), NAME, MEMORY_MB. */
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

static inline long gpus(void) { return setting("FAKE_NVML_GPUS", 1); }
static inline const char *gpu_name(void) { return word("FAKE_NVML_NAME", "Fake H200"); }
static inline unsigned long long gpu_memory(void) { return (unsigned long long)setting("FAKE_NVML_MEMORY_MB", 141 << 10) << 20; }

static inline void gpu_address(long gpu, unsigned int *domain, unsigned int *bus, unsigned int *device) {
    const char *all = getenv("FAKE_NVML_BUS");
    *domain = *device = 0;
    *bus = (unsigned int)gpu;
    for (; all && gpu > 0; gpu--) all = strchr(all, ',') ? strchr(all, ',') + 1 : NULL;
    if (all) sscanf(all, "%x:%x:%x", domain, bus, device);
}

static inline void gpu_uuid(long gpu, unsigned char uuid[16]) {
    unsigned int host = (unsigned int)setting("FAKE_NVML_HOST", 0);
    memset(uuid, 0, 16);
    uuid[2] = (unsigned char)(host >> 8);
    uuid[3] = (unsigned char)host;
    uuid[15] = (unsigned char)(gpu / 10 * 16 + gpu % 10);
}

static inline void gpu_uuid_text(long gpu, char text[41]) {
    static const char groups[] = {4, 6, 8, 10, 16};
    unsigned char uuid[16];
    int at = 0;
    gpu_uuid(gpu, uuid);
    text += sprintf(text, "GPU");
    for (unsigned int i = 0; i < sizeof groups; i++)
        for (text += sprintf(text, "-"); at < groups[i]; at++) text += sprintf(text, "%02x", uuid[at]);
}
