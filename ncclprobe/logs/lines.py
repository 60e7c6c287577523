"""Rank the lines of a job's logs by how likely each gives the reason, without knowing what any of them means.

Evidence is a line's form (a level, an exception, a refusal, the text of an errno), its writer (a wrapper repeats what a
layer inside reported; a witness knows more than a rank that only heard of it) and whether it is unusual (one rank wrote
it; nothing worked after it). All evidence is weighed, so that no single word decides, and none of it is about a cause.
"""

import errno
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType

from ncclprobe.logs.job_log import SUMMARY, TALK, LogEvent
from ncclprobe.logs.layers import PROGRAM, Layer, inside, layer_of
from ncclprobe.logs.texts import ENDS, ERROR, RAISED_CLASS, form_of_failure
from ncclprobe.model.values import Struct

MOST_LINES = 3
WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "fatal": 4.0,
        "error": 3.0,
        "warning": 1.0,
        "exception": 3.5,
        "wrapping exception": -3.0,
        "reason": 2.5,
        "failure": 1.0,
        "errno": 1.5,
        "exit": 0.5,
        "exit code": -1.0,
        "return chain": 1.0,
        "named": 0.5,
        "outside": 2.0,
        "heading": -3.5,
        "advice": -3.0,
        "goes on": -2.5,
        "source or stack": -6.0,
        "long": -1.0,
        "wraps": -2.5,
        "launcher": -1.5,
        "hearsay": -2.0,
        "guess": -1.5,
        "follows": -1.5,
        "said before": -3.0,
        "common": -1.5,
        "one rank": 1.0,
        "worked after": -2.0,
        "early": 1.0,
    }
)
"""What each piece of evidence is worth, set by hand on labelled public logs, and so tuned to them; what they are worth
on other logs was not measured by them. tests/log/test_telling_lines.py has the lines that each decides between.
"""
_LEAST = 1.0
"""What a line must be worth: below that it does not speak of trouble."""
_INNER = 3.0
"""What a complaint of a layer inside must be worth for those of its wrappers to repeat it."""
_WITHIN, _LONG = 512, 400
_LEVEL_WITHIN, _ADVICE_WITHIN = 256, 80
_MOST_FORMS = 1 << 16
_FEW = 2
_DIGITS = str.maketrans("123456789", "0" * 9)


def _any(*words: str, flags: re.RegexFlag = re.IGNORECASE) -> "re.Pattern[str]":
    """Return a pattern that finds any of `words`, whole; none of them repeats without a bound."""
    return re.compile("|".join(rf"(?<![\w]){word}(?![\w])" for word in words), flags)


