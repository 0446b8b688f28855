"""What the sink is about to insert, kept in the metadata of its Kafka offset commit.

One commit says both: everything before this offset is in ClickHouse, and the range from here to `last` is
being inserted under its token. Whoever takes the partition over replays exactly that range first, so that
the token finds what may already be there (C11). Kafka refuses the commit of a consumer that has lost the
partition, so a stalled one can't start another range.
"""

_PREFIX = "headrace:1:"


def encode(last: int | None) -> str:
    """Metadata for a range that ends with this offset; None: nothing is being inserted."""
    return "" if last is None else f"{_PREFIX}{last}"


def decode(metadata: str | None) -> int | None:
    """The last offset of the range being inserted, if there is one. Foreign metadata means none."""
    if metadata and metadata.startswith(_PREFIX):
        digits = metadata.removeprefix(_PREFIX)
        if digits.isdigit():
            return int(digits)
    return None
