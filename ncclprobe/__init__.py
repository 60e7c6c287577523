"""Check whether NCCL and the interconnect are ready for a job, and name the culprit if not."""

__version__ = "0.1.0"

DOCS = "https://ncclprobe.readthedocs.io/en/stable"
"""Address of the documentation of the released version; a check is at DOCS/checks/GROUP/#ID."""


def page(check: str) -> str:
    """Return the documentation address of one check; of a site's own check, the page on such checks."""
    group, name = check.partition(".")[0], check.partition("/")[0]
    return f"{DOCS}/site-checks/" if check.startswith("site-") else f"{DOCS}/checks/{group}/#{name}"
