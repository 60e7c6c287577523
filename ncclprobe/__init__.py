"""Says before a job starts whether NCCL and the interconnect will carry it, and if not, who is to blame."""

__version__ = "0.1.0"

DOCS = "https://ncclprobe.readthedocs.io/en/stable"
"""Where the documentation of the released version stands; the page of a check is DOCS/checks/ID/."""
