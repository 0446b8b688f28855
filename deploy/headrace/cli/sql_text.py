"""SQL as text: where a statement ends. ClickHouse's quotes and comments are known, its grammar is not."""

import re

_TOKEN = re.compile(
    r"""
      (?P<skip>
          --[^\n]*                              # comments
        | \#[!\s][^\n]*
        | /\*.*?(?:\*/|\Z)
        | '(?:[^'\\]|\\.|'')*(?:'|\Z)           # strings, and names in quotes
        | "(?:[^"\\]|\\.|"")*(?:"|\Z)
        | `(?:[^`\\]|\\.|``)*(?:`|\Z)
        | \$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|\Z)  # heredocs
      )
    | (?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(r"--[^\n]*|#[!\s][^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_FORMAT = re.compile(r"\bFORMAT\s+\w+\s*\Z", re.IGNORECASE)


def statements(text: str) -> list[str]:
    """The statements in a text, without their `;`. One that is nothing but comments is left out."""
    whole, rest = _split(text)
    return [statement.strip() for statement in [*whole, rest] if _says_something(statement)]


def is_complete(text: str) -> bool:
    """Whether the text ends with a `;` that ends a statement; spaces and comments may follow."""
    whole, rest = _split(text)
    return bool(whole) and not _says_something(rest)


def has_format(statement: str) -> bool:
    """Whether the statement ends with a FORMAT of its own."""
    return bool(_FORMAT.search(statement))


def _split(text: str) -> tuple[list[str], str]:
    whole = []
    start = 0
    for match in _TOKEN.finditer(text):
        if match["end"]:
            whole.append(text[start : match.start()])
            start = match.end()
    return whole, text[start:]


def _says_something(statement: str) -> bool:
    # A quote can't be missed by this: a comment in front of it would have to hold it.
    return bool(_COMMENT.sub("", statement).strip())