_FATAL = re.compile(
    r"\b(?:FATAL|CRITICAL|PANIC)\b|\bpanic: |\[F\]|(?:^| )[FC] \d{1,10} \d{1,10}\]|: F [a-z]|^F\d{4} \d|^fatal: "
    r"|\bAssertion [`'\"]"
    r"|\b[Ff]atal (?:\w{1,16} ){0,2}error\b|\blevel=\"?(?:fatal|panic)\b|\"(?:level|severity)\": ?\"(?:fatal|panic)\""
)
_ERROR = re.compile(
    r"\blevel=\"?err(?:or)?\b|\"(?:level|severity)\": ?\"(?:err(?:or)?|ERROR)\"|"
    r"(?:\b|_)ERROR\b|\b(?:SEVERE|ERR)\b|\berror: (?!-?\d)|\b[Ee]rror [a-z]+ing\b|\bError: |\[E\]"
    r"|(?:^| )E \d{1,10} \d{1,10}\]|: E [a-z]|^E\d{4} \d|^\[?E \w|^\s{0,8}Warning {2,12}[A-Z]|\bNVRM: Xid\b"
)
_WARNING = re.compile(
    r"\b(?:WARN|WARNING)\b|\b[Ww]arning: |\[W\]|(?:^| )W \d{1,10} \d{1,10}\]|: W [a-z]|^W\d{4} \d|<warn>"
)
_RAISED = re.compile(
    rf" {{0,4}}(?:what\(\): |[A-Za-z_][\w.]{{2,120}}(?:Error|Exception|Exit|Interrupt)(?:$|: |\()|{RAISED_CLASS})"
)
_REASONS = _any(
    "denied", "not found", "no such", "refused", "unreachable", "no route", "not supported", "unsupported", "mismatch",
    "invalid", "illegal", "insufficient", "not enough", r"exceed(?:s|ed)?", r"out of(?! \d)", "no space",
    r"no (?:\w{1,16} ){0,3}(?:available|eligible|found|configured|detected|provided|methods?)",
    "corrupt(?:ed|ion)?", "unauthorized", "forbidden", "expired", "in use(?: by)?", "busy",
    "too (?:small|large|many|few|long|old|new|low|high)", "undefined symbol", r"unrecogni[sz]ed", "unknown(?!: )",
    "duplicate", "incompatible", "missing", "preempt(?:ed|ion)?", "reclaimed", "fallen off",
    "not (?:accessible|allowed|available|built|compiled|detected|enumerated|implemented|installed|loaded|mounted)",
    "not (?:permitted|ready|responding|set|writable)", "not (?:a )?valid", "bus error",
    "segmentation (?:fault|violation)", "assert(?:ion)?", "does(?: not|n't)", "do not match", "empty list", "neither",
    "(?:could not|couldn't|can't|can ?not|unable to) (?:find|resolve|open|read|load|insert|allocate|bind|determine)",
    "(?:could not|couldn't|can't|can ?not|unable to) (?:select|mount|parse|access|contact)",
    "differs?", "no data available",
    "(?:temporarily )?unavailable", "uncorrectable", "lost", "empty", "overflow", "nan", "must (?:be|have|match)",
    "expected", "limit(?:s|ed)?", "is too", "killed", "interruption", "cancelled", "quota", "wrong", "divisible",
    "hardware (?:error|exception|fault)", "check failed", r"misconfig\w{0,24}", "(?:is|are) required",
    "unexpected (?:nan|result|keyword|values?|types?|tokens?)", r"bad (?!alloc)\w{3,16}", "(?:has|have) only",
    r"more \w{1,16} (?:\w{1,16} )?than", "(?:less|fewer|greater|larger|smaller|lower|higher) than", "exhausted",
    "(?<!action )required(?=[.!;,]|$)", "no active", "is full", "not yet initiali[sz]ed",
    r"cannot be (?:parsed|read|opened|loaded|found|resolved|used|mounted|created)",
)  # fmt: skip
"""Words for something lacking, wrong or unexpected: a reason, of any kind."""
_FAILURES = _any(
    r"fail(?:ed|s|ure|ures|ing)?", r"abort(?:ed|ing)?", r"crash(?:ed|es)?", "timed out", r"time-?out", "exception",
    "died", "dead", "terminated", "unexpected(?:ly)?", "stuck", "hang", "fault", "broken", "skipping", "unhandled",
    "skipped", "disabled", "(?:could not|couldn't|can't|can ?not|unable to) [a-z]+", "may be stuck",
    "deadline[ _]exceeded",
)  # fmt: skip
_EXIT_CODE = _any(
    r"exit(?:ed|s)?(?: with)?(?: exit)?[ _]?(?:code|status)", "exitcode", "return code", "non-zero status"
)
"""How a process ended, which never gives the reason."""
_EXIT = _any(
    r"signals? \d{1,2}", "SIG[A-Z]{3,5}", "core dumped",
)  # fmt: skip
_SHELL = re.compile(
    r"Program received signal "
    r"|(?:.{1,80}: line \d{1,6}: {1,8}\d{1,10} )?(?:Aborted|Killed|Segmentation fault|Bus error)"
    r"(?: \(core dumped\))?\s{0,4}$"
)
"""A shell's report that a signal ended a program: never the reason."""
_CHAIN = re.compile(r" -> [1-9]\d{0,2}(?:$| \[)")
_HEADS = (":", "...")
_ADVICE = _any(
    "to enable", "for more (?:info|details|information)", "please (?:try|see|check|refer|make sure)", "make sure",
    "to find out", "see (?:the|https?)", "for debugging", "compile with", "this usually is caused by", "you can also",
    "consider (?:setting|passing|decorating|using)", "to avoid", "could be caused by", "might be asynchronously",
    "if (?:you|your|this|the)", "usually means", "most likely caused by", "run with", "to troubleshoot",
)  # fmt: skip
_GOES_ON = _any(
    r"retry(?:ing)?(?! count| limit| exceed)", "falling back", "fallback", r"ignor(?:ed|ing)", "instead",
    "using internal", "won't affect",
    "deprecated", r"\w{1,16}Warning", "continuing", "still trying", "set by environment", "closing",
    "setting [A-Z_]{4,40} ?environment", "will use", "default(?:ing)? to", "may not be optimal", "optional",
)  # fmt: skip
_SOURCE = re.compile(
    r"\s{0,16}(?:raise |return |self\.|await |yield |with |File \"|at |\^{2}|~{2}|[*+-] |\d{1,3} {1,16}0x|#\d{1,3} )"
    r"|frame #\d|\s{0,8}\d{1,3}[ :#]{1,12}(?:0x[0-9a-f]|\S{1,200}\(\+?\w{0,200}\+0x)|Traceback \("
    r"|terminate called|\s{4}\S|Exception raised from |\+ |={3}|-{3}"
)
_HEARSAY = _any(
    "remote process", "by (?:remote )?peer", "another rank", "other ranks?", "some ranks?", "Connection reset",
    "closed by", "broken pipe", "SIGTERM", "SIGQUIT", "sigquit", r"received.{0,24}signal", r"heartbeats?",
    "no such process", "unhandled (?:system|cuda)", "internal error", "got 0 bytes", "flight recorder", "subsequent",
    "data inconsistency", "dump signal", r"(?:timed out|timeout) (?:while )?wait(?:ing)?", "wait timeout", "child",
    "subprocess", "MPI_ERRORS_ARE_FATAL", "connection closed", "(?:see|failures?|errors?) above", "root cause",
    "most likely",
    "possible reasons", "potential root causes", "reported by", "library call failed", "see inner",
    "exception (?:was|ignored|in)", "operations have failed", "entire process down", "(?:could|can) happen because",
    "(?:may|might) be (?:due to|caused by)",
)  # fmt: skip
_COULD_NOT = r" not| no | only| be (?!caused|related|triggered)(?:[a-z]{1,16}ed|found|read|sent|set|built|run)\b"
"""What follows "could" if that is no guess: none could be loaded, only two could be found."""
_GUESS = _any(
    "can (?:lead|cause)", "might", "may", rf"could(?!{_COULD_NOT})", r"possibl[ey]", "probably", "likely", "perhaps"
)
_NAMED = re.compile(
    r"\b(?:rank|node|host|GPU|gpu|task|device|port|pid) ?[#=:]? ?\d|[\w)]/[\w.-]|'[^'\s]{2,80}'|\"[^\"\s]{2,80}\""
    r"|\b\w{1,16}_\d{1,4}\b|\d{1,3}\.\d{1,3}\.\d{1,3}\.\d|\w<\d|\w=\w"
)
"""Something by its name: a rank, a device, a path, an address, a value."""
_LAUNCHERS = frozenset(("launcher", "scheduler"))
_WARN_IS_ERROR = frozenset(("nccl", "rccl", "network-plugin", "libfabric"))
"""Layers that give their errors the level WARN."""
_OUTSIDE = frozenset(("kernel", "cloud", "terminal"))
"""Layers that act themselves, and say it at any level."""


