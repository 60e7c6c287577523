"""What a job left behind: its logs, flight-recorder dumps, answers of NCCL's RAS, the kernel's log. One module each.

These facts belong to no node. They are read from files that were given on the command line
(:mod:`ncclprobe.host.job_files`), are no answers of a machine, and hold no verdict.
"""

SOURCE = "files"
