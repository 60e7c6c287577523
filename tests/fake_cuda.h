/* Where fake_cuda.c puts the memory of its GPU, so that fake_verbs.c can tell it from the host's. */
#define FAKE_GPU_MEMORY 0x600000000000ull
#define FAKE_GPU_BYTES 0x10000000000ull
