"""A cluster on one machine: hosts in namespaces, and everything that can go wrong between them. Needs root.

with Lab(hosts=4, nics=2) as lab, faults.filtered(lab.hosts[0], port=29500):
    print(lab.hosts[1].run(["python3", "-m", "ncclprobe", "doctor"], timeout_s=60).out)
"""

from .hosts import Completed, Host, Lab, LabError, Running, clean, why_not

__all__ = ["Completed", "Host", "Lab", "LabError", "Running", "clean", "why_not"]
