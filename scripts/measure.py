#!/usr/bin/env python3
"""What ncclprobe measures, held against something else, in the fault lab; each writes a table to reports/. Needs root.

scripts/measure.py links       bandwidths beside iperf3 over links of 100, 500 and 1000 Mbit/s, in turn
scripts/measure.py precision   how long an asked precision takes beside 5 + 20 calls, over loopback and over links
scripts/measure.py slow        four hosts with something slow planted, or nothing: is it named? Also writes the pair
                               matrix of a lab with one bad NIC, and the report of a run in which a rank is stopped in
                               the middle
scripts/measure.py training    steps of five strategies on 2 and 4 hosts over shaped links: predicted beside measured;
                               and the groups of tp=2,dp=2 apart and together

`links` also needs iperf3. Nothing else should run on the machine: what disturbs these measurements is in their tables.
"""

import argparse
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]

from child import fail
from tables import Ratio, ratio, table

from ncclprobe import __version__, units
from ncclprobe.model.traffic import GroupRow, StepRow
from tests.lab import LabError, links, precise, slowness, training, why_not
from tests.lab.run import machine

REPORTS = Path("reports")
BESIDE = {
    "all_reduce": "iperf3 both ways",
    "sendrecv": "iperf3 both ways",
    "pairs one way": "iperf3 one way",
    "pairs both ways": "iperf3 both ways",
}
"""What each of ours is compared with: what sends the same way."""


def heading(title: str, *words: str) -> Iterator[str]:
    """The top of a report: how it was made, where, and what to know of it."""
    yield from (f"# {title}", "")
    given = [word for before, word in zip(sys.argv, sys.argv[1:], strict=False) if "--out" not in (before, word)]
    yield f"ncclprobe {__version__}, {machine()}. Made with `scripts/measure.py {' '.join(given)}`."
    yield from (*words, "")


def say(line: str) -> None:
    """Progress goes to stderr: stdout is the table's."""
    print(line, file=sys.stderr, flush=True)


def write(path: Path, lines: Iterable[str]) -> int:
    """To the file and to stdout."""
    text = "\n".join(lines).rstrip("\n") + "\n"
    path.write_text(text, encoding="utf-8")
    print(text, end="")
    return 0


def measure_links(asked: argparse.Namespace) -> int:
    """Beside iperf3."""
    if reason := links.missing():
        fail(reason)
    rounds: list[links.Round] = []
    for mbits in asked.mbits:
        for each in links.play(mbits, asked.rounds):
            rounds.append(each)
            say(f"{mbits} Mbit/s, round {len(rounds)}: " + ", ".join(f"{k} {v:.1f}" for k, v in each.rates.items()))
    return write(asked.out, links_report(rounds))


def links_report(rounds: Sequence[links.Round]) -> Iterator[str]:
    """The table of ratios, and the rates behind it."""
    yield from heading(
        "Bandwidths beside iperf3",
        "Two hosts in network namespaces; what each sends is shaped (tbf). iperf3 and ncclprobe take turns, and who",
        "goes first changes from round to round. Payload on both sides. A ratio is the median of the rounds' ratios",
        "with its 95 % bootstrap interval. What gloo sends both ways at once may take twice as long, or not: a loop of",
        "batch_isend_irecv written by hand had 479 Mbit/s one way and 240 each way over 500. Ours says what there was.",
    )
    head = (
        "link, Mbit/s",
        "ours",
        "rounds",
        "Mbit/s, median",
        "beside",
        "Mbit/s, median",
        "ours / iperf3",
        "ours / link",
    )
    yield from table(head, links_rows(rounds))
    yield from ("Each round, Mbit/s:", "")
    names = (*links.THEIRS, *links.OURS)
    rows = [(each.mbits, *(f"{each.rates[name]:.1f}" for name in names)) for each in rounds]
    yield from table(("link", *names), rows)


