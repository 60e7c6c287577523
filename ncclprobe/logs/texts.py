"""Reading a line: on from a literal text, and by its form; linear in its length, whatever the line holds.

What speaks against a failure is read here too: an end that is good, a new attempt, a reaction, data that is printed.
"""

import re
from typing import NamedTuple


def between(text: str, start: str, end: str = "") -> str:
    """Return the text after the first `start`, up to `end`, or to the end if `end` is missing or empty.

    Empty if `start` is not in the text.
    """
    _, found, rest = text.partition(start)
    if not found:
        return ""
    return rest.partition(end)[0] if end else rest


def number(text: str, most: int = 12) -> int | None:
    """Return the number that a text begins with, of `most` digits at most; None: it begins with none."""
    sign, digits = ("-", text[1:]) if text[:1] == "-" else ("", text)
    length = 0
    while length < min(len(digits), most) and digits[length] in "0123456789":
        length += 1
    return int(sign + digits[:length]) if length else None


def address_of(text: str) -> str:
    """Return the host of ``10.0.0.7<43211>``, ``[10.0.0.7]:43211`` or ``node7.example<52123>``, with an IPv6 scope."""
    bare = text.strip().partition("<")[0]
    return bare[1:].partition("]")[0] if bare.startswith("[") else bare.strip("[]")


