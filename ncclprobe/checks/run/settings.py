"""Do the ranks of a run have the same settings?"""

from collections.abc import Iterator, Sequence

from ncclprobe.checks.sync.settings import MUST_AGREE, UNSET
from ncclprobe.facts.run.samples import DifferingSetting, Ending, Participants, RankSettings
from ncclprobe.model.findings import Finding, fail, seen, warn
from ncclprobe.model.hostlist import fold
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent
from ncclprobe.nccl.parameters import table

_FOUR = Participants("torchrun", 4, ("n0", "n0", "n1", "n1"), "nccl")
_PROTO = DifferingSetting("NCCL_PROTO", ((UNSET, (0, 2, 3)), ("LL", (1,))))
_WHOLE = Ending()


@applies
def settings_told(settings: RankSettings | Absent) -> bool:
    """where the ranks have told their settings."""
    return isinstance(settings, RankSettings)


@check(
    slows=True,
    bad=lambda: [(RankSettings((_PROTO,)), _FOUR, _WHOLE)],
    good=lambda: [(RankSettings(()), _FOUR, _WHOLE)],
    applies=settings_told,
)
def settings(settings: RankSettings, participants: Participants, ending: Ending | Absent) -> Iterator[Finding]:
    """Ranks have different settings of NCCL, torch or gloo.

    Right: All ranks have the same settings.
    Why: each rank chooses algorithm, protocol, buffers and network by its own settings and never compares them with the
    others': where they disagree the first call hangs, and no library names the variable.
    Fix: set the variable in one place for all ranks: the job script with srun --export or mpirun -x, or none.
    """
    whole = isinstance(ending, Ending) and not ending.why
    for each in settings.differing:
        odd = ranks_that_differ(each)
        hosts = participants.hosts
        by_host = {(hosts[rank], value) for value, ranks in each.values for rank in ranks}
        if len(by_host) == len({*hosts}) and whole:  # the ranks of each node agree
            continue
        tell = fail if each.name in MUST_AGREE else warn
        yield tell(
            each.name,
            in_words(each),
            blame="job",
            action="fix-job",
            evidence=seen("the ranks", "what each would pass to its libraries, told before the first call"),
            nodes=tuple(dict.fromkeys(hosts[rank] for rank in odd)),
        )


def in_words(each: DifferingSetting) -> str:
    """Return the values with their ranks, the most usual first, and what becomes of ranks that disagree."""
    ordered = sorted(each.values, key=lambda value: -len(value[1]))
    words = ", ".join(f"{value if value == UNSET else f'is {value}'} on {_listed(ranks)}" for value, ranks in ordered)
    parameter = table().get(each.name)
    return f"{words} ({parameter.hazard})" if parameter and parameter.hazard else words


def ranks_that_differ(each: DifferingSetting) -> tuple[int, ...]:
    """Return the ranks whose value is not the most usual one."""
    usual = max(each.values, key=lambda value: len(value[1]))
    return tuple(sorted(rank for value in each.values if value is not usual for rank in value[1]))


def _listed(ranks: Sequence[int]) -> str:
    text = fold(map(str, ranks)).strip("[]")
    return f"rank {text}" if text.isdecimal() else f"ranks {text}"