@cache
def _errnos() -> "re.Pattern[str]":
    """Return a pattern that finds the C library's text for any errno."""
    texts = {os.strerror(number) for number in errno.errorcode}
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)), re.IGNORECASE)


@cache
def _errnos_of_others() -> frozenset[str]:
    """Return the texts that the C library has for what a peer does."""
    of_peers = (errno.ECONNRESET, errno.ECONNREFUSED, errno.EPIPE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EINTR)
    return frozenset(os.strerror(number).lower() for number in of_peers)


class _Form(Struct, frozen=True):
    """What the form of a line alone is worth, and the layer of its writer."""

    worth: float
    layer: Layer
    warns: bool = False


_OF_OTHERS = _any(
    r"(?:dis)?connect\w{0,4}", r"peers?(?! access|-to-peer| GPU| memory)", "socket", "unreachable",
    "no route", "timed out", "time-?out",
    r"deadline[ _]exceeded", r"heartbeats?", "other ranks?", "another rank", "remote", "workers?", r"child\w{0,3}",
    r"subprocess\w{0,2}", "exited", "exit ?code", "exit status", "non-?zero", "return code", "killed", "terminated",
    "died", "dead", "crashed", "shut ?down", "closed", r"interrupt\w{0,2}", r"cancel\w{0,4}", r"abort\w{0,3}",
    "see above", "root cause", "previous error", r"[nrh]ccl(?:result|comm|proxy)\w{0,40}",
    r"[nrh]ccl\w{0,8} (?:error|failure)", "gloo", "rendezvous", "barrier", "collectives?",
    r"preempt\w{0,2}", "signal", "segmentation (?:fault|violation)", "bus error",
)  # fmt: skip
"""Forms of lines that may repeat what happened to another process, or that give no reason."""
_STRONG, _WRAPPED = 3.0, 4
"""What a line must be worth by its looks to be a cause; so many clauses are of wrappers, each around the next."""
_TOLD, _BEFORE, _NEAR = 160, 100, 48