def links_rows(rounds: Sequence[links.Round]) -> Iterator[tuple[object, ...]]:
    """One for each link and each of our numbers."""
    by_link: defaultdict[int, list[links.Round]] = defaultdict(list)
    for each in rounds:
        by_link[each.mbits].append(each)
    for mbits, those in by_link.items():
        for name, other in BESIDE.items():
            ours, theirs = ([each.rates[key] for each in those] for key in (name, other))
            of_link = ratio(ours, [float(mbits)] * len(ours))
            middles = f"{median(ours):.1f}", f"{median(theirs):.1f}"
            yield (mbits, name, len(those), middles[0], other, middles[1], ratio(ours, theirs), of_link)


def measure_precision(asked: argparse.Namespace) -> int:
    """±2 % beside 5 + 20 calls."""
    if any(asked.mbits) and (reason := why_not()):
        fail(reason)
    rows: list[precise.Asked] = []
    for mbits in asked.mbits:
        link = precise.Link(mbits)
        say(f"{link}: {', '.join(asked.sizes)}, {asked.pairs} pairs each")
        rows += precise.play(link, asked.sizes, asked.pairs)
    return write(asked.out, precision_report(rows))


def precision_report(rows: Sequence[precise.Asked]) -> Iterator[str]:
    """The table."""
    yield from heading(
        "The time to an answer of ±2 %",
        "Two gloo ranks, all_reduce. A row with ±2 % asked for (budget 2 s) beside one of 5 untimed and 20 timed",
        "calls, in pairs that take turns: the median ratio of their times with its 95 % bootstrap interval.",
        "`came to ±2 %`: the share of rows whose interval is that narrow within the budget; a row whose interval is",
        "not says so. `deviate by`: how far answers of the same sort lie from each other over the pairs (median",
        "absolute deviation); 20 calls do not know theirs.",
    )
    head = (
        "link", "size", "pairs", "s, ±2 %", "s, 5 + 20", "times as long", "came to ±2 %", "median precision",
        "answers deviate by", "those of 5 + 20 by",
    )  # fmt: skip
    yield from table(head, map(precision_row, rows))


def precision_row(row: precise.Asked) -> tuple[object, ...]:
    """One size over one link."""
    times = f"{row.ours_s:.3g}", f"{row.fixed_s:.3g}"
    shares = f"{row.reached:.0%}", f"±{row.precision:.1%}", f"{row.ours:.1%}", f"{row.fixed:.1%}"
    return (row.link, units.size(row.nbytes), row.pairs, *times, Ratio(*row.time, row.pairs), *shares)


