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
    "Signal 15 (SIGTERM)",  # how a launcher ends the other ranks
    "ibv_get_device_list",
    "NET/Plugin: Could not find",
    "NET/Plugin : No plugin found",
    "No plugin found",
    "libibverbs: Warning",
    "FutureWarning",
    "UserWarning",
    "DeprecationWarning",
)
"""Texts of such lines. They are counted nowhere; where one of them matters after all, a check says so by itself."""
