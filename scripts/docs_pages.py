"""The pages of the reference that are made of the code: checks, commands, variables and the fields of the report.

mkdocs.yml names this file as a hook, so that they are made whenever the site is built, and are not committed: files
that repeat docstrings would only go stale. ``pages()`` is what tests look at.
"""

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ncclprobe.commands import COMMANDS, main
from ncclprobe.engine.diagnose import every_check
from ncclprobe.engine.explain_pages import check_explanation, example_of
from ncclprobe.model.outcomes import OUTCOMES
from ncclprobe.model.registry import Check, by_id, title_of
from ncclprobe.nccl.parameters import NEWEST, Parameter, purpose, table, variable_explanation
from ncclprobe.report.json import SCHEMA_FILE

_OWN_PAGE = 20
"""So many variables begin with the same word, or have the same reader, before they have a page of their own."""
_OWNERS = {
    "torch": "torch.distributed",
    "launch": "torchrun and other launchers of torch",
    "gloo": "gloo",
    "ofi": "libfabric and the AWS plugin",
    "gcp": "Google's network plugins",
    "ucx": "UCX and its plugin",
    "sharp": "SHARP and its plugin",
    "cuda": "CUDA",
    "slurm": "Slurm",
    "mpi": "MPI",
    "none": "Names that no library reads",
}
_HELP_COLUMNS = "92"
_SECTIONS = {"why": "Why it matters", "fix": "What to do", "passes": "What passes"}


def pages() -> dict[str, str]:
    """Return the Markdown of every generated page by its path below docs/."""
    checks = by_id(sorted(every_check(), key=lambda check: check.key))
    rows = (_row(f"[ncclprobe {name}]({name}.md)", text(about)) for name, about in COMMANDS.items())
    return {
        "checks/index.md": _check_index(checks),
        **{
            f"checks/{group}.md": _check_page(group, [checks[name] for name in names])
            for group, names in _groups(checks)
        },
        "commands/index.md": _page("# Commands", "", *_head("command", "purpose"), *rows),
        **{f"commands/{name}.md": _command_page(name, about) for name, about in COMMANDS.items()},
        **_variable_pages(),
        "reference/schema.md": _schema_page(json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))),
    }


