"""Says before a job starts whether NCCL and the interconnect will carry it, and if not, who is to blame."""

__version__ = "0.1.0"

DOCS = "https://ncclprobe.readthedocs.io/en/stable"
"""Where the documentation of the released version is; a check is at DOCS/checks/GROUP/#ID."""


def page(check: str) -> str:
    """Return the address of what the documentation says of one check: of a site's own, what such checks are."""
    group, name = check.partition(".")[0], check.partition("/")[0]
    return f"{DOCS}/site-checks/" if check.startswith("site-") else f"{DOCS}/checks/{group}/#{name}"
