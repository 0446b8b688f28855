"""Checks that need a GPU are left out of a run that doesn't ask for them with `-m gpu`."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "gpu" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("gpu")]
    items[:] = [item for item in items if not item.get_closest_marker("gpu")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