def layer_report(event: LogEvent) -> str:
    """Return a line as its layer's report; of a long one only the part around its reason: wrappers come first."""
    text, layer = " ".join(event.text.split()), layer_of(event)
    if head := _HEAD.match(text):
        text = text[head.end() :]
    if len(text) > _TOLD:
        why = text.find(reason_of(event.text))
        at = why - _BEFORE if why > _TOLD - _NEAR else 0
        ends = (found.end() for found in (_CLAUSE.finditer(text, at) if at else ()))
        clause = next((end for end in ends if end <= why and text.count("(", at, end) <= text.count(")", at, end)), 0)
        cut = text[clause or at :][:_TOLD]
        text = f"{cut} …" if clause or not at else f"… {cut.partition(' ')[2]} …"
    return text if layer is PROGRAM else f"{layer.title} reports: {text}"


_CLAUSE = re.compile(r"(?:[:;] |\]:? |[.)] (?=[A-Z])| - |, stderr: )(?=[\w'\"/.][\w'\"/.-]{0,64}[:)]? [\w'\"/])")
"""What stands between the parts of a long line."""
_HEAD = re.compile(
    r"(?:\[\d{10}\.\d{1,9}\] |\[[\w.-]{1,64}:\d{1,10}(?: {0,3}:\d{1,5})?\] {1,12}"
    r"|\[ {0,8}[+]?\d{1,10}\.\d{6}\] |\[?(?:ERROR|FATAL|CRITICAL)\]?[:|]? {1,4})+"
)
"""What a program writes before its own words, which says nothing of the trouble."""


def reason_of(text: str) -> str:
    """Return the words of a reason, of any kind, or the text of an errno, that a line holds; empty: none.

    If many have wrapped the line, or it is too long for a message, return its last clause that has any.
    """
    for clause in _clauses(text):
        if found := _reason(clause):
            return found
    return ""


def _reason(clause: str) -> str:
    found = _REASONS.search(clause) or _errnos().search(clause)
    return found[0] if found else ""


def _clauses(text: str) -> Iterator[str]:
    """Yield a line; of one that many have wrapped its clauses of several words, the last first."""
    if len(text) <= _WITHIN and text.count(": ") < _WRAPPED:
        yield text
    else:
        yield from (each for each in reversed(text[-_WITHIN:].split(": ")) if " " in each.strip())


def states_reason(event: LogEvent, *, ended: bool) -> bool:
    """Return whether a line gives the reason why its process failed: an error by its form, with a reason of its own.

    `ended`: something else shows that a process of the job ended badly, or the log ends there. Without it, the program
    may have gone on after an error that a logger writes.
    """
    form = ENDS if event.level in ("EXCEPTION", "FATAL") else form_of_failure(event.text, event.level)
    layer = layer_of(event).name
    if layer == "ssh" and ended and not event.level:
        return True
    of_call = event.level == "WARN" and form_of_failure(event.text) == ERROR
    warns = not form and layer not in _WARN_IS_ERROR and not of_call
    if form < ENDS and (not ended or warns or (form < ERROR and _look(event).worth < _STRONG)):
        return False
    return has_own_reason(event.text)


