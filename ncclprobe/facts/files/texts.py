"""Reading a line: on from a literal text, and by its form; linear in its length, whatever the line holds."""

import re


def between(text: str, start: str, end: str = "") -> str:
    """Return what follows the first `start`, up to `end` or, where `end` is not there or empty, to the end.

    Empty where `start` is not in the text.
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
    """Return the address or host name of ``10.0.0.7<43211>``, ``[10.0.0.7]:43211`` or ``node7.example<52123>``, with an
    IPv6 scope.
    """
    bare = text.strip().partition("<")[0]
    return bare[1:].partition("]")[0] if bare.startswith("[") else bare.strip("[]")


WORDS, ERROR, ENDS = 1, 2, 3
"""How a line speaks of a failure by its form: it has words of one; it is an error; a process ends with it."""
_WITHIN = 512
_PROGRAM = r"(?:[^\s:]{1,256}: )"
_ENDS = re.compile(
    r"terminate called|Aborted(?=$| \(|[.!])|Killed(?=$| {3})|Segmentation fault|Bus error|Check failed: "
    r"|[Ff]atal(?: \w{1,20}){0,2} error\b|FATAL\b|(?:fatal|panic): |Uncaught |[Uu]nhandled exception"
    r"|Exception in thread|thread '[^']{0,64}'(?: \(\d{1,10}\))? panicked|make(?:\[\d\])?: \*\*\* "
    rf"|{_PROGRAM}error while loading shared libraries|{_PROGRAM}{{1,2}}symbol lookup error: "
    r"|[^`]{1,256}\bAssertion `[^']{1,128}' failed"
    r"|(?:srun|sbatch|salloc|slurmstepd|mpirun|mpiexec|prterun|orted|prted|horovodrun|deepspeed|kubectl|docker|enroot"
    r"|pyxis|singularity|apptainer): {0,4}(?:error|fatal|Error)\b"
)
_ERROR = re.compile(
    r"(?:[\w.:()/-]{1,80} (?:[-|:] )?){0,3}\[?(?:ERROR|CRITICAL|SEVERE)\]?(?=[ :|\]]|$)"
    r"|(?:[\w()./\[\]-]{1,128}: ){0,3}(?:[Ee]rror|FAILURE): {1,3}(?=[A-Za-z'\"/\[(<`])"
    r"|[A-Za-z_][\w.]{0,120}(?:Error|Exception|Exit|Interrupt|Failure)(?:$|: )"
    r"|Caused by: |Error [a-z]+ing\b|Abort(?:ing|ed)?: "
    r"|(?:CUDA|CUBLAS|CUFFT|CUDNN|NCCL|HIP|NVML|cuda\w{0,40}|cu[A-Z]\w{2,40})[ _](?:driver |runtime )?"
    r"(?:error|ERROR|failure|failed)\b"
    r"|(?:\S{1,12} {1,8})?Warning {1,12}(?:Failed\w{0,32}|BackOff|Evicted|OOM\w{1,16}|N(?:ode|etwork)NotReady)\b"
    r"|(?:INVALID_ARGUMENT|RESOURCE_EXHAUSTED|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED|FAILED_PRECONDITION|ABORTED"
    r"|NOT_FOUND|PERMISSION_DENIED|UNIMPLEMENTED|DATA_LOSS|CANCELLED|UNKNOWN): "
    r"|.{0,256}\b(?:No space left on device|Cannot allocate memory|Stale file handle|Input/output error"
    r"|Disk quota exceeded|Read-only file system)"
    rf"|{_PROGRAM}{{1,2}}(?:line )?(?:\d{{1,6}}: )?[^:]{{1,256}}: (?:(?:command )?not found|No such file or directory"
    r"|Permission denied|cannot execute\b.{0,80})$"
)
_WORDS = re.compile(
    r"\b(?:fail(?:ed|ure|s)|can ?not|could not|couldn't|unable to|refuse[ds]|denied|mismatch\w*|invalid|no such"
    r"|crash(?:ed|es)|abort(?:ed|ing))\b",
    re.IGNORECASE,
)
_WARNS = re.compile(r"(?:[\w.-]{1,64}: )?\[?(?:WARN|[Ww]arning:)")
_GOES_ON = re.compile(
    r"\b(?:fall(?:ing|s)?[ -]?back|retr(?:y|ies|ying)|ignor(?:e|ed|ing)|instead|skip(?:ped|ping|s)?|continu(?:e|es|ing)"
    r"|optional|(?:not|non)[ -]fatal|harmless|recover(?:ed|ing)|please install|deprecated|trying (?:again|another)"
    r"|(?:the|this) request|client (?:has )?disconnected)\b",
    re.IGNORECASE,
)


def form_of_failure(text: str, level: str = "") -> int:
    """Return ENDS, ERROR or WORDS of a line that by its form speaks of a failure, whatever program wrote it; else 0.

    A logger's warning has words of a failure at most; of a line by whose words the program goes on it is 0, as where a
    server gives up one request, and of a heading, which announces what it does not say.
    """
    head = text[:_WITHIN]
    if level in ("INFO", "DEBUG", "TRACE"):
        return 0
    if level == "FATAL" or _ENDS.match(head):
        return ENDS
    if _GOES_ON.search(head):
        return 0
    if level != "WARN" and not _WARNS.match(head) and (level == "ERROR" or _ERROR.match(head)):
        return ERROR
    if head.rstrip().endswith(":") or _WARNS.match(head):
        return 0
    return WORDS if _WORDS.search(head) else 0
