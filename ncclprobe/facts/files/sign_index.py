"""Which lines hold a text: some hundred checks ask it of some hundred thousand lines.

Lines that differ in digits alone hold the same texts, but for texts that have digits themselves: each text is searched
for once in every form of line, all digits being one there, and not in every line.
"""

from functools import lru_cache

_DIGITS = str.maketrans("123456789", "0" * 9)
_KEPT_LOGS, _KEPT_SIGNS = 2, 4096


class SignIndex:
    """The numbers of the `texts` that hold a sign, found at its first asking."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self._forms: dict[str, list[int]] = {}
        for number, text in enumerate(texts):
            self._forms.setdefault(text.translate(_DIGITS), []).append(number)
        self._found: dict[tuple[str, ...], list[int]] = {}

    def having(self, signs: tuple[str, ...]) -> list[int]:
        """Return the numbers of the texts that hold one of `signs`, in their order."""
        found = self._found.get(signs)
        if found is None:
            found = sorted({number for sign in signs for number in self._of(sign)})
            if len(self._found) < _KEPT_SIGNS:
                self._found[signs] = found
        return found

    def _of(self, sign: str) -> list[int]:
        form_of_sign = sign.translate(_DIGITS)
        near = [number for form, numbers in self._forms.items() if form_of_sign in form for number in numbers]
        if not any(char in "0123456789" for char in sign):
            return near
        return [number for number in near if sign in self._texts[number]]


class Same:
    """A value by its identity: to compare hundreds of thousands of lines would take longer than to search them."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        """Return the identity."""
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        """Return whether both hold one object."""
        return isinstance(other, Same) and self.value is other.value


@lru_cache(maxsize=_KEPT_LOGS)
def index_of(events: Same) -> SignIndex:
    """Return the index of some events, made once for each."""
    return SignIndex([event.text for event in events.value])  # type: ignore[attr-defined]
