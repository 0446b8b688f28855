"""Recorded exchanges of others, where they are at hand, and lines of our own."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def recorded_chats() -> Path:
    """32 exchanges recorded by the Agent-Lightning project (its test assets, MIT)."""
    root = Path(__file__).parents[3]
    shared = Path(os.environ.get("HEADRACE_SHARED") or root.parent / "shared")
    path = shared / "data" / "recorded_chats.jsonl"
    if not path.is_file():
        pytest.skip(f"no recorded chats at {path}; HEADRACE_SHARED names the folder")
    return path
