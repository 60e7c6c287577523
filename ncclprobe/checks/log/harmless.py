"""Lines that sound like a failure and are none: of healthy jobs of every release and launcher."""

from ncclprobe.facts.files import messages
from ncclprobe.facts.files.job_log import LogEvent

HARMLESS = (
    "network addresses of (",
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
    ": going to /tmp instead",  # slurmstepd, of a folder that the node has not
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
    "CollNet is not supported or fails to initialize",
    "CollNet currently only supports",
    # torch's at W
    "as device used by this process is currently unknown",
    'Failed to check the "should dump" flag',  # rank 0, which keeps the store, ended first
    "recvVector failed on",
    "recvValue failed on",
    "recvValueWithTimeout failed on",
    "sendBytes failed on",
)
"""Texts of such lines, where the table of messages does not have them: of older releases and of other programs.

They are counted nowhere; where one of them matters after all, a check says so by itself.
"""


def harmless(event: LogEvent) -> bool:
    """Return whether a line is one of them, or one after which its program goes on as its sources say."""
    if any(text in event.text for text in HARMLESS):
        return True
    found = messages.said(event.text, event.level)
    return found is not None and found.kind in ("harmless", "aside")


def understood(event: LogEvent) -> bool:
    """Return whether a line has a meaning, if only that of a symptom."""
    found = messages.said(event.text, event.level)
    return harmless(event) or (found is not None and found.kind != "?")
