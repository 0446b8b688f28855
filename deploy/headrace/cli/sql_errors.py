"""What ClickHouse says is wrong, without what only its developers read."""

import re

from headrace.schemas.errors import FatalError

UNKNOWN_DATABASE = 81

_MESSAGE = re.compile(r"Code: (?P<code>\d+)\. DB::Exception: (?P<text>.*)", re.DOTALL)
_NOISE = re.compile(r"[\s,]*(?:\(version \d|\(for url |Stack trace:).*", re.DOTALL)
_SCOPE = re.compile(r":? In scope .*?(?=\. \([A-Z_]+\)$|$)", re.DOTALL)
_EXPECTED = re.compile(r"\.? Expected one of: .*?(?=\. \([A-Z_]+\)$|$)", re.DOTALL)
_ECHO = re.compile(r"(?<=\)): .*?(?=\. \(SYNTAX_ERROR\)$)", re.DOTALL)
_PLAN = re.compile(r": [Ww]hile executing .*?(?=\. \([A-Z_]+\)$|$)", re.DOTALL)
_POSITION = re.compile(r"failed at position (\d+)")


class QueryError(FatalError):
    """ClickHouse refused a statement, or gave up on it."""


def server_message(text: str) -> str:
    """The server's message out of an error's text: no code, version, URL, stack, and no echo of the query."""
    match = _MESSAGE.search(text)
    if match is None:
        return text
    message = _NOISE.sub("", match["text"]).strip()
    for echo in (_SCOPE, _EXPECTED, _ECHO, _PLAN):
        message = echo.sub("", message)
    message = message.replace("?. (", "? (")
    if int(match["code"]) == UNKNOWN_DATABASE:
        message += ". `headrace migrate` creates headrace's own"
    return message


def pointed(message: str, statement: str) -> str:
    """The message of a syntax error, with the line of the statement that it is about."""
    match = _POSITION.search(message)
    if match is None:
        return message
    # ClickHouse counts bytes, from 1.
    before = statement.encode()[: int(match[1]) - 1].decode(errors="ignore")
    line = statement.splitlines()[before.count("\n")] if statement else ""
    column = len(before) - before.rfind("\n") - 1
    start = max(column - 60, 0)
    return f"{message}\n  {line[start : column + 40]}\n  {' ' * (column - start)}^"


def cause(error: BaseException) -> str:
    """Why there was no answer, in the operating system's words where they are to be found."""
    match = re.search(r"\[Errno -?\d+\] ([^)\"'\]]+)", str(error))
    if match:
        return match[1].strip()
    return "timed out" if "timed out" in str(error) else str(error)
