"""What every test can ask for."""

import pytest

pytest.register_assert_rewrite("tests.audit", "tests.rollout_audit", "tests.stories")
pytest_plugins = ["tests.services", "tests.pipeline"]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
