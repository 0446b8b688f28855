"""Files of recorded traces, read as records: `Source(paths)` yields records and what could not be read.

Formats, told apart by content: OpenAI chat pairs (`openai_chats`) and OTLP/JSON (`otlp`), one JSON object
a line, or one object written over many lines; gzip or not. Lines are read as they are asked for, so
that a file may be of any size; an object over many lines must fit in memory. Records of chats come as
the lines do; those of traces when all files are read, since a trace may be spread over them.
"""

import gzip
import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Literal, NamedTuple

from headrace.schemas.errors import FatalError
from headrace.schemas.records import Record
from headrace.schemas.records.rollout import Mode
from headrace.streams.ingest.bad_input import BadInputError, MalformedError
from headrace.streams.ingest.conversations import DEFAULT_WINDOW
from headrace.streams.ingest.openai_chats import ChatImport, Grouping
from headrace.streams.ingest.otlp_traces import TraceImport
from headrace.streams.ingest.strict_json import decode, members

Format = Literal["openai-chats", "otlp"]

_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_LINES_TO_DETECT = 1000
_REPORT_EVERY = 256


class Line(NamedTuple):
    """A line that is not blank, or a whole file that is one object; numbered from 1."""

    number: int
    content: bytes


def _ignore(_position: int) -> None:
    pass


class Source:
    """Iterate once. `num_repeated` counts lines and spans that were there before, and were left out."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        file_format: Format | None = None,
        group: Grouping = "conversation",
        mode: Mode = "train",
        window: int = DEFAULT_WINDOW,
        on_bytes: Callable[[int], None] = _ignore,
    ) -> None:
        self._paths = paths
        self._format = file_format
        self._group: Grouping = group
        self._mode: Mode = mode
        self._window = window
        self._on_bytes = on_bytes
        self.num_repeated = 0

    def __iter__(self) -> Iterator[Record | BadInputError]:
        """FatalError for a file whose format can't be told. Bad input is yielded, and reading goes on."""
        traces: TraceImport | None = None
        for path in self._paths:
            found = self._format or detect(path)
            if found == "otlp":
                traces = traces or TraceImport(mode=self._mode)
                yield from self._read_traces(path, traces)
            elif found == "openai-chats":
                yield from self._read_chats(path)
            else:
                self._on_bytes(path.stat().st_size)
        if traces is not None:
            yield from traces.close()
            self.num_repeated += traces.num_repeated

    def _read_chats(self, path: Path) -> Iterator[Record | BadInputError]:
        chats = ChatImport(mode=self._mode, group=self._group, window=self._window)
        for line in self._lines(path):
            if isinstance(line, BadInputError):
                yield line
                continue
            try:
                yield from chats.feed(decode(line.content))
            except MalformedError as problem:
                yield BadInputError(str(path), line.number, problem, line.content)
        yield from chats.close()
        self.num_repeated += chats.num_repeated

    def _read_traces(self, path: Path, traces: TraceImport) -> Iterator[BadInputError]:
        for line in self._lines(path):
            if isinstance(line, BadInputError):
                yield line
                continue
            try:
                for bad in traces.feed(line.content):
                    yield BadInputError(str(path), line.number, bad.problem, bad.original, bad.part)
            except MalformedError as problem:
                yield BadInputError(str(path), line.number, problem, line.content)

    def _lines(self, path: Path) -> Iterator[Line | BadInputError]:
        """The file's lines; a gzip file that is damaged ends with a BadInputError."""
        number = 0
        try:
            for line in read_lines(path, self._on_bytes):
                number = line.number
                yield line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            problem = MalformedError("bad_gzip", f"the compressed data is damaged from here on: {error}")
            yield BadInputError(str(path), number + 1, problem, b"")


def detect(path: Path) -> Format | None:
    """The format, by the first object that has the marks of one; None for an empty file."""
    is_empty = True
    try:
        for line in itertools.islice(read_lines(path), _LINES_TO_DETECT):
            is_empty = False
            try:
                names = members(decode(line.content)).keys()
            except MalformedError:
                continue
            if names & {"resourceSpans", "resource_spans"}:
                return "otlp"
            if {"request", "response"} <= names:
                return "openai-chats"
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FatalError(f"{path}: the compressed data is damaged: {error}") from error
    if is_empty:
        return None
    raise FatalError(
        f"{path} has neither chat pairs (request, response) nor OTLP traces (resourceSpans) in its first "
        f"{_LINES_TO_DETECT} lines; if it should, name its format"
    )


def read_lines(path: Path, on_bytes: Callable[[int], None] = _ignore) -> Iterator[Line]:
    """Lines that are not blank. `on_bytes` hears how many bytes of the file were read since it last did."""
    with path.open("rb") as raw:
        is_gzip = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        stream: IO[bytes] = gzip.GzipFile(fileobj=raw) if is_gzip else raw  # type: ignore[assignment]
        reported = 0
        is_first = True
        numbered = enumerate(stream, 1)
        for number, content in numbered:
            line = content.removeprefix(_BOM) if number == 1 else content
            if not line.strip():
                continue
            if is_first and _opens_a_document(line):
                line += b"".join(rest for _, rest in numbered)
            is_first = False
            yield Line(number, line.rstrip(b"\r\n"))
            if number % _REPORT_EVERY == 0:
                position = raw.tell()
                on_bytes(position - reported)
                reported = position
        on_bytes(raw.tell() - reported)


def _opens_a_document(line: bytes) -> bool:
    """An object written over many lines breaks them behind a bracket or comma; a cut line hardly does."""
    text = line.strip()
    return text.startswith(b"{") and text.endswith((b"{", b"[", b","))
