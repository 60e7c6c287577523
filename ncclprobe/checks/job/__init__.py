"""How a running job stands: each check is one class of ranks that keeps the others waiting."""

SOURCE = "job"
