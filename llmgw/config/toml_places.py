"""On which line each key and entry of a TOML document stands.

tomllib says where a document is malformed and nothing else. This scan looks only at
documents that tomllib has accepted, so it need not judge them.
"""

import re

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|' r"'''.*?'{3,5}|" r'"(?:\\.|[^"\\])*"|' r"'[^']*'",
    re.DOTALL,
)
_OTHER = re.compile(r"[^,\]}\n#]*")
_ESCAPE = re.compile(
    r'\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|x([0-9A-Fa-f]{2})|([btnfre"\\]))'
)
_ESCAPED = {
    "b": "\b",
    "t": "\t",
    "n": "\n",
    "f": "\f",
    "r": "\r",
    "e": "\x1b",
    '"': '"',
    "\\": "\\",
}


def places(text: str) -> dict[Path, int]:
    """The line of every key and of every entry of an array, counted from 1."""
    return _Scan(text).document()


class _Scan:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.counted = 0
        self.found: dict[Path, int] = {}
        self.tables: dict[Path, int] = {}  # arrays of tables: how many so far

    def document(self) -> dict[Path, int]:
        here: Path = ()
        self._skip()
        while self.at < len(self.text):
            if self._peek("[["):
                self.at += 2
                here = self._table(self._keys(), is_array=True)
                self._skip()
                self.at += 2
            elif self._peek("["):
                self.at += 1
                here = self._table(self._keys(), is_array=False)
                self._skip()
                self.at += 1
            else:
                self._pair(here)
            self._skip()
        return self.found

    def _peek(self, mark: str) -> bool:
        return self.text.startswith(mark, self.at)

    def _skip(self) -> None:
        match = _BLANK.match(self.text, self.at)
        assert match is not None, "the pattern matches the empty text"
        self.at = match.end()

    def _note(self, path: Path) -> None:
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = self.at
        self.found.setdefault(path, self.line)

    def _keys(self) -> tuple[str, ...]:
        keys: list[str] = []
        while True:
            self._skip()
            match = _STRING.match(self.text, self.at) or _BARE.match(self.text, self.at)
            assert match is not None, "tomllib has read a key here"
            keys.append(_unquoted(match[0]))
            self.at = match.end()
            self._skip()
            if not self._peek("."):
                return tuple(keys)
            self.at += 1

    def _table(self, keys: tuple[str, ...], *, is_array: bool) -> Path:
        path: Path = ()
        for depth, name in enumerate(keys):
            path += (name,)
            self._note(path)
            if depth < len(keys) - 1 and path in self.tables:
                path += (self.tables[path] - 1,)
        if is_array:
            number = self.tables.get(path, 0)
            self.tables[path] = number + 1
            path += (number,)
            self._note(path)
        return path

    def _pair(self, here: Path) -> None:
        self._skip()
        start = self.at
        keys = self._keys()
        end, self.at = self.at, start
        for depth in range(len(keys)):
            self._note(here + keys[: depth + 1])
        self.at = end + 1  # the = sign
        self._value(here + keys)

    def _value(self, path: Path) -> None:
        self._skip()
        if self._peek("["):
            self._entries(path, "]")
        elif self._peek("{"):
            self._entries(path, "}")
        else:
            match = _STRING.match(self.text, self.at)
            match = match or _OTHER.match(self.text, self.at)
            assert match is not None, "the pattern matches the empty text"
            self.at = match.end()

    def _entries(self, path: Path, end: str) -> None:
        self.at += 1
        number = 0
        self._skip()
        while not self._peek(end):
            if end == "}":
                self._pair(path)
            else:
                self._note((*path, number))
                self._value((*path, number))
            number += 1
            self._skip()
            if self._peek(","):
                self.at += 1
                self._skip()
        self.at += 1


def _unquoted(key: str) -> str:
    if key.startswith("'"):
        return key[1:-1]
    if not key.startswith('"'):
        return key
    return _ESCAPE.sub(_unescaped, key[1:-1])


def _unescaped(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    return chr(int(code, 16)) if code else _ESCAPED[match[4]]
