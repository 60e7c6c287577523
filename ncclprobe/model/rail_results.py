"""The noun of measured rails: one way of one rail, as a report carries it."""

from typing import Literal

from ncclprobe.model.values import Struct

RailState = Literal["ok", "dead", "late", "unusable", "wrong", "untried"]


class RailWay(Struct, frozen=True, kw_only=True):
    """What went from rail `src_rail` of node `src` to rail `dst_rail` of node `dst`, over all tests of this run.

    `src_end` and `dst_end` name them with their ports: ``n0 rail 1 (mlx5_1:1)``. `state`: ``late``: data came,
    but not all in time; ``unusable``: an end failed by itself; ``wrong``: bytes arrived that were not sent;
    ``untried``: the two ends did not meet. `GBps` (1e9 bytes/s) is the median of `tests` while all
    rails of the two nodes sent one way, `alone_GBps` while no other rail of them did, `both_GBps` while both ways were
    used, `gpu_GBps` with a GPU's memory; null: not measured. `latency_us`: half the median round trip. `src_choices`
    and `dst_choices` are what NCCL's rules chose at both ends, `why` what failed.
    """

    src: str
    dst: str
    src_rail: int
    dst_rail: int
    src_end: str
    dst_end: str
    state: RailState
    tests: int
    GBps: float | None = None
    alone_GBps: float | None = None
    both_GBps: float | None = None
    gpu_GBps: float | None = None
    latency_us: float | None = None
    src_choices: str = ""
    dst_choices: str = ""
    why: str = ""
