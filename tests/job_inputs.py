"""The logs, running jobs and pasted texts of which it is kept what is made of them: rows of `FUNCTIONS`."""

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, permutations, product

from ncclprobe.engine.judge import shares
from ncclprobe.host import pasted
from ncclprobe.model.findings import Finding, Severity, Status, Verdict
from tests import pasted_cases, pasted_containers, pasted_faults, pasted_jobs
from tests.localise import drawn, meeting, mixed, slow_pairs, standing, standing_cases
from tests.log import ends, events, healthy, others, parted, reasons, whole, words
from tests.log import mixed as mixed_logs
from tests.pasted_texts import judged

Rows = Iterator[tuple[str, object]]


def _forms_inputs() -> Rows:
    """The answers that each form of a pasted text gives, in place of the machine, in all words."""
    for table in (pasted_cases.FORMS, *(module.SAYS | module.SILENT for module in (pasted_containers, pasted_faults))):
        yield from _answers(table)


def _answers(texts: Mapping[str, str]) -> Rows:
    for name, text in texts.items():
        shown = pasted.forms(text)
        for machine, forms in shown.items():
            yield f"{name} {machine}", {form: _in_words(own) for form, own in forms.items()}
        if not shown:
            yield name, "nothing"


def _in_words(answers: pasted.Answers) -> dict[str, str]:
    return {"/".join(map(str, ask)): " ".join(str(said).split()) or "empty" for ask, said in answers.items()}


def _joined_inputs() -> Rows:
    """What several pasted texts of one machine add up to, and where they differ."""
    texts = {**pasted_cases.FORMS, "up": pasted_cases.UP, "one": "export A=1\n", "two": "export A=2 B=3\n"}
    texts |= {"other": texts["up"].replace("mlx5_0", "mlx5_1"), "named": "# two nodes of DGX H100\nexport A=1\n"}
    texts["conf"] = "# /etc/nccl.conf\nNCCL_DEBUG=WARN\n"
    names = ("up", "ibstat", "other", "one", "two", "named", "topo -m", "nvidia-smi -L", "nvlink -s", "ulimit -a")
    texts |= {
        "some": "$ env | grep -E 'NCCL|RANK'\nNCCL_DEBUG=INFO\nNCCL_B=1\nNCCL_C=3\nRANK=1\n",
        "limit": "LimitMEMLOCK=65536\n",
    }
    texts |= {
        "all": "RANK=0\nWORLD_SIZE=8\nNCCL_DEBUG=WARN\nNCCL_B=2\nNCCL_C=3\nNCCL_ALGO=Ring\n",
        "empty": "NCCL_ALGO=\nNCCL_DEBUG=\n",
    }
    more = permutations(("some", "all", "empty", "conf", "limit", "ulimit -a", "ibv_devinfo", "up"), 2)
    for one, other in dict.fromkeys((*permutations(names, 2), *more)):
        forms = {f"{at}{form}": own for at in (one, other) for form, own in pasted.forms(texts[at])[""].items()}
        whole, odd = pasted.joined(forms)
        yield f"{one}, {other}", ([" ".join(each.split()) for each in odd], _in_words(whole))


def _pastes_inputs() -> Rows:
    """What the doctor makes of texts that were pasted, beside those of the command."""
    for module in (pasted_containers, pasted_faults):
        for name, text in (module.SAYS | module.SILENT).items():
            yield name, judged(text)
    for name, text in pasted_cases.texts_of("pasted-unsaid.txt").items():
        yield f"unsaid: {name}", judged(text)


def _settings_inputs() -> Rows:
    """What the doctor makes of a setting on a machine that a text only names."""
    for number, row in enumerate((*pasted_jobs.WRONG, *pasted_jobs.RIGHT)):
        yield f"{number} {row[1]}", judged(pasted_jobs.text(*row))


def _shares_inputs() -> Rows:
    """How each of three nodes leaves by verdicts on nodes and on all of them, where some blame the job or a node."""
    about, levels = (
        ((), ("n1",), ("n2", "gone"), ("gone",)),
        ((Severity.FAIL, Status.FAIL), (Severity.WARN, Status.WARN)))  # fmt: skip
    said = [
        Verdict("a.b", by, status, "", findings=(Finding(level, "x", "y", blame=blame, nodes=named),))
        for (level, status), named, by, blame in product(levels, about, (None, "n0"), ("job", "link"))
    ]
    quiet = (Status.UNKNOWN, Status.SKIP, Status.PASS)
    said += [Verdict("a.b", by, status, "", required=True) for by, status in product(("n2", None), quiet)]
    own = [Verdict("a.b", f"n{node}", Status.SKIP, "") for node in range(3)]
    few = [(each,) for each in said] + list(combinations(said, 2))[::3]
    for rest, fail_on in product((own, []), ("fail", "warn")):
        found = [shares(("n0", "n1", "n2"), [*verdicts, *rest], fail_on) for verdicts in few]
        told = [
            [f"{node.status.value}/{node.exit_code:d}/{bool(node.worst)}" for node in each.values()] for each in found
        ]
        yield f"{fail_on}, {len(rest)} of their own", [",".join(each) for each in told]


FUNCTIONS: Mapping[str, Callable[[], Rows]] = {
    "standing": lambda: ((name, standing.kept(found)) for name, found in standing_cases.rows()),
    "mixed-jobs": mixed.rows, "arrivals": meeting.rows, "slow-pairs": slow_pairs.rows,
    "logs-ends": lambda: whole.outcomes((*ends.TEXTS, *healthy.TEXTS)),
    "logs-reasons": lambda: whole.outcomes(reasons.TEXTS), "logs-others": lambda: whole.outcomes(others.TEXTS),
    "events": events.events, "mixed-logs": mixed_logs.rows, "log-lines": words.rows, **drawn.FUNCTIONS,
    "parted": parted.rows, "shares": _shares_inputs, "pasted-forms": _forms_inputs, "pasted-joined": _joined_inputs,
    "pasted-nodes": _pastes_inputs, "pasted-settings": _settings_inputs,
    "pasted-texts": lambda: _answers(pasted_cases.texts_of("pasted.txt"))}  # fmt: skip
