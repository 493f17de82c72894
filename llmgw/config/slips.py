"""A parser's complaint in an operator's words: the line to look at, what to write."""

import re

from msgspec import Struct

KEEP_ONE = "keep one of the two"
_TOKEN = re.compile(
    r"#[^\n]*|"
    r'"""(?:\\.|[^\\])*?"{3,5}|' r"'''.*?'{3,5}|"
    r'"(?:\\.|[^"\\\n])*"|' r"'[^'\n]*'|"
    r"[\[\]{}=\n]",
    re.DOTALL,
)  # fmt: skip
# What no entry of a list looks like: `key =` or `[section]`, alone on its line.
_STATEMENT = re.compile(
    r"[ \t]*(?:[\w.\"'-]+[ \t]*=|\[+[ \t]*[\w.\"'-]+[ \t]*\]+[ \t]*$)"
)
# As tomllib shows the name of a section: ('tls',).
_NAMES = re.compile(r"\((?:'[^']*',? ?)+\)")

_TOML = {
    "invalid value": 'write text in quotes, as in "cp1:7443"; true, false and plain '
    "numbers go without",
    "unclosed inline table": "write } behind its last key, on the same line",
    "unterminated": "write the quotes that close the text",
    'expected "\'"': "write the quote that closes the text",
    "illegal character '\\n'": "write the quote that closes the text, on its own line",
    "illegal character": "remove it",
    "found invalid character": "remove it",
    "expected '='": "write KEY = VALUE",
    "invalid statement": "write KEY = VALUE, or [SECTION]",
    "invalid initial character": "write KEY = VALUE; a key of other signs than "
    "letters, digits, _ and - goes in quotes",
    "expected newline": "write one KEY = VALUE on a line; text goes in quotes, and "
    'durations and sizes do: "5s"',
    "expected ']": "write [SECTION] or [[SECTION]], alone on its line",
    "cannot overwrite": f"the key is there already: {KEEP_ONE}",
    "cannot declare": "it is there already: write its keys below the first",
    "cannot redefine": "it is there already: write its keys below the first",
    "duplicate inline": KEEP_ONE,
    "cannot mutate": "it is closed where it is written: write all of it in one place",
    "unescaped": "write \\\\ for one \\, or the text in single quotes",
    "invalid hex": "write \\\\ for one \\, or the text in single quotes",
    "invalid date": "write it in quotes if it is text",
}
_YAML = {
    "found character '\\t'": "indent with spaces",
    "mapping values are not allowed": "write KEY: VALUE on a line of its own, all "
    'keys of a section equally far in; text with ": " in it goes in quotes',
    "could not find expected ':'": "write KEY: VALUE",
    "expected ',' or ']'": "write ] behind the last entry of the list, or a comma "
    "between two",
    "expected ',' or '}'": "write } behind the last key of the table, or a comma "
    "between two",
    "expected <block end>": "indent all keys of a section equally far, and put quotes "
    "around text that begins with one",
    "found unexpected end of stream": "write the quote that closes the text",
    "found character": "write the text in quotes",
    "found undefined alias": "write the text in quotes: a * begins an alias",
}
_JSON = {
    "expecting property name": 'write "KEY": VALUE, in double quotes, and no comma '
    "behind the last",
    "expecting ':'": 'write "KEY": VALUE',
    "expecting ','": "write a comma between two, ] or } behind the last",
    "expecting value": 'write text in double quotes, as in "cp1:7443", and no comma '
    "behind the last",
    "illegal trailing comma": "write no comma behind the last",
    "unterminated string": "write the quote that closes the text",
    "invalid control character": "write the quote that closes the text, on its own "
    "line",
    "extra data": "put all keys into one { }",
    "invalid \\": "write \\\\ for one \\",
}
_FIXES = {"TOML": _TOML, "YAML": _YAML, "JSON": _JSON}


class Slip(Struct, frozen=True):
    """What is said of it, on which line, and the fix."""

    what: str
    line: int | None
    fix: str = ""


def fix_of(what: str, language: str) -> str:
    """For a parser's *what*; "" for one that is not known."""
    known = _FIXES[language].items()
    return next((fix for said, fix in known if what.startswith(said)), "")


def of_toml(what: str, text: str, at: int | None) -> Slip:
    """*at*: where the parser stood; it stands behind the place where the slip is."""
    what = _NAMES.sub(_dotted, what)
    line = None if at is None else text.count("\n", 0, at) + 1
    if at is not None and (opened := _open_list(text, at)) is not None:
        # What follows a list that was not closed is read as an entry of it.
        rest = text[at:]
        begun = text[text.rfind("\n", 0, at) + 1 :].partition("\n")[0]
        over = opened != line and _STATEMENT.match(begun)
        if over or not rest.strip():
            said = "the list that begins here is not closed"
            return Slip(said, opened, "write ] behind its last entry")
        if what == "unclosed array":
            said = "two entries of a list have no comma between them"
            return Slip(said, line, "write a comma behind each entry but the last")
    fix = fix_of(what, "TOML")
    if what == "illegal character '\\n'":
        what = "a text has no quotes at its end"
    return Slip(what, line, fix)


def _dotted(names: re.Match[str]) -> str:
    return ".".join(re.findall(r"'([^']*)'", names[0]))


def _open_list(text: str, end: int) -> int | None:
    """The line on which the outermost list begins that is open at *end*."""
    opened: list[tuple[str, int]] = []
    is_value, line = False, 1
    for match in _TOKEN.finditer(text, 0, end):
        sign = match[0]
        if sign == "=":
            is_value = True
        elif sign == "\n" and not opened:
            is_value = False
        elif sign in ("[", "{") and is_value:
            opened.append((sign, line))
        elif sign in ("]", "}") and opened:
            opened.pop()
        line += sign.count("\n")
    return opened[0][1] if opened and opened[0][0] == "[" else None