WORDS, ERROR, ENDS = 1, 2, 3
"""How a line speaks of a failure by its form: it has words of one; it is an error; a process ends with it."""
_WITHIN = 512
_PROGRAM = r"(?:[^\s:]{1,256}: )"
_STRUCTURED = re.compile(r"(?:\blevel=\"?|\"(?:level|severity)\": ?\")(fatal|panic|FATAL|err(?:or)?\b|ERROR)")
"""How loggers write a level that give each part of a line its name."""
_ENDS = re.compile(
    r"terminate called|Program received signal SIG(?!TERM|INT|HUP)"
    r"|Aborted(?=$| \(|[.!])|Killed(?=$| {3})|Segmentation fault|Bus error|Check failed: "
    r"|[Ff]atal(?: \w{1,20}){0,2} error\b|FATAL\b|(?:fatal|panic): |Uncaught |[Uu]nhandled exception"
    r"|Exception in thread|thread '[^']{0,64}'(?: \(\d{1,10}\))? panicked|make(?:\[\d\])?: \*\*\* "
    rf"|{_PROGRAM}error while loading shared libraries|{_PROGRAM}{{1,2}}symbol lookup error: "
    rf"|{_PROGRAM}{{1,2}}version `[^']{{1,64}}' not found \(required by "
    rf"|{_PROGRAM}[Ee]rror: "
    r"(?:un(?:recogni[sz]ed|known) |ambiguous option|invalid |argument |the following arguments|no such )"
    r"|[^`]{1,256}\bAssertion `[^']{1,128}' failed"
    r"|(?:srun|sbatch|salloc|slurmstepd|mpirun|mpiexec|prterun|orted|prted|horovodrun|deepspeed|kubectl|docker|enroot"
    r"|pyxis|singularity|apptainer): {0,4}(?:error|fatal|Error)\b"
)
RAISED_CLASS = r"[a-z_]\w{0,60}(?:\.[a-z_]\w{0,60}){1,8}\.[A-Z][a-z]\w{1,100}(?:: |$)"
"""A class of exceptions by its full name, whatever it is called: ``huggingface_hub.errors.OfflineModeIsEnabled: ``."""
_STATUS = (
    r"INVALID_ARGUMENT|RESOURCE_EXHAUSTED|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED|FAILED_PRECONDITION|ABORTED|NOT_FOUND"
    r"|PERMISSION_DENIED|UNIMPLEMENTED|DATA_LOSS|CANCELLED|UNKNOWN"
)
_STATUS_IN_WORDS = "|".join(each.replace("_", " ").capitalize() for each in _STATUS.split("|"))
"""TensorFlow's, beneath the number of its root errors."""
_ERROR = re.compile(
    r"(?:(?:\S{0,40}[\d\]\[:/.|]\S{0,40}|[A-Z]{2,12}) {1,8}){0,6}[\[|]?(?:ERROR|CRITICAL|SEVERE)\]?(?=[ :|\]]|$)|"
    r"(?:[\w.:()/-]{1,80} (?:[-|:] )?){0,3}[\[|]?(?:[A-Z]{2,8}_)?(?:ERROR|CRITICAL|SEVERE)\]?(?=[ :|\]]|$)"
    r"|\[[Ee]rror\] "
    r"|(?:[\w()./\[\]-]{1,128}: ){0,3}(?:[Ee]rror|FAILURE): {1,3}(?=[A-Za-z'\"/\[(<`])"
    r"|[A-Za-z_][\w.]{0,120}(?:Error|Exception|Exit|Interrupt|Failure)(?:$|: |\([\d'\"])"
    rf"|{RAISED_CLASS}"
    r"|Caused by: |Error [a-z]+ing\b|Error (?:\w{1,20} ){1,6}(?:at line|in file) |Abort(?:ing|ed)?: "
    r"|(?:CUDA|Cuda|CUBLAS|CUFFT|CUDNN|NCCL|HIP|NVML|cuda\w{0,40}|cu[A-Z]\w{2,40})[ _](?:driver |runtime )?"
    r"(?:error|ERROR|failure|failed)\b|\[?(?:CUDA_ERROR|(?:CUBLAS|CUFFT|CUDNN|CUSOLVER)_STATUS|NCCL_ERROR)_[A-Z]"
    rf"|(?:{_STATUS}): | {{0,4}}\(\d\) (?:{_STATUS_IN_WORDS}): "
    r"|\S{1,256}:\d{1,7}:\d{1,7}: (?:fatal )?error: "
    r"|.{0,256}\b(?:No space left on device|Cannot allocate memory|Stale file handle|Input/output error"
    r"|Disk quota exceeded|Read-only file system)"
    rf"|{_PROGRAM}{{1,2}}(?:line )?(?:\d{{1,6}}: )?[^:]{{1,256}}: (?:(?:command )?not found|No such file or directory"
    r"|Permission denied|cannot execute\b.{0,80})$"
)
_WORDS = re.compile(
    r"\b(?:fail(?:ed|ure|s)|can ?not|could not|couldn't|unable to|refuse[ds]|denied|invalid|no such|unreachable"
    r"|do(?:es)? not match"
    r"|crash(?:ed|es)|abort(?:ed|ing)|un(?:recogni[sz]ed|known) (?:arguments?|options?))\b|mismatch",
    re.IGNORECASE,
)
_ERRNOS = (
    ": Resource temporarily unavailable", ": No such file or directory", ": No such device", ": Permission denied",
    ": Invalid argument", ": Operation not permitted", ": Operation not supported",
)  # fmt: skip
_FAILS = re.compile(r"\b(?:failed|failure|error|can ?not|could not|unable to)\b", re.IGNORECASE)
"""Together: the C library's text for a failed call, at the end of a line, whatever program wrote it."""
_OF_EVENTS = re.compile(
    r"\s{0,8}(?:\S{1,12} {1,16})?(?:\S{1,60} {1,8})?Warning {1,16}"
    r"(?:Failed\w{0,32}|BackOff|Evicted|OOM\w{1,16}|N(?:ode|etwork)NotReady|ErrImage\w{1,16})\b"
)
"""Kubernetes, which calls Warning anything other than success."""
_WARNS = re.compile(r"(?:[\w.-]{1,64}: )?\[?(?:WARN|[Ww]arning:)")
_GOES_ON = re.compile(
    r"\b(?:fall(?:ing|s)?[ -]?back|retr(?:y|ies|ying)(?! count| limit| exceed)|ignor(?:e|ed|ing)|instead"
    r"|skip(?:ped|ping|s)?"
    r"|continu(?:e|es|ing)|proceed(?:s|ing)?"
    r"|optional|(?:not|non)[ -]fatal|harmless|recover(?:ed|ing)|please install|deprecated|still trying"
    r"|trying (?:again|another)"
    r"|(?:the|this) request|request[ _-]?id|rid=\w{1,64}|client (?:has )?disconnected)\b",
    re.IGNORECASE,
)


