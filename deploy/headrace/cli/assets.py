"""Where the files that stand beside the code are: Kafka's pom, ClickHouse's migrations."""

from pathlib import Path

from headrace.schemas.errors import FatalError

_INSTALLED = Path(__file__).parent / "assets"
_CHECKOUT = Path(__file__).parents[2]


def asset(name: str) -> Path:
    """The folder `name` (`kafka`, `clickhouse`): inside an installed wheel, or in `deploy/` of a checkout."""
    for folder in (_INSTALLED / name, _CHECKOUT / name):
        if folder.is_dir():
            return folder
    raise FatalError(f"the folder {name!r} is missing from this installation of headrace; install it again")
