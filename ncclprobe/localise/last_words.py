"""What the last words of a process say, in whatever program's wording: for a line that no check and no row knows.

Projects word their errors each in their own way, but what they lack has few names: memory, a file, a permission, an
option, a version, a shape. Only a line that ends its process is read so. What it says of others (a peer, a connection,
a worker that exited) is a consequence as often as a cause, and stays unknown.
"""

import re
from typing import NamedTuple

from ncclprobe.facts.files.job_log import LogEvent
from ncclprobe.facts.files.texts import ENDS, ERROR, form_of_failure
from ncclprobe.model.findings import Action, Blame

_WITHIN = 512
_CRASHED = ("rank-crashed",)


class LastWords(NamedTuple):
    """What a line lacks, in `message`; the words that it says it by; what to do; the codes that it may be."""

    message: str
    words: str
    remedy: str
    codes: tuple[str, ...] = _CRASHED
    blame: Blame = "unknown"
    action: Action = "none"


def _any(*words: str) -> str:
    """Return a pattern that finds any of `words`, in capitals or not; none of them repeats without a bound."""
    return "(?i)" + "|".join(rf"\b{word}\b" for word in words)


_OF_OTHERS = _any(
    r"(?:dis)?connect\w{0,4}", r"peers?", "socket", "unreachable", "no route", "timed out", "time-?out",
    "deadline exceeded", r"heartbeats?", "other ranks?", "another rank", "remote", "workers?", r"child\w{0,3}",
    r"subprocess\w{0,2}", "exited", "exit ?code", "exit status", "non-?zero", "return code", "killed", "terminated",
    "died", "dead", "crashed", "shut ?down", "closed", r"interrupt\w{0,2}", r"cancel\w{0,4}", r"abort\w{0,3}",
    "see above", "root cause", "previous error", r"[nrh]ccl\w{0,40}", "gloo", "rendezvous", "barrier", "collectives?",
    r"preempt\w{0,2}", "signal",
)  # fmt: skip
"""Of lines that may repeat what happened to another process, or that name no reason."""

_REASONS = (
    LastWords(
        "memory is full, or a limit of it reached",
        _any(r"out of (?:\w{1,12} )?memory", r"(?:insufficient|not enough|no available) (?:\w{1,12} )?memory",
             "memory (?:is )?exhausted", "out of resources", "resource exhausted", "bad alloc", "memoryerror",
             r"(?:can ?not|failed to|unable to) (?:re)?allocate (?:\w{1,12} )?memory"),
        "lower what the job holds (batch, cache, workers), or give it the memory that the line asks for",
        ("oom",), "job", "fix-job",
    ),
    LastWords(
        "a disk is full, or what its user may keep there",
        _any("no space left", "disk quota exceeded", "disk is full", r"not enough (?:\w{1,12} )?disk space"),
        "make room on the file system of the path that the line or its stack names, or write elsewhere (df -h, df -i)",
    ),
    LastWords(
        "a device reports an error of its own",
        _any("hardware (?:error|exception|fault)", "(?:gpu|device|engine) hang", "uncorrectable", "machine check",
             "parity error", "double bit"),
        "the kernel's log of that host and minute tells a fault of the device from a wild access of the program",
        ("gpu-hw-error", "rank-crashed"),
    ),
    LastWords(
        "a check within the program failed",
        _any("check failed", "assertion", "assertion ?error", "precondition"),
        "the condition that the line names did not hold: correct what led to it, or report it to the program's makers",
    ),
    LastWords(
        "access was refused to the program",
        _any("permission denied", "access (?:is )?denied", "unauthorized", "forbidden", "authentication failed",
             "not authorized", "operation not permitted", "gated repo", "invalid (?:api )?(?:token|key|credentials?)"),
        "give the user of the job the right, the key or the token that the line names",
    ),
    LastWords(
        "the program refuses its options or settings",
        _any("un(?:recognized|known) (?:arguments?|options?|flags?|keys?)", "no such option", "ambiguous option",
             r"invalid (?:arguments?|options?|choice|values?|config\w{0,12}|settings?)", r"misconfig\w{0,24}",
             "(?:arguments?|options?) (?:are|is) required", r"missing (?:\w{1,12} ){0,3}arguments?",
             "unexpected keyword", "expected one argument", "(?:must|should) (?:be|have|not)", "divisible",
             "(?:is|are) not (?:a )?(?:valid|allowed)", "out of range", "not in list"),
        "correct the option or setting that the line names",
        _CRASHED, "job", "fix-job",
    ),
    LastWords(
        "a version or a device does not fit, or lacks what is asked of it",
        _any("(?:not|un)[ -]?supported", "not implemented", "unimplemented", "incompatible", "not compatible",
             r"requires (?:\w{1,24} ){0,4}versions?", "version mismatch", "undefined symbol", "no kernel image",
             "(?:compiled|built) (?:with|without|for)", "is too old"),
        "install the version, or take the hardware or the feature, that the line names",
    ),
    LastWords(
        "something that the program needs is not there",
        _any("no such file", "not found", "no module named", "does not exist", "doesn't exist", "not installed",
             "(?:can ?not|could not|couldn't|unable to|failed to) (?:find|open|load|read|locate|import|download)",
             "is missing", "not available", r"no (?:\w{1,12} ){0,2}(?:gpus?|devices?) found"),
        "put the file, module, name or device there that the line names, on the host and in the image of this rank",
    ),
    LastWords(
        "what the program compares does not agree",
        _any(r"mismatch\w{0,4}", r"invalid (?!argument)\w{1,24}", "does(?: not|n't) match", "do not match",
             "must match", "expected", "inconsistent",
             r"(?:wrong|different) (?:size|shape|dtype|type|device|number)\w{0,2}", "nan", "overflow"),
        "correct the sizes, types or values that the line names",
        _CRASHED, "job", "fix-job",
    ),
)  # fmt: skip
"""The first whose words a line holds. What follows in a line is often what came of it, so the graver come first."""


def last_words(line: LogEvent, *, ended: bool) -> LastWords | None:
    """Return what a process's last line says; None: it says it of others, or in no words of these.

    `ended`: something else tells that a process of the job ended badly; without it an error that a logger writes may
    be one that the program went on from.
    """
    form = ENDS if line.level in ("EXCEPTION", "FATAL") else form_of_failure(line.text, line.level)
    if form < (ERROR if ended else ENDS):
        return None
    text = line.text[:_WITHIN].replace("_", " ")
    found = next((each for each in _REASONS if re.search(each.words, text)), None)
    of_others = found is not None and "oom" not in found.codes and re.search(_OF_OTHERS, text)
    return None if of_others else found
