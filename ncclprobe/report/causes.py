"""Show why a job failed, on one screen: cause, its line, whose fault, what to do; consequences below."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from ncclprobe import page
from ncclprobe.model.causes import Cause, JobVerdict, Suspect
from ncclprobe.model.findings import Evidence, Finding, Severity
from ncclprobe.model.layout import Style, unstyled, wrap
from ncclprobe.model.report import Report
from ncclprobe.model.units import plural, printable
from ncclprobe.report import causes, digest
from ncclprobe.report.digest import when

_MOST_CAUSES = 3
_ONE_SCREEN, _FEWEST, _OF_FURTHER = 25, 12, 4
"""Lines of an answer, the fewest for its first cause, and the most for each further cause; -v shows all."""
_MOST_EVIDENCE, _MOST_STEPS, _MOST_CONSEQUENCES = 3, 2, 3
_MOST_QUOTED, _MOST_OF_THE_END = 300, 120
_LEAD = "   "
_WIDER = ("The job's settings are at fault", "The job's settings or its program are at fault")
_STATUS = {"named": "fail", "narrowed": "warn", "unknown": "unknown"}


def render(report: Report, *, width: int = 80, verbose: bool = False, style: Style = unstyled) -> str:
    """Render the causes as text, no wider than `width` if words allow. Ends with a newline."""
    width = max(width, 40)
    told = 0 if verbose or _standing_cause(report) is None else 1
    shown = report.causes if verbose else report.causes[told : told + _MOST_CAUSES]
    left = len(report.causes) - told - len(shown)
    nothing = [] if shown else [[*_nothing_to_name(report, width)]]
    before = [[*_standing(report, width, style)]] if report.standing else nothing
    if shown and report.outcome == "unknown":
        before += [["No failure in what was read."]]
    causes = [[*_cause(cause, width, style, verbose, label(report, cause))] for cause in shown]
    after = [[f"{plural(left, 'further cause')}; -v shows all"]] * (left > 0)
    after += [[*_rest(report, width)], [*_preflight_hint(report, width)]]
    if verbose:
        return _joined([*before, *causes, *after])
    further = [_shorten(lines, _OF_FURTHER) for lines in causes[1:]]
    room = _ONE_SCREEN - sum(len(block) + 1 for block in (*before, *further, *after) if block)
    blocks = [*before, *(_shorten(lines, max(room, _FEWEST)) for lines in causes[:1]), *further, *after]
    return _joined(blocks if report.standing else [_shorten(_joined(blocks).splitlines(), _ONE_SCREEN)])


def _joined(blocks: Sequence[Sequence[str]]) -> str:
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _shorten(lines: Sequence[str], most: int) -> Sequence[str]:
    """Return the first `most` lines; the last one says how many follow."""
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"{_LEAD}… {len(lines) - most + 1} more lines; -v shows all"]


def quiet(report: Report) -> str:
    """Return one line: the first cause, and how many more there are."""
    more = f" (+{len(report.causes) - 1} more)" if len(report.causes) > 1 else ""
    return f"{headline(report)}{more}\n"


def headline(report: Report) -> str:
    """Return the first cause in one line, or a line that says there is none."""
    if report.standing:
        return printable(f"{report.standing.word}  {report.standing.message}")
    if not report.causes:
        return _nothing(report)
    first = report.causes[0]
    return printable(f"{_sentence(first)} [{' or '.join(first.could_be) or first.code}]")


def _sentence(cause: Cause) -> str:
    """Prefix a cause's message with the ranks and hosts that it does not name itself."""
    ranks, nodes = who(cause.ranks, ()), digest.folded(cause.nodes)
    own = [each for each in (ranks, nodes) if each and not re.search(rf"(?<!\w){re.escape(each)}(?!\w)", cause.message)]
    return f"{', '.join(own)}: {cause.message}" if own else cause.message