def goes_on(text: str, level: str) -> bool:
    """Return whether a program reports a failure and its fallback in one line, or the failure of one request."""
    return level not in ("EXCEPTION", "FATAL") and bool(_GOES_ON.search(text[:_WITHIN]))


_HEADINGS = ("Error executing job with overrides",)
"""Hydra's line before the error itself."""


def form_of_failure(text: str, level: str = "") -> int:
    """Return ENDS, ERROR or WORDS of a line that by its form speaks of a failure, whatever program wrote it; otherwise
    0.

    A logger's warning has words of a failure at most; of a line by whose words the program goes on it is 0, as if a
    server gives up one request, and of a heading, which announces what it does not say.
    """
    head = text[:_WITHIN]
    if level in ("INFO", "DEBUG", "TRACE"):
        return 0
    named = _STRUCTURED.search(head) if "level" in head or "severity" in head else None
    if level == "FATAL" or _ENDS.match(head) or (named and named[1].lower() in ("fatal", "panic")):
        return ENDS
    if _OF_EVENTS.match(head):
        return ERROR
    if _GOES_ON.search(head) or head.startswith(_HEADINGS) or head.endswith("(most recent call last):"):
        return 0
    failed_call = head.endswith(_ERRNOS) and _FAILS.search(head)
    if level != "WARN" and not _WARNS.match(head) and (level == "ERROR" or named or failed_call or _ERROR.match(head)):
        return ERROR
    if head.rstrip().endswith(":") or _WARNS.match(head):
        return 0
    return WORDS if _WORDS.search(head) else 0


_FINISHED = re.compile(
    r"\b(?:train(?:ing)?(?: loop)?|pre-?training|fine-?tuning|job|run|benchmark|program|script|experiment)\b.{0,32}?"
    r"\b(?:finished|completed?|succeeded|done|successful(?:ly)?)\b"
    r"|\b(?:finished|completed|done|ended|exit(?:ed|s|ing)?)[ ,:]{1,3}(?:successfully|normally|cleanly|training|"
    r"with (?:exit )?(?:code|status)[ :=]{1,3}0\b)"
    r"|\b(?:exit[ _]?code|exit status|return code|ret_?code)[ :=]{1,3}0\b(?![.:][1-9])"
    r"|^RESULT,|'train_runtime': |^\*{3,5} train metrics \*{3,5}"
    r"|^(?:finished|(?:all )?done|exit(?:ed)?(?: code| status)?[ :]{0,2}0)[.! ]{0,3}$"
    r"|\bTrainer\.fit\W{1,2} stopped: \W?max_|\bsuccessfully (?:finished|completed|trained)\b"
    r"|Out of bounds values ?: ?0 OK|\bepochs? completed in \d|\bCOMPLETED 0:0\b"
    r"|^wandb: Synced \d|\(success\)|\bsaved? (?:the )?final\b|^INFO:? {1,8}Application shutdown complete"
    r"|^=+ \d{1,6} passed(?:, \d{1,6} (?:skipped|deselected|xfailed|xpassed|warnings?))* in \d",
    re.IGNORECASE,
)
_UNFINISHED = re.compile(
    r"\bnot?\b|n't|\bagent\b|(?<!x)fail|error|abort|cancel|unable|kill|lost|\bif\b|\bwhen\b|until"
    r"|\b(?:evaluation|eval|validation|sanity|test) (?:run|job|loop|epoch|step)",
    re.IGNORECASE,
)
AT_EXIT = "destroy_process_group() was not called before program exit"
"""torch's warning of a program that ends by itself: after its last step, or by sys.exit(1)."""


def says_finished(text: str) -> bool:
    """Return whether a line reports the end of the job."""
    head = text[:_FINISHED_WITHIN]
    return bool(_FINISHED.search(head)) and not _UNFINISHED.search(head)


_FINISHED_WITHIN = 256


