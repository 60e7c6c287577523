"""What a test measures: a plan of two ranks and one size."""

from ncclprobe.probes.plan import Plan

KiB = 1 << 10


def plan(**changes: object) -> Plan:
    """Two ranks, one size, one of everything that costs time."""
    defaults: dict[str, object] = {
        "ops": ("all_reduce",), "sizes": (64 * KiB,), "rank": 0, "ranks": 2, "backend": "gloo",
        "footprint_bytes": 64 * KiB, "verify": False, "rounds": 0,
    }  # fmt: skip
    return Plan(**(defaults | changes))  # type: ignore[arg-type]