def says_only_of_others(text: str) -> bool:
    """Return whether a line speaks of a peer, a connection or another process, and gives no reason."""
    return bool(_OF_OTHERS.search(text[:_WITHIN])) and not reason_of(text)


def has_own_reason(text: str) -> bool:
    """Return whether a line has words of a reason, and does not say them of another process."""
    clause = next((each for each in _clauses(text) if _reason(each)), "")
    clause = clause[: clause.find(_reason(clause)) + _NEAR]
    own = _errnos().search(clause)
    of_others = _OF_OTHERS.search(clause) and (own is None or own[0].lower() in _errnos_of_others())
    return bool(clause) and not of_others and not _HEARSAY.search(clause)


def telling_lines(
    events: Sequence[LogEvent], harmless: Callable[[LogEvent], bool] = lambda _: False
) -> tuple[LogEvent, ...]:
    """Return the one to three lines that most likely explain the failure of a job, most likely first; empty if none
    does.

    `events` are those of all ranks, each log in its order; `harmless` returns whether a line is known to mean nothing.
    """
    order = _order(events)
    worth = _weighed(events, order)
    early = WEIGHTS["early"] / max(len(order), 1)
    best = sorted(
        ((worth[at] - early * place, -place, at) for place, at in enumerate(order) if worth.get(at, 0) >= _LEAST),
        reverse=True,
    )
    found = list[LogEvent]()
    doubted = list[LogEvent]()
    forms = set[str]()
    for _, _, at in best:
        event = events[at]
        if len(found) == MOST_LINES:
            break
        if (form := _form(event)) in forms:
            continue
        forms.add(form)
        (doubted if harmless(event) else found).append(event)
    return tuple((found + doubted)[:MOST_LINES]) if found else ()


class _Told:
    """What is known of the forms of all events: which ranks say each, how often each log does, and the last steps."""

    def __init__(self, events: Sequence[LogEvent]) -> None:
        self.forms = [_form(event) for event in events]
        self.often = Counter((event.stream, form) for event, form in zip(events, self.forms, strict=True))
        self.ranks: dict[str, set[int]] = {}
        self.last_step: dict[int, int] = {}
        for event, form in zip(events, self.forms, strict=True):
            if event.rank is not None:
                self.ranks.setdefault(form, set()).add(event.rank)
            if event.step is not None:
                self.last_step[event.stream] = max(event.step, self.last_step.get(event.stream, 0))
        self.nranks = len(set[int]().union(*self.ranks.values()))

    def unusual(self, event: LogEvent, form: str) -> float:
        """Return what it is worth that few say a line, and that nothing worked after it."""
        total = 0.0
        if self.nranks > _FEW and len(self.ranks.get(form, ())) == 1:
            total += WEIGHTS["one rank"]
        if event.step is not None and self.last_step[event.stream] > event.step:
            total += WEIGHTS["worked after"]
        if event.level in ("", "WARN") and self.often[event.stream, form] > _FEW:
            total += WEIGHTS["common"]
        return total


def _weighed(events: Sequence[LogEvent], order: Sequence[int]) -> dict[int, float]:
    """Return what each event that may speak of trouble is worth, by its number; without its place in the order."""
    told = _Told(events)
    worth: dict[int, float] = {}
    layers: dict[int, Layer] = {}
    first: dict[str, int] = {}
    looks: dict[tuple[str, str, str], _Form] = {}
    said = set[tuple[int, str]]()
    complained = set[tuple[int, str]]()
    for place, at in enumerate(order):
        event, form = events[at], told.forms[at]
        key = form, event.level, event.place
        if (look := looks.get(key)) is None:
            look = _look(event)
            if len(looks) < _MOST_FORMS:
                looks[key] = look
        if look.worth <= 0:
            continue
        total = look.worth + told.unusual(event, form)
        total += WEIGHTS["said before"] if (event.stream, form) in said else 0.0
        own = event.stream, look.layer.name
        total += WEIGHTS["follows"] if look.layer is not PROGRAM and own in complained else 0.0
        said.add((event.stream, form))
        worth[at], layers[at] = total, look.layer
        if total >= _INNER and not look.warns:
            first.setdefault(look.layer.name, place)
            complained.add(own)
    places = {at: place for place, at in enumerate(order)}
    for at, layer in layers.items():
        repeats = [first[name] for name in inside(layer.name) if name in first]
        if repeats and (layer is not PROGRAM or min(repeats) < places[at]):
            worth[at] += WEIGHTS["wraps"]
    return worth


