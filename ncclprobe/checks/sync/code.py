"""Whether all nodes run the same code, with the same packages."""

from collections.abc import Iterator

from ncclprobe.checks.sync import describe, named
from ncclprobe.errors import Unlearned
from ncclprobe.facts.code import Code
from ncclprobe.layout import first_of
from ncclprobe.model.findings import Finding, fail, note, warn
from ncclprobe.model.registry import applies, check
from ncclprobe.model.snapshot import Absent, Every, vote
from ncclprobe.model.values import replace
from ncclprobe.units import plural

_MOST_NAMED = 12
_OTHERS_BUSINESS = ("torch", "nvidia-nccl")
"""What sync.torch-cuda and sync.nccl-version compare."""

_ONE = Code("a" * 64, 12, "1" * 40, packages={"python": "3.11.7", "transformers": "4.57.1"})
_EDITED = replace(_ONE, digest="b" * 64)
_NEWER = replace(_EDITED, commit="2" * 40)


@applies
def code_given(codes: Every[Code | Absent]) -> bool:
    """where --code names the folder of the job's code, on several nodes."""
    return len(codes) > 1 and any(isinstance(each, Code) for _, each in codes.items())


@check(
    bad=lambda: [(Every({"n0": _ONE, "n1": _ONE, "n2": _NEWER}),)],
    good=lambda: [(Every({"n0": _ONE, "n1": _ONE}),)],
    required=True,
    applies=code_given,
)
def code(codes: Every[Code]) -> Iterator[Finding]:
    """Nodes have different code, or different versions of what it imports.

    Right: All nodes have the same code, and the same versions of what it imports.
    Why: ranks that run different programs call collectives in another order, or of another size, and hang without a
    message that names the file; another version of a package changes what is computed, or how it is sharded.
    Fix: check out one commit on all nodes, or copy the folder anew (rsync --delete); build one image, or install from
    one lock file.
    """
    yield from _trees(codes)
    names = sorted({name for _, each in codes.items() for name in each.packages})
    unlike = []
    for name in (each for each in names if not each.startswith(_OTHERS_BUSINESS)):
        ballot = vote({node: each.packages.get(name, "not installed") for node, each in codes.items()})
        if not ballot.agreed:
            unlike.append((name, ballot))
    for name, ballot in unlike[:_MOST_NAMED]:
        seen = "installed distributions"
        yield warn(name, describe(ballot), blame="image", action="fix-image", nodes=ballot.outliers, evidence=seen)
    if more := unlike[_MOST_NAMED:]:
        listed = first_of((name for name, _ in more), _MOST_NAMED)
        yield note("packages", f"{len(more)} more differ: {listed}", evidence="installed distributions")
    if cut := [node for node, each in codes.items() if each.cut or each.unread]:
        why = codes.by_node[cut[0]].cut or f"{codes.by_node[cut[0]].unread} of its files cannot be read"
        raise Unlearned(f"not all of the code of {named(cut)} is known: {why}")


def _trees(codes: Every[Code]) -> Iterator[Finding]:
    ballot = vote({node: each.digest for node, each in codes.items()})
    if ballot.agreed:
        return
    said = {each.digest: _told(each) for _, each in codes.items()}
    commits = {each.commit for _, each in codes.items()}
    same = "; the commit is the same: files were changed after it" if len(commits) == 1 and commits != {""} else ""
    message = describe(ballot, said.__getitem__) + same
    seen = "a digest of the names and contents of code files"
    outliers = ballot.outliers
    yield fail(named(outliers), message, blame="job", action="fix-job", nodes=outliers, evidence=seen)


def _told(code: Code) -> str:
    commit = f"commit {code.commit[:12]}, " if code.commit else ""
    return f"{commit}{plural(code.files, 'file')}, digest {code.digest[:12]}"
