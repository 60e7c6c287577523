"""The state of a running job: each check is one class of ranks that the others wait for."""

SOURCE = "job"
