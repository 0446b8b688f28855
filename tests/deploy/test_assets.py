from pathlib import Path

import pytest

from headrace.cli import assets
from headrace.schemas.errors import FatalError


def test_a_checkout_has_them_beside_the_code() -> None:
    assert (assets.asset("kafka") / "pom.xml").is_file()
    assert assets.asset("clickhouse").is_dir()


def test_an_installed_wheel_has_them_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kafka").mkdir()
    monkeypatch.setattr(assets, "_INSTALLED", tmp_path)
    assert assets.asset("kafka") == tmp_path / "kafka"


def test_what_is_missing_is_named() -> None:
    with pytest.raises(FatalError, match="'nothing' is missing"):
        assets.asset("nothing")