_PASSED = re.compile(
    r"=+ (?:\d{1,6} (?:passed|skipped|deselected|xfailed|xpassed|warnings?)(?:, | )){1,6}in \d|\[  PASSED  \] \d"
    r"|.{0,200}(?:\bworker group successfully finished\b|\bgroup finished \(SUCCEEDED\))",
    re.IGNORECASE,
)


_RESULT = re.compile(
    r"\btrain_runtime\W{1,20}\d|\bTrainer\.fit\W{1,2} stopped: \W?max_|\"key\": \"run_stop\"(?!.{0,400}\"abort)"
    r"|\brun_stop: .{0,80}\bsuccess|^RESULT,|Out of bounds values ?: ?0 OK"
    r"|\b(?:training|run|fine-?tuning) (?:is )?(?:finished|completed?|done) after \d|\bcompleted after \d+ iterations\b"
    r"|\bdone training in \d|\[after training is done\]|^Training completed\. Do not forget|^ENDING TIMING RUN AT \d"
    r"|W&B process to finish\.{3} \(success\)|^State: COMPLETED\b"
    r"|^\|\W{0,4}Tasks\W{1,16}Version\b"
)
_CLAIM = re.compile(
    r"OK(?: \(\w+=.{1,60}\))?$|\W{0,4}(?:\[[\w .-]{1,24}\] {0,2})?(?:all tests )?pass(?:ed)?\W{0,4}$"
    r"|(?:Total )?training time:? \d",
    re.IGNORECASE,
)
_LOGGED = re.compile(
    r"\b(?:train(?:ing)?|pre-?training|fine-?tuning)\b.{0,32}\b(?:finished|completed?|done)\b"
    r"|\b(?:finished|completed|done) (?:the )?(?:train|pre-?train|fine-?tun)ing\b",
    re.IGNORECASE,
)


def brings_result(text: str) -> bool:
    """Return whether a program reports a result at its end: it got there, whatever its earlier lines sound like.

    The same holds if a test runner, or the launcher of a node's ranks, reports that all ended well: an earlier failure
    was provoked, or another attempt followed it. A shell's line after a program does not count: it follows failures
    too.
    """
    return bool(_RESULT.search(text[:4096]) or _PASSED.match(text))


def claims_end(text: str, *, logged: bool) -> bool:
    """Return whether a line claims that all went well, as who runs a program that raised may write too.

    `logged`: the line has a time and a level, as a logger writes them.
    """
    head = text[:_FINISHED_WITHIN]
    return bool(_CLAIM.match(head) or (logged and _LOGGED.search(head) and not _UNFINISHED.search(head)))


_ANEW = re.compile(
    r"\bwill restart (?:the )?worker group\b|\brestart_count ?= ?[1-9]|RESTART_COUNT\W{1,3}[1-9]"
    r"|\b(?:restart|relaunch|requeue|attempt)(?:ing|ed)?"
    r"(?: (?:count|number|no\.|training|run|job))?[ #:=(]{1,3}[1-9]"
    r"|\bRestoring trial\b|\brequeu(?:ed|ing)\b|\bscontrol requeue\b|\bDUE TO (?:PREEMPTION|NODE FAILURE)\b"
    r"|\bresum(?:ing|ed)\b.{0,32}\bfrom\b",
    re.IGNORECASE,
)
_OF_A_CALL = re.compile(
    r"connect|request|download|https?\b|fetch|socket|store|rendezvous|barrier|client|port\b|upload", re.IGNORECASE
)


def begins_anew(text: str) -> bool:
    """Return whether a line reports a restart of the job or its ranks: everything before it is history."""
    head = text[:_WITHIN]
    return bool(_ANEW.search(head)) and not _OF_A_CALL.search(head)


_CAUGHT = re.compile(
    r"\b(?:re-?trying|trying|fall(?:ing|s)? back|skipp(?:ed|ing)|continu(?:e|es|ing)|ignor(?:ed|ing)|using \S{1,40}$"
    r"|instead|will be retried|as expected|expected (?:error|failure|exception|time-?out))\b",
    re.IGNORECASE,
)
_EXPECTED = re.compile(
    r"\bas expected\b|\bexpected (?:error|failure|exception|time-?out)\b|\bwill be retried\b", re.IGNORECASE
)