def on_config(config: Any) -> Any:
    """Link the repository that pyproject.toml names, once it does: mkdocs calls this."""
    found = re.search(r'^Repository = "(https://[^"]+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    config.repo_url = found[1] if found else None
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to the site: mkdocs calls this."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let a search find what people ask before the reference, and nothing of the schema or of maintainers' pages."""
    if page.file.src_uri.startswith(("maintainers/", "reference/schema")):
        page.meta.setdefault("search", {"exclude": True})
    elif page.file.src_uri.startswith(("checks/", "commands/", "variables/")):
        page.meta.setdefault("search", {"boost": 0.3})
    return markdown


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuse a page for which a browser would fetch something from elsewhere: clusters have no internet."""
    from mkdocs.exceptions import PluginError

    if fetched := re.search(r'(?:src=|<link[^>]*rel="?(?:stylesheet|preload)"?[^>]*href=)"?https?://[^" >]+', output):
        raise PluginError(f"{page.file.src_uri}: {fetched[0]} is fetched from elsewhere")
    return output


def text(words: str) -> str:
    """Return `words` as Markdown that reads the same, but for code in backticks, which is kept."""
    parts = words.split("`")
    if len(parts) % 2 == 0:  # one backtick is left over, and is itself
        parts = [words]
    plain = [re.sub(r"([\\*_<>\[\]|#`])", r"\\\1", part) for part in parts[::2]]
    code = [f"`{part}`".replace("|", "\\|") for part in parts[1::2]]
    return "".join(one for both in zip(plain, [*code, ""], strict=True) for one in both)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _head(*cells: str) -> list[str]:
    return [_row(*cells), _row(*("---" for _ in cells))]


def _fenced(lines: Sequence[str]) -> list[str]:
    return ["```text", *lines, "```"]


def _page(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def outcome_table() -> str:
    """Return what makes which exit code, by command: of docs/reference/exit-codes.md, which a test holds to it."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for command, ends in OUTCOMES.items():
        for outcome in ends.values():
            options = (f"{int(code)} with `{option}`" for option, code in outcome.under.items())
            found.setdefault((outcome.words, ", ".join((str(int(outcome.code)), *options))), {})[f"`{command}`"] = None
    every = [_row(words, codes, ", ".join(names)) for (words, codes), names in found.items()]
    return "\n".join([*_head("what was found", "exit code", "commands"), *every])


def _check_index(checks: Mapping[str, Sequence[Check]]) -> str:
    lines = [
        "# Checks",
        "",
        f"{len(checks)} checks. `ncclprobe explain ID` prints the same as a page here, `ncclprobe checks` this list.",
        "*Required*: if it cannot be done, the run is inconclusive.",
    ]
    for group, names in _groups(checks):
        rows = (
            _row(f'<a id="{n}"></a>[{n}]({group}.md#{n})', text(title_of(checks[n])), _required(checks[n]))
            for n in names
        )
        lines += ["", f"## {group}", "", *_head("id", "what is wrong when it fails", ""), *rows]
    return _page(*lines)


def _groups(checks: Mapping[str, Sequence[Check]]) -> Iterator[tuple[str, list[str]]]:
    for group, names in groupby(checks, key=lambda name: name.partition(".")[0]):
        yield group, list(names)


def _check_page(group: str, checks: Sequence[Sequence[Check]]) -> str:
    return _page(f"# Checks: {group}", *(line for parts in checks for line in ("", check_section(parts).rstrip())))


def _required(parts: Sequence[Check]) -> str:
    return "required" if any(each.required for each in parts) else ""


def check_section(parts: Sequence[Check]) -> str:
    """Return what a page says of an id: of a check, or of the parts of one, each below a heading of its own.

    What repeats for each check is bold, not a heading: a search would find nothing else.
    """
    head = f"## {parts[0].id} {{ #{parts[0].id} }}"
    if len(parts) == 1:
        return _page(head, *_about_check(parts[0]))
    lines = [head, "", f"**{text(title_of(parts))}.** It has {len(parts)} parts."]
    return _page(
        *lines,
        *(
            line
            for each in parts
            for line in ("", f"### {each.part} {{ #{each.id}.{each.part} }}", *_about_check(each))
        ),
    )


def _about_check(check: Check) -> list[str]:
    known = dict(check_explanation(check))
    lines = ["", f"**{text(check.title)}.**"]
    for key, title in _SECTIONS.items():
        lines += ["", f"**{title}**: {text(known.pop(key))}"]
    lines += ["", *(f"- **{head}**: {text(words)}" for head, words in known.items() if words)]
    if check.cause and check.cause.code:
        lines.append(f"- **cause**: `{check.cause.code}`, as `ncclprobe explain FILE…` names it")
    if check.cause and check.cause.doctor:
        group = check.cause.doctor.partition(".")[0]
        lines.append(f"- **before the next launch**: [{check.cause.doctor}]({group}.md#{check.cause.doctor}) finds it")
    lines += ["", "Example of what it finds:", ""]
    return [*lines, *_fenced(example_of(check))]


def _command_page(name: str, about: str) -> str:
    return _page(f"# ncclprobe {name}", "", text(about), "", *_fenced(usage(name).splitlines()))


def usage(name: str) -> str:
    """Return what ``ncclprobe NAME --help-all`` prints."""
    printed, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _HELP_COLUMNS
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            main([name, "--help-all"])
    finally:
        os.environ.pop("COLUMNS")
        os.environ.update({} if before is None else {"COLUMNS": before})
    return printed.getvalue().rstrip()


def family(name: str, owner: str) -> str:
    """Return the page that a variable belongs on: of NCCL's own its first word, of others who reads them."""
    return "-".join(name.lower().split("_")[:2]) if owner == "nccl" else owner


def families() -> dict[str, list[Parameter]]:
    """Return the variables of each page; NCCL's with few of a kind share ``nccl-other``, other readers' ``others``."""
    found: dict[str, list[Parameter]] = {}
    for parameter in table().values():
        found.setdefault(family(parameter.name, parameter.owner), []).append(parameter)
    for key in [*found]:
        if len(found[key]) < _OWN_PAGE or not (key in _OWNERS or key.startswith("nccl-")):
            rest = "nccl-other" if found[key][0].owner == "nccl" else "others"
            found.setdefault(rest, []).extend(found.pop(key))
    return dict(sorted(found.items()))


def _family_title(key: str) -> str:
    named = {**_OWNERS, "nccl-other": "NCCL: other variables", "others": "Other readers"}
    return named.get(key) or f"{key.upper().replace('-', '_')}_…"


def _variable_pages() -> dict[str, str]:
    found = families()
    rows = (_row(f"[{text(_family_title(key))}]({key}.md)", str(len(those))) for key, those in found.items())
    count = sum(map(len, found.values()))
    index = _page(
        "# Variables",
        "",
        f"{count} variables of NCCL (to {'.'.join(map(str, NEWEST))}), its plugins, torch and launchers, as",
        "`ncclprobe/nccl/parameters.csv` has them. `ncclprobe explain NCCL_IB_TIMEOUT` prints one, with examples.",
        "",
        *_head("family", "variables"),
        *rows,
    )
    return {
        "variables/index.md": index,
        **{f"variables/{key}.md": _family_page(key, those) for key, those in found.items()},
    }


def _family_page(key: str, those: Sequence[Parameter]) -> str:
    lines = [f"# {text(_family_title(key))}"]
    for parameter in those:
        rest = ((head, words) for head, words in variable_explanation(parameter) if words and head != "does")
        about = (f"- **{head}**: {text(words)}" for head, words in rest)
        lines += ["", f"## {text(parameter.name)}", "", text(purpose(parameter)), "", *about]
    return _page(*lines)


def _schema_page(schema: Mapping[str, Any]) -> str:
    types = schema["$defs"]
    first = ["Report"]
    lines = [
        "# Fields of the JSON report",
        "",
        "This page is generated from the JSON Schema, which `ncclprobe report --schema` prints.",
    ]
    for name in [*first, *sorted(types.keys() - first)]:
        lines += ["", f"## {name}", "", *_schema_type(types[name])]
    return _page(*lines)


def _schema_type(described: Mapping[str, Any]) -> Iterator[str]:
    if described.get("description"):
        yield text(described["description"].replace("``", "`").replace("\n", " "))
        yield ""
    if "properties" not in described:
        yield f"Values: {_schema_words(described)}"
        return
    needed = described.get("required", ())
    yield from _head("field", "type", "")
    for name, field in described["properties"].items():
        yield _row(
            f"`{name}`", _schema_words(field), "" if name in needed or "default" not in field else "has a default"
        )


def _schema_words(field: Any) -> str:
    """Return a type of the schema in words, with links to the types of this page."""
    if not isinstance(field, dict) or not field:
        return "anything" if field or field == {} else "nothing"
    if "prefixItems" in field:
        return f"[{', '.join(map(_schema_words, field['prefixItems']))}]".replace("[", "\\[", 1)
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(map(_schema_words, field["anyOf"]))
    if "const" in field or "enum" in field:
        return ", ".join(f"`{json.dumps(each)}`" for each in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_schema_words(field.get('items', True))}"
    if field.get("type") == "object":
        return f"object of {_schema_words(field.get('additionalProperties') or {})}"
    return str(field.get("type", "anything"))
