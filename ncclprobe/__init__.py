"""Says before a job starts whether NCCL and the interconnect will carry it, and if not, who is to blame."""

__version__ = "0.1.0"
