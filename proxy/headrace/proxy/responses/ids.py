"""Ids of a response and its items: an item's says which response it came from."""

from typing import NamedTuple

from headrace.schemas.ids import uuid7_time_ms

_HEX = 32


class ResponseIds(NamedTuple):
    stem: str
    """32 hexadecimal digits, of a UUIDv7."""

    @classmethod
    def of(cls, uuid: str) -> "ResponseIds":
        return cls(uuid.replace("-", ""))

    @property
    def made_at_s(self) -> int:
        return uuid7_time_ms(self.stem) // 1000

    @property
    def response(self) -> str:
        return f"resp_{self.stem}"

    def item(self, prefix: str, output_index: int) -> str:
        return f"{prefix}_{self.stem}{output_index:04x}"

    def call(self, output_index: int) -> str:
        """For a tool call that the upstream gave no id of its own."""
        return f"call_{self.stem}{output_index:04x}"


def response_of_item(item_id: str) -> str:
    """The id of the response that made the item; of no response if it is not one of ours."""
    return f"resp_{item_id.partition('_')[2][:_HEX]}"
