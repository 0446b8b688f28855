"""`--json`: one object a line, for programs."""

import sys
from collections.abc import Iterable, Mapping

import orjson


def print_json_lines(objects: Iterable[Mapping[str, object]]) -> None:
    for item in objects:
        sys.stdout.buffer.write(orjson.dumps(item, option=orjson.OPT_UTC_Z) + b"\n")
    sys.stdout.buffer.flush()