def measure_slow(asked: argparse.Namespace) -> int:
    """Named or not; then the two runs that are shown."""
    if reason := why_not():
        fail(reason)
    plays: list[tuple[slowness.Plant, slowness.Play | str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.repeats):
            for plant in slowness.PLANTS:
                if asked.select in f"{plant.name}, {plant.how}":
                    plays.append((plant, slow_play(plant, Path(folder, "report.json"))))
                    say(f"{number + 1} of {asked.repeats}: {plant.name}, {plant.how}: {told(plays[-1][1])}")
    if not asked.no_shown:
        shown(asked.out.parent)
    return write(asked.out, slow_report(plays))


def slow_play(plant: slowness.Plant, path: Path) -> slowness.Play | str:
    """The run, or why there was none."""
    try:
        return slowness.play(plant, path)[0]
    except LabError as error:
        return str(error)


def told(played: slowness.Play | str) -> str:
    """Who was blamed, or why nobody could be."""
    return played if isinstance(played, str) else "; ".join(map(str, played.blames)) or "nobody"


def shown(folder: Path) -> None:
    """The reports of a bad NIC and of a stopped rank, as text and JSON."""
    path = folder / "four-hosts-one-bad-nic.json"
    path.with_suffix(".txt").write_text(slowness.play(slowness.bad_nic(), path)[1].ranks[0].out, encoding="utf-8")
    path = folder / "stopped-rank.json"
    path.with_suffix(".txt").write_text(slowness.stopped(path).ranks[0].out, encoding="utf-8")


def slow_report(plays: Sequence[tuple[slowness.Plant, slowness.Play | str]]) -> Iterator[str]:
    """The table, and what kept runs from being."""
    usual, slow, victim = slowness.USUAL_MBITS, slowness.SLOW_MBITS, slowness.VICTIM
    yield from heading(
        "Something slow, or nothing, on four hosts",
        f"Network namespaces whose cards are held to {usual:g} Mbit/s each way, a slow one to {slow:g}, by tbf at the",
        f"host (out of it) and at the switch's port (into it); what is planted is on {victim}, or between",
        f"{' and '.join(slowness.ENDS)}. One rank per card over gloo. named: kind, host, rail and direction right;",
        "placed: the right host under another name; others: somebody innocent was blamed, whoever else was. quiet:",
        "nobody is to be blamed and nobody was. A starved rank gets",
        f"{slowness.STARVED_SHARE:.0%} of one core once all have met.",
    )
    groups: defaultdict[slowness.Plant, list[slowness.Play | str]] = defaultdict(list)
    for plant, played in plays:
        groups[plant].append(played)
    head = (
        "planted", "looked for by", "runs", "named", "placed", "nobody", "others", "quiet", "exit codes", "s, median",
        "says",
    )  # fmt: skip
    yield from table(head, (slow_row(plant, those) for plant, those in groups.items()))
    for plant, those in groups.items():
        for why in dict.fromkeys(each for each in those if isinstance(each, str)):
            yield f"Not run: {plant.name}, {plant.how}: {why}"


def slow_row(plant: slowness.Plant, those: Sequence[slowness.Play | str]) -> tuple[object, ...]:
    """What came of one plant."""
    done = [each for each in those if not isinstance(each, str)]
    counts = Counter(slowness.verdict(plant.wanted, each.blames) for each in done)
    cells = [counts[key] for key in ("named", "placed", "nobody")] if plant.wanted else ["–"] * 3
    quiet = "–" if plant.wanted else counts["quiet"]
    codes = ", ".join(map(str, sorted({code for each in done for code in each.codes})))
    says = Counter(map(told, done))
    words = " / ".join(f"{text} ({count})" if len(says) > 1 else text for text, count in says.most_common())
    seconds = f"{median(each.seconds for each in done):.1f}" if done else "–"
    return (plant.name, plant.how, len(done), *cells, counts["others"], quiet, codes, seconds, words)


def measure_training(asked: argparse.Namespace) -> int:
    """Predicted beside measured."""
    if reason := why_not():
        fail(reason)
    runs: list[training.Steps] = []
    for hosts in asked.hosts:
        for mbits in asked.mbits:
            runs.append(training.play(hosts, mbits))
            say(f"{hosts} hosts, {mbits} Mbit/s: {len(runs[-1].rows)} rows")
    return write(asked.out, training_report(runs, [(mbits, training.grouped(mbits)) for mbits in asked.mbits]))


def training_report(runs: Sequence[training.Steps], groups: Sequence[tuple[int, Sequence[GroupRow]]]) -> Iterator[str]:
    """The table of steps, how far predictions were off, and the table of groups."""
    yield from heading(
        "Steps of training over shaped links",
        "One gloo rank per host of a lab in network namespaces, each sending at most so much (tbf):",
        f"`{training.ASKED}`.",
        "Compute is matrix products on one processor per rank. predicted: from the time of each call alone and of the",
        "compute alone, measured in the same run; exposed: by what the step is longer than its compute.",
        "On 2 processors 4 ranks also wait for each other's compute.",
    )
    head = ("hosts", "Mbit/s", "step of", "overlap", "compute ms", "calls ms", "step ms", "predicted ms",
            "step / predicted", "exposed ms", "efficiency")  # fmt: skip
    yield from table(head, (training_row(run, row) for run in runs for row in run.rows))
    off = sorted(abs(row.step_us / row.predicted_us - 1) for run in runs for row in run.rows if row.predicted_us)
    if off:
        yield f"Of {len(off)} steps the median is {median(off):.0%} off its prediction, the worst {off[-1]:.0%}."
    yield from ("", "## tp=2,dp=2 on two hosts of two cards", "")
    columns = ("Mbit/s", "kind", "groups across hosts", "alone ms", "GB/s", "together ms", "GB/s", "slower")
    yield from table(columns, (groups_row(mbits, row) for mbits, rows in groups for row in rows))


def training_row(run: training.Steps, row: StepRow) -> tuple[object, ...]:
    """One strategy, with or without overlap."""
    times = [f"{us / 1e3:.1f}" for us in (row.compute_us, row.calls_us, row.step_us, row.predicted_us or 0)]
    ratio_of = f"{row.step_us / row.predicted_us:.2f}" if row.predicted_us else "–"
    shares = f"{row.exposed_us / 1e3:.1f}", f"{row.efficiency:.0%}"
    return (run.hosts, run.mbits, row.strategy, "yes" if row.overlap else "no", *times, ratio_of, *shares)


def groups_row(mbits: int, row: GroupRow) -> tuple[object, ...]:
    """One kind of group."""
    together = row.together_us or 0.0, row.together_busbw_GBps or 0.0
    alone = f"{row.alone_us / 1e3:.2f}", f"{row.alone_busbw_GBps:.3f}"
    return (mbits, row.kind, f"{row.crossing} of {row.groups}", *alone, f"{together[0] / 1e3:.2f}",
            f"{together[1]:.3f}", f"{row.slowdown or 0:.2f} x")  # fmt: skip


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The sub-command and its options, or exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, metavar="links | precision | slow | training")
    verb = verbs.add_parser("links", help="beside iperf3")
    verb.add_argument("--mbits", type=int, nargs="+", default=[100, 500, 1000])
    verb.add_argument("--rounds", type=int, default=7)
    verb.set_defaults(action=measure_links, out=REPORTS / "links-beside-iperf3.md")
    verb = verbs.add_parser("precision", help="±2 % beside 5 + 20 calls")
    verb.add_argument("--mbits", type=int, nargs="+", default=[0, 100, 1000], help="0: loopback")
    verb.add_argument("--sizes", nargs="+", default=["4K", "256K", "4M"])
    verb.add_argument("--pairs", type=int, default=9)
    verb.set_defaults(action=measure_precision, out=REPORTS / "time-to-precision.md")
    verb = verbs.add_parser("slow", help="named or not")
    verb.add_argument("--repeats", type=int, default=5)
    verb.add_argument("--select", default="", metavar="TEXT", help="only what has this in its name")
    verb.add_argument("--no-shown", action="store_true", help="not the bad NIC's and the stopped rank's reports")
    verb.set_defaults(action=measure_slow, out=REPORTS / "slowness.md")
    verb = verbs.add_parser("training", help="predicted beside measured")
    verb.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    verb.add_argument("--mbits", type=int, nargs="+", default=[100, 500])
    verb.set_defaults(action=measure_training, out=REPORTS / "training-steps.md")
    for each in verbs.choices.values():
        each.add_argument("--out", type=Path, metavar="PATH", help="where the table goes (default: reports/…)")
    asked = parser.parse_args(argv)
    if min([*getattr(asked, "mbits", [1]), 0]) < 0 or any(
        getattr(asked, name, 1) < 1 for name in ("rounds", "pairs", "repeats")
    ):
        parser.error("rates cannot be below zero, and everything is measured at least once")
    return asked


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the table."""
    asked = parse(sys.argv[1:] if argv is None else argv)
    os.chdir(ROOT)  # so that the commands shown in reports have no path of this machine
    try:
        return int(asked.action(asked))
    except LabError as error:
        fail(str(error))


if __name__ == "__main__":
    sys.exit(main())