def _standing(report: Report, width: int, style: Style) -> Iterator[str]:
    """Yield the state of a running job: the verdict, and a row for each class of its ranks."""
    found = report.standing
    if found is None:
        return
    first, *rest = wrap(f"{found.word}  ", found.message, width)
    yield style(first[: len(found.word)], _WORDS[found.word]) + first[len(found.word) :]
    yield from rest
    if (first_cause := _standing_cause(report)) and found.word == "STUCK":
        if not _contains(found.message, first_cause.message):
            yield from wrap(_LEAD, f"{who(first_cause.ranks, first_cause.nodes)}: {first_cause.message}", width)
        if first_cause.remedy:
            yield from wrap(f"{_LEAD}what to do: ", first_cause.remedy, width)
        fault = f"{blamed(first_cause)} " if first_cause.blame != "unknown" and not first_cause.remedy else ""
        yield from wrap(_LEAD, f"{fault}[{first_cause.code}] {page(first_cause.id)}", width)
    yield ""
    wide = max((len(each.name) for each in report.classes), default=0)
    for name, ranks, where, doing in class_rows(report):
        place = f"{ranks} {where}" if where else ranks
        known = doing if not _contains(found.message, doing) else "as above"
        yield from wrap(f"{_LEAD}{name:<{wide}}  ", f"{place}: {known}", width, 16)
    yield ""
    yield from wrap(_LEAD, looked(found), width)
    if found.prepare:
        yield from wrap(f"{_LEAD}to see more: ", found.prepare, width)


def _contains(headline: str, text: str) -> bool:
    """Return whether a headline contains all words of a text about ranks; its verb may be in another tense."""
    return {*text.replace(":", " ").split()} - {"is", "are"} <= {*headline.replace(":", " ").split()}


def _standing_cause(report: Report) -> Cause | None:
    """Return the cause that holds up a running job."""
    first = report.causes[0] if report.standing and report.causes else None
    return first if first and any(first.message == each.doing for each in report.classes) else None


def looked(found: JobVerdict) -> str:
    """Describe when and how long a running job was observed, and how many of its ranks reported on themselves."""
    more = f"; {found.sources}" if found.sources else ""
    return f"observed for {found.looked_s:g} s, until {digest.when(found.looked_at)}{more}"


def class_rows(report: Report) -> Iterator[tuple[str, str, str, str]]:
    """Yield each class of a running job's ranks: its name, the ranks, their hosts, and their activity."""
    for each in report.classes:
        where = ", ".join(each.nodes) if each.ranks else digest.folded(each.processes)
        yield each.name, who(each.ranks, ()), where, each.doing


_WORDS = {"STUCK": "fail", "SLOW": "warn", "WORKING": "pass", "CANNOT TELL": "unknown"}


def _nothing_to_name(report: Report, width: int) -> Iterator[str]:
    """Describe that the job ended well, with the lines that report it; or that no line does, and where the log ends."""
    yield from wrap("", _nothing(report), width)
    yield from _quote(report.ended_well[:_MOST_EVIDENCE], width)
    yield from _stands(report, width)
    if report.outcome != "failed":
        looked = f"looked at: {', '.join(report.files)}; no line shows an ended process or a waiting rank"
        yield from wrap(_LEAD, looked, width)
        yield from wrap(_LEAD, "If it did fail, `--failed` shows the most likely line.", width)


def _stands(report: Report, width: int) -> Iterator[str]:
    """Yield the last positions of ranks or logs without an end, and what would show why a job hangs."""
    if not report.last_seen:
        return
    for text in report.stands[1:] if not report.not_understood else report.stands:
        yield from wrap(f"{_LEAD}- ", text, width)
    ended = "no line shows how it ended" + (
        "" if any(e.step is not None for e in report.last_seen) else " or names a step"
    )
    if last := max((each.time_s for each in report.last_seen if each.time_s is not None), default=None):
        yield from wrap(_LEAD, f"{ended}; nothing was written after {_clock(last)}:", width)
    else:
        yield f"{_LEAD}{ended}; the last lines are:"
    for each in report.last_seen:
        step = "" if each.step is None else f", at step {each.step}"
        when = "" if each.time_s is None else f", at {_clock(each.time_s)}"
        names = filter(None, (who(each.ranks, ()), digest.folded(each.sources)))
        yield from wrap(_LEAD, f"{', '.join(names)}{step}{when}", width)
        yield from _quote((each.last,), width)
    yield from wrap(f"{_LEAD}if it hangs: ", _IF_IT_STANDS, width)


