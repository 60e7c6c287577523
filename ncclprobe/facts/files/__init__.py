"""What torch and NCCL write of themselves: flight-recorder dumps, and answers of NCCL's RAS. One module each.

These facts belong to no node. They are read from files that were given on the command line
(:mod:`ncclprobe.host.job_files`) or asked of a running job, and hold no verdict.
"""

SOURCE = "files"
