/* A libcuda.so.1 of our own that only refuses: cuInit returns FAKE_CUDA_INIT (100: no device), cuDriverGetVersion reports
 * FAKE_CUDA_DRIVER. Above it the published libnccl.so.2 says how it fails to start. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NO_DEVICE = 100, NOT_SUPPORTED = 801, NEW_INTERFACE = 12000 };

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static int absent(void) { return NOT_SUPPORTED; }
int cuInit(unsigned int flags) { return flags ? NOT_SUPPORTED : number("FAKE_CUDA_INIT", NO_DEVICE); }
int cuDriverGetVersion(int *version) {
    *version = number("FAKE_CUDA_DRIVER", 13020);
    return SUCCESS;
}

/* Every name is found, so that the library goes on until cuInit: what is not here returns CUDA_ERROR_NOT_SUPPORTED. */
int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status);
int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}
int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
    (void)flags;
    *out = (void *)absent;
    if (!strcmp(name, "cuInit")) *out = (void *)cuInit;
    if (!strcmp(name, "cuDriverGetVersion")) *out = (void *)cuDriverGetVersion;
    if (!strcmp(name, "cuGetProcAddress"))
        *out = version >= NEW_INTERFACE ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
    if (status) *status = 0;
    return SUCCESS;
}
