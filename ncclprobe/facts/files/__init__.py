"""Files that torch and NCCL write: flight-recorder dumps and answers of NCCL's RAS. One module each.

These facts belong to no node. They are read from files given on the command line (:mod:`ncclprobe.host.job_files`) or
requested from a running job, and contain no verdict.
"""

SOURCE = "files"