def was_caught(text: str) -> bool:
    """Return whether the line beneath an exception names the program's fallback."""
    head = text[:_WITHIN]
    return bool(_CAUGHT.search(head)) and not _OF_A_CALL.search(head) and not head.startswith("Exception ignored")


def was_expected(text: str) -> bool:
    """Return whether a line calls the failure before it intended, or reports that the task is started again."""
    return bool(_EXPECTED.search(text[:_WITHIN]))


_NUMBERED = r"(?:\[\d{1,9}\]| ?#?\d{1,9})?[\"']? ?"
_DATA = re.compile(
    r"(?:\W{0,8}\d{1,9})?\W{0,8}"
    rf"(?:(?:prompt|completion|instruction|assistant)s?{_NUMBERED}[:=]"
    r"|(?:question|answer|response|user|human|sample|example|row|record|generated(?: text| sample)?|prediction|gold"
    rf"|reference|target|input|output|text|content|messages|document|title)s?{_NUMBERED}[:=|] ?[\"'`\[{{])",
    re.IGNORECASE,
)


def prints_data(text: str) -> bool:
    """Return whether by its label a line is what a program reads or generates: words of anybody's."""
    return bool(_DATA.match(text[:_WITHIN]))


_IF = re.compile(r"\W{0,8}(?:If|In case|When) (?:you|your|this|the) \w{1,20} [^.]{0,40}[`'\"]", re.IGNORECASE)


def advises(text: str) -> bool:
    """Return whether a line is advice for an error that it quotes: ``If you get `CUDA error: …```."""
    return bool(_IF.match(text[:_WITHIN]))


_ABOVE = re.compile(
    r"\b(?:look at|see|check)\b.{0,40}\b(?:above|root cause|stack trace)\b|\binner exception\b|\blook up to see\b"
    r"|\bError building extension\b",
    re.IGNORECASE,
)


def refers(text: str) -> bool:
    """Return whether an error only points to another place in the log for its reason."""
    return bool(_ABOVE.search(text[:_WITHIN]))


_BAR = re.compile(
    r"\s{0,8}(.{0,160}?) {0,8}\d{1,3}%\|[^|]{0,256}\| {0,2}([\d.]{1,12})([kMG]?)/([\d.]{1,12}[kMG]?) \[([\d:]{4,12})<"
)
_COUNT = re.compile(r"\s{0,8}(.{0,160}?):? {0,8}(\d{1,12})([kMG]?) ?[A-Za-z]{0,16} \[([\d:]{4,12}), ")
"""For counts without a known end, such as a data set that is being built."""
_TIMES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


class Bar(NamedTuple):
    """A progress bar of tqdm: what it counts, how many of how many are done, and since when, as it writes them."""

    title: str
    done: float
    of: str
    elapsed: str

    @property
    def seconds(self) -> int:
        """Return how long it had been drawn, of ``1:02:03``."""
        parts = [int(part) for part in self.elapsed.split(":") if part.isdecimal()]
        return sum(part * 60**power for power, part in enumerate(reversed(parts)))

    def is_like(self, other: "Bar") -> bool:
        """Return whether another bar counts the same."""
        return (self.title, self.of) == (other.title, other.of)

    def goes_on(self, other: "Bar") -> bool:
        """Return whether an earlier bar is this one, some time before."""
        return self.is_like(other) and self.done > other.done and self.seconds > other.seconds


def bar_of(text: str) -> Bar | None:
    """Return the progress bar that a line is; None: it is none."""
    found = _BAR.match(text[:_WITHIN]) if "%|" in text else None
    if not found and (count := _COUNT.match(text[:_WITHIN]) if "/s]" in text else None):
        return Bar(count[1].rstrip(": "), float(count[2]) * _TIMES[count[3]], "", count[4])
    if not found or found[2].count(".") > 1 or found[2] == ".":
        return None
    return Bar(found[1].rstrip(": "), float(found[2]) * _TIMES[found[3]], found[4], found[5])
