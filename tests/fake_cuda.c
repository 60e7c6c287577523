/* A stand-in for libcuda.so.1: one GPU, whose memory is this process's, at an address that tells it from the host's.
 * Signatures and numbers are those of cuda.h. FAKE_CUDA_REFUSE: "FUNCTION=CODE". */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fake_cuda.h"

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, DMA_BUF_FD = 1 };

static int refused(const char *function) {
    const char *text = getenv("FAKE_CUDA_REFUSE");
    size_t length = strlen(function);
    return text && !strncmp(text, function, length) && text[length] == '=' ? atoi(text + length + 1) : 0;
}

int cuInit(unsigned flags) {
    const char *order = getenv("CUDA_DEVICE_ORDER");
    if (getenv("CUDA_VISIBLE_DEVICES") || !order || strcmp(order, "PCI_BUS_ID")) return INVALID_VALUE;
    return flags ? INVALID_VALUE : refused(__func__);
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal ? INVALID_DEVICE : refused(__func__);
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (void *)1;
    return device ? INVALID_DEVICE : refused(__func__);
}

int cuCtxSetCurrent(void *context) { return context ? refused(__func__) : INVALID_VALUE; }

int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes) {
    void *at = mmap((void *)FAKE_GPU_MEMORY, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == MAP_FAILED) return OUT_OF_MEMORY;
    *pointer = (unsigned long long)at;
    return refused(__func__);
}

int cuPointerSetAttribute(const void *value, int attribute, unsigned long long pointer) {
    return value && attribute == 6 && pointer >= FAKE_GPU_MEMORY ? refused(__func__) : INVALID_VALUE;
}

int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes) {
    memcpy((void *)to, from, bytes);
    return refused(__func__);
}

int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes) {
    memcpy(to, (const void *)from, bytes);
    return refused(__func__);
}

int cuMemGetHandleForAddressRange(void *handle, unsigned long long at, size_t bytes, int kind, unsigned long long flags) {
    if (at < FAKE_GPU_MEMORY || !bytes || kind != DMA_BUF_FD || flags) return INVALID_VALUE;
    *(int *)handle = memfd_create("dma-buf", 0);
    return refused(__func__);
}

int cuGetErrorName(int code, const char **name) {
    *name = code == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : code == INVALID_DEVICE ? "CUDA_ERROR_INVALID_DEVICE" : "CUDA_ERROR";
    return 0;
}
