"""Lines that sound like a failure and are none: of healthy jobs of every release and launcher."""

HARMLESS = (
    "The hostname of the client socket cannot be retrieved",
    "The IPv6 network addresses of",
    "has failed to connect to [",  # of one address among several; when all fail, torch says it at ERROR
    "failed to listen on any local network address. Continuing",
    "destroy_process_group() was not called",
    "is deprecated",
    "Unable to register cuDNN factory",
    "Unable to register cuFFT factory",
    "Unable to register cuBLAS factory",
    "computation placer already registered",
    "Guessing device ID based on global rank",
    "using GPU ",  # to perform barrier as devices used by this process are currently unknown
    "OMP_NUM_THREADS environment variable",
    "couldn't load driver",
    "ignore_errors",
    "errors 0",
    "error_file",
    "Sending process",
    "closing signal SIGTERM",
    ") of binary: ",  # torchrun's, of every process that failed; its summary says the same again
    "Signal 15 (SIGTERM)",  # how a launcher ends the other ranks
    "ibv_get_device_list",
    "NET/Plugin: Could not find",
    "NET/Plugin : No plugin found",
    "No plugin found",
    "libibverbs: Warning",
    "FutureWarning",
    "UserWarning",
    "DeprecationWarning",
    # NCCL's own warnings after which it goes on, 2.4 to 2.30
    "Failed to open libibverbs.so",  # a machine without RDMA; a warning until 2.10
    "Call to bind failed",  # of the RAS port that another job has; elsewhere log.port-taken speaks of it
    "client reregistration",  # the subnet manager asks ports to register again
    "async event : port active",
    "async event: port active",
    "async event : SM change",
    "async event: SM change",
    "wrong magic",  # a stranger connected; NCCL waits for the next connection
    "User asked for a m",  # channels out of bounds: NCCL takes the nearest number
    "is too big. Limiting value to",
    "cap it to",
    "set both to",
    "is not a valid value",
    "is being ignored because it is not a power of 2",
    "NCCL_SOCKET_NTHREADS is greater than the maximum",
    "No NVML device handle. Skipping nvlink detection",
    "not dumping topology",
    "Continue without profiler",
    "CollNet is not supported or fails to initialize",
    "Cannot initialize CollNet, using",
    "CollNet currently only supports",
    # torch's at W
    "The client socket has failed to connect to",
    "network addresses of (",
    "The server socket has failed to bind",
    "as device used by this process is currently unknown",
    'Failed to check the "should dump" flag',  # rank 0, which keeps the store, ended first
    "recvVector failed on",
    "recvValue failed on",
    "recvValueWithTimeout failed on",
    "sendBytes failed on",
)
"""Texts of such lines. They are counted nowhere; where one of them matters after all, a check says so by itself."""