_IF_IT_STANDS = (
    "run `ncclprobe attach` on one of its nodes while it hangs, or `py-spy dump --pid PID` for each rank, "
    "those behind first. Otherwise start again with NCCL_DEBUG=INFO TORCH_NCCL_TRACE_BUFFER_SIZE=2000 "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1"
)


def _clock(time_s: float) -> str:
    return f"{datetime.fromtimestamp(time_s, timezone.utc):%H:%M:%S}"


def _nothing(report: Report) -> str:
    if report.outcome == "ended-well":
        return "The job seems to have ended well."
    if report.not_understood:
        return "No cause is named."
    if report.last_seen:
        first = f": {report.stands[0]}" if report.stands else "."
        return printable(f"No line reports a failure, and none shows that the job ended{first}")
    return "No line mentions a failure."


LABELS = {"named": "CAUSE", "narrowed": "CAUSE  one of", "unknown": "UNKNOWN"}
"""Labels of causes, by confidence."""
_IF = {"failed": "If it failed:", "hung": "If it hangs:", "slow": "If it is slow:"}


def label(report: Report, cause: Cause) -> str:
    """Return a cause's label; if no line reports the trouble, its condition."""
    own = [each for each in report.answers if (each.code, each.message) == (cause.code, cause.message)]
    if own and not own[0].known:
        return _IF[own[0].when]
    return LABELS[cause.confidence].partition("  ")[0]


def _cause(cause: Cause, width: int, style: Style, verbose: bool, word: str) -> Iterator[str]:
    """Yield a cause: a sentence with its ranks and its code in brackets; its lines; one remedy; the consequences."""
    codes = " or ".join(cause.could_be) or cause.code
    sentence = _sentence(cause) + (f" [{codes}]" if cause.confidence != "unknown" else "")
    first, *rest = wrap(f"{word}  ", printable(sentence), width, len(_LEAD))
    yield style(first[: len(word)], _STATUS[cause.confidence]) + first[len(word) :]
    yield from rest
    most = None if verbose else _MOST_EVIDENCE if cause.confidence == "unknown" else 1
    yield from _quote(cause.evidence[:most], width)
    for suspect in cause.suspects:
        line = Evidence(suspect.source, suspect.line, suspect.last_line)
        yield from wrap(f"{_LEAD}suspect: ", suspected(suspect), width)
        if suspect.source and line not in cause.evidence:
            yield from _quote((line,), width)
    if cause.remedy:
        yield from wrap(f"{_LEAD}what to do: ", cause.remedy, width)
    unknown = cause.confidence == "unknown"
    for step in cause.collect if verbose or cause.suspects else cause.collect[: _MOST_STEPS if unknown else 1]:
        yield from wrap(f"{_LEAD}to find out: ", step, width)
    if cause.confidence != "unknown" and (whose := blamed(cause)):
        yield from wrap(_LEAD, whose, width)
    if cause.consequences:
        yield f"{_LEAD}what followed:" if cause.confidence != "unknown" else f"{_LEAD}other lines:"
        shown = cause.consequences if verbose else cause.consequences[:_MOST_CONSEQUENCES]
        for each in shown:
            on = f" ({place})" if (place := who(each.ranks, each.nodes)) else ""
            yield from wrap(f"{_LEAD}- ", f"{each.message}{on}", width)
            yield from _quote(each.evidence[:1], width, _LEAD + "    ")
        if len(cause.consequences) > len(shown):
            yield f"{_LEAD}- and {len(cause.consequences) - len(shown)} more; -v shows all"
    if cause.confidence != "unknown":
        yield f"{_LEAD}more: {page(cause.id)}"


def suspected(each: Suspect) -> str:
    """Describe in one line which rank is silent, since when, and how far it got."""
    name = who((each.rank,), (each.host,) if each.host else ())
    if not each.source:
        return f"{name} (it logged nothing)"
    clock = "" if each.time is None else f" at {_clock(each.time)}"
    before = ""
    if each.silent_s is not None and each.silent_s >= 0:
        before = f", {each.silent_s:.0f} s before the first error of another rank"
    step = "" if each.step is None else f"; it reached step {each.step}"
    others = f", others to {each.furthest_step}" if step and (each.furthest_step or 0) > (each.step or 0) else ""
    return f"{name}: its last line was written{clock}{before}{step}{others}"


