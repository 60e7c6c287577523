"""``python -m gpu_stages.standin_perf OP -b BYTES -e BYTES -f FACTOR -n ITERS …``: stands in for OP_perf.

Our own loop over gloo on one rank, in and out of place, in the table that nccl-tests prints.
"""

import argparse

from gpu_stages.one_rank import measured

_HEAD = (
    "# Collective test starting: {op}_perf",
    "# nThread 1 nGpus 1 minBytes {begin} maxBytes {end} step: {factor}(factor) warmup iters: 5 iters: {iters}",
    "#  Rank  0 Group  0 Pid      1 on       host device  0 [0000:00:00] a stand-in",
    "#       size         count      type   redop    root  " + 2 * "   time   algbw   busbw  #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)",
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("op")
    for flag, name in (("-b", "begin"), ("-e", "end"), ("-f", "factor"), ("-n", "iters")):
        parser.add_argument(flag, dest=name, type=int, required=True)
    args, _ = parser.parse_known_args()
    sizes = [args.begin]
    while sizes[-1] * args.factor <= args.end:
        sizes.append(sizes[-1] * args.factor)
    print("\n".join(_HEAD).format(**vars(args)))
    times = {(row["nbytes"], row["place"]): row["mean_us"] for row in measured("gloo", [args.op], sizes, args.iters)}
    for nbytes in sizes:
        found = [times[nbytes, place] for place in ("out", "in") if (nbytes, place) in times]
        cells = (f"{us:>8.2f} {nbytes / us / 1e3:>7.2f} {0.0:>7.2f}       0" for us in (found * 2)[:2])
        if found:  # where we measure one place alone, it stands for both
            print(f"{nbytes:>12} {nbytes // 4:>13}     float     sum      -1 {' '.join(cells)}")
    print("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0\n#")


if __name__ == "__main__":
    main()
