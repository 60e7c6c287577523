"""torch's CUDA wheels above our own stand-ins of CUDA, NCCL and NVML: build, play, compare."""