def blamed(cause: Cause) -> str:
    """Describe whose fault it is, and what to do: ``The job's settings or its program are at fault; correct them.``

    Empty: neither is known. If several causes are left, no line proves that the job caused it.
    """
    whose = "unknown" if cause.blame == "job" and cause.confidence != "named" else cause.blame
    finding = Finding(Severity.FAIL, "", "", whose, cause.action)
    told = digest.blamed(finding, cause.nodes).replace(*_WIDER)
    if finding.blame != "unknown":
        return told
    _, _, step = told.partition("; ")
    return f"{step[0].upper()}{step[1:]}" if cause.action in ("restart", "retest") else ""


def _quote(found: Sequence[Evidence], width: int, lead: str = _LEAD + "  ") -> Iterator[str]:
    """Yield each line with its place, wrapped.

    A long line is cut to its beginning, and its end if a wrapped error gives its subject there.
    """
    for each in found:
        text = printable(str(each))
        if len(text) > _MOST_QUOTED:
            text = f"{text[: _MOST_QUOTED - _MOST_OF_THE_END]} … {text[-_MOST_OF_THE_END:]}"
        yield from wrap(lead, text, width, len(lead) + 2, whole=True)


def who(ranks: Sequence[int], nodes: Sequence[str]) -> str:
    """Return ``rank 3, node1``; many ranks are folded."""
    numbers = digest.folded([f"{rank}" for rank in ranks]).strip("[]")
    parts = [f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"] if ranks else []
    return ", ".join([*parts, digest.folded(nodes)] if nodes else parts)


def _rest(report: Report, width: int) -> Iterator[str]:
    if odd := report.not_understood:
        count = sum(each.count for each in odd)
        first = odd[0]
        place = f"{first.source}:{first.line}" if first.line else first.source
        verb = "was" if count == 1 else "were"
        text = f"{plural(count, 'line')} that may report a failure {verb} not understood; the first is at {place}"
        yield from wrap("", f"{text}: {first.text[:120]}", width)
    for remark in report.notes:
        yield from wrap("note: ", remark, width)


def _preflight_hint(report: Report, width: int) -> Iterator[str]:
    """Yield the line that names the checks which would have found it, and whether they did if they ran."""
    ids = dict.fromkeys(f"{cause.doctor}{cause.checked}" for cause in report.causes if cause.doctor)
    if ids:
        verb = "check that finds" if len(ids) == 1 else "checks that find"
        yield from wrap("", f"The {verb} this before the next launch: `ncclprobe doctor` {', '.join(ids)}", width)


_NAMES_RANKS = ("not arrived", "dead or gone", "desync", "stuck outside", "stuck inside")
_MOST_NAMED = 4


class Watch:
    """The looks of a watch: the last one, and whether its verdict differs from the first one's.

    A working job alternates between WORKING and SLOW; these count as one verdict.
    """

    def __init__(self) -> None:
        self.last: Report | None = None
        self.changed = False
        self._first: object = None
        self._looks = 0
        self._slow: Counter[str] = Counter()

    def add(self, report: Report) -> str:
        """Add the next look and describe it in a line."""
        standing, before = report.standing, self.last
        assert standing is not None
        word = "" if standing.word in ("WORKING", "SLOW") else standing.word
        key = word, [(each.name, each.ranks, each.processes) for each in report.classes if each.name in _NAMES_RANKS]
        self._first = self._first if self._looks else key
        self.last, self.changed, self._looks = report, key != self._first, self._looks + 1
        self._slow.update(
            causes.who(each.ranks, each.nodes) for each in report.classes if each.name == "slow, not stuck"
        )
        made = standing.calls - before.standing.calls if before and before.standing and before.standing.calls else None
        calls = f"; {plural(max(made, 0), 'call')} since the previous sample" if made is not None else ""
        return printable(f"{when(standing.looked_at)}  {standing.word}  {standing.message}{calls}")

    def notes(self) -> list[str]:
        """Return the number of looks, and which ranks were slow in most of them."""
        slow = [f"{who} in {number}" for who, number in self._slow.most_common(_MOST_NAMED)]
        named = f"; others were waiting for {', '.join(slow)} of them" if slow else ""
        return [f"watched: {plural(self._looks, 'look')}{named}"]