def _form(event: LogEvent) -> str:
    """Return a line without what ranks write differently in one message: numbers and addresses."""
    return event.text[:_WITHIN].translate(_DIGITS)


def _order(events: Sequence[LogEvent]) -> list[int]:
    """Return the numbers of the events in the order of their times.

    Lines without a time follow the line before them in their log, so that a traceback stays beneath its heading.
    """
    if len({event.stream for event in events}) < 2:
        return list(range(len(events)))
    keys = list[tuple[float, int]]()
    known: dict[int, float] = {}
    for at, event in enumerate(events):
        if event.time_s is not None:
            known[event.stream] = event.time_s
        keys.append((known.get(event.stream, float("-inf")), at))
    return [at for _, at in sorted(keys)]


def _look(event: LogEvent) -> _Form:
    """Return the weight of a line by its form, whatever other lines report."""
    text, layer = event.text[:_WITHIN], layer_of(event)
    if event.level in TALK and layer.name not in _OUTSIDE:
        return _Form(WEIGHTS["return chain"] if _CHAIN.search(text) else 0.0, layer)
    total = level = _level_weight(event, text, layer)
    if layer.name in _OUTSIDE:
        total += WEIGHTS["outside"]
    if _GUESS.search(text[: _LONG // 2]):
        total += WEIGHTS["guess"]
    if _NAMED.search(text):
        total += WEIGHTS["named"]
    if _ADVICE.search(text[:_ADVICE_WITHIN]):
        total += WEIGHTS["advice"]
    if _SOURCE.match(text) and layer.name not in _OUTSIDE:
        total += WEIGHTS["source or stack"]
    for name, words in _WORDS.items():
        if words.search(text):
            total += WEIGHTS[name]
    if layer.name == "ssh":  # it says of a connection that it has not come about, which is its own failure
        total += WEIGHTS["error"] if not event.level else 0.0
    elif _HEARSAY.search(text):
        total += WEIGHTS["hearsay"]
    else:
        total += WEIGHTS["reason"] if _REASONS.search(text) else 0.0
        total += WEIGHTS["errno"] if _errnos().search(text) else 0.0
    if _CHAIN.search(text):
        total += WEIGHTS["return chain"]
    if len(text) < _LONG // 2 and text.rstrip().endswith(_HEADS) and event.level != "CUT OFF":
        total += WEIGHTS["heading"]
    if len(event.text) > _LONG:
        total += WEIGHTS["long"]
    if layer.name in _LAUNCHERS:
        total += WEIGHTS["launcher"]
    return _Form(total, layer, level == WEIGHTS["warning"])


_WORDS = {
    "failure": _FAILURES,
    "exit": _EXIT,
    "exit code": _EXIT_CODE,
    "goes on": _GOES_ON,
}


def _level_weight(event: LogEvent, text: str, layer: Layer) -> float:
    """Return what the level is worth that the reader, the line's logger or its exception gives.

    NCCL has no level above WARN.
    """
    head, level = text[:_LEVEL_WITHIN], event.level
    if level in ("OUTER", "CAUGHT"):
        return WEIGHTS["exception"] + WEIGHTS["wrapping exception"]
    if level == "EXCEPTION" or _RAISED.match(head):
        return WEIGHTS["exception"]
    if _SHELL.match(head):
        return WEIGHTS["exit"]
    form = ERROR if level in SUMMARY else form_of_failure(text, level)
    if form == ENDS or _FATAL.search(head):
        return WEIGHTS["fatal"]
    if form == ERROR or _ERROR.search(head) or (level == "WARN" and layer.name in _WARN_IS_ERROR):
        return WEIGHTS["error"]
    if level == "WARN" or _WARNING.search(head):
        return WEIGHTS["warning"]
    return 0.0
