import pytest

from headrace.cli.sql_errors import cause, pointed, server_message

UNKNOWN = (
    "Received ClickHouse exception, code: 60, server response: Code: 60. DB::Exception: Unknown table "
    "expression identifier 'nope'. Maybe you meant system.one? In scope SELECT secret FROM nope. "
    "(UNKNOWN_TABLE) (version 26.9.2.1) (for url http://127.0.0.1:31190)"
)
SYNTAX = (
    "Code: 62. DB::Exception: Syntax error: failed at position 17 (' 2') (line 2, col 7): ' 2'. Expected "
    "one of: token sequence, Dot, (other things), end of query. (SYNTAX_ERROR) (version 26.9.2.1)"
)
THROWN = (
    "Code: 395. DB::Exception: Value passed to 'throwIf' function is non-zero: while executing 'FUNCTION "
    "throwIf(equals(__table1.number, 3 :: 0) -> x UInt8 : 2'. "
    "(FUNCTION_THROW_IF_VALUE_IS_NON_ZERO) (version 26.9.2.1)"
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (UNKNOWN, "Unknown table expression identifier 'nope'. Maybe you meant system.one? (UNKNOWN_TABLE)"),
        (SYNTAX, "Syntax error: failed at position 17 (' 2') (line 2, col 7). (SYNTAX_ERROR)"),
        (
            THROWN,
            "Value passed to 'throwIf' function is non-zero. (FUNCTION_THROW_IF_VALUE_IS_NON_ZERO)",
        ),
        (
            "Code: 81. DB::Exception: Database x does not exist. (UNKNOWN_DATABASE) (version 26.9.2.1)",
            "Database x does not exist. (UNKNOWN_DATABASE). `headrace migrate` creates headrace's own",
        ),
        ("no message of the server's", "no message of the server's"),
    ],
    ids=["unknown", "syntax", "thrown", "database", "other"],
)
def test_the_server_s_message_comes_without_noise(text: str, wanted: str) -> None:
    assert server_message(text) == wanted


def test_a_syntax_error_is_pointed_at() -> None:
    statement = "select 1, 'ä',\nselec ' 2'"
    # Bytes count: ä has two.
    message = "Syntax error: failed at position 23 (' 2') (line 2, col 7)."
    assert pointed(message, statement) == f"{message}\n  selec ' 2'\n        ^"
    assert pointed("Unknown table", statement) == "Unknown table"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('NewConnectionError("… [Errno 111] Connection refused")) executing', "Connection refused"),
        ("([Errno -2] Name or service not known)", "Name or service not known"),
        ("Read timed out. (read timeout=300)", "timed out"),
        ("else", "else"),
    ],
)
def test_cause(text: str, wanted: str) -> None:
    assert cause(Exception(text)) == wanted
