"""What an agent's machine imports is small: nothing of the extras, so that the core install suffices."""

import json
from pathlib import Path

import pytest
from tests.packaging.conftest import Run

EXTRAS = {
    "aiokafka",
    "chdb",
    "clickhouse_connect",
    "faust",
    "megatron",
    "mode",
    "numpy",
    "opentelemetry",
    "pandas",
    "prometheus_client",
    "prompt_toolkit",
    "pyarrow",
    "rocksdict",
    "safetensors",
    "starlette",
    "torch",
    "transformers",
    "uvicorn",
    "vllm",
}
CORE = (
    "headrace/schemas",
    "headrace/streams/client",
    "headrace/streams/ingest",
    "headrace/streams/runner",
    "headrace/cli/main.py",
)
OPTIONAL = {
    "headrace.streams.client.feed_prometheus",
    "headrace.streams.runner.otel",
    "headrace.streams.runner.prometheus",
}
"""Imported only where their extra is there."""
IMPORT = "import importlib, json, sys; importlib.import_module({!r}); print(json.dumps(list(sys.modules)))"


def modules_of(installed: Path) -> list[str]:
    """Every module of the core."""
    files = [path for name in CORE for path in [installed / name, *(installed / name).rglob("*.py")]]
    names = {path.relative_to(installed).with_suffix("").parts for path in files if path.suffix == ".py"}
    modules = {".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in names}
    return sorted(modules - OPTIONAL)


def test_the_core_imports_nothing_of_the_extras(run_installed: Run, installed: Path) -> None:
    modules = modules_of(installed)
    assert {"headrace.schemas.codec", "headrace.schemas.registry", "headrace.cli.main"} <= set(modules)
    assert any(name.startswith("headrace.streams.client.") for name in modules)
    program = f"""
import importlib, json, sys
found = {{}}
for name in {modules!r}:
    importlib.import_module(name)
    for module in set(sys.modules) & {EXTRAS!r}:
        found.setdefault(module, name)
print(json.dumps(found))
"""
    assert json.loads(run_installed("-c", program)) == {}


def test_the_core_works_where_the_extras_are_not_installed(run_installed: Run, installed: Path) -> None:
    # fastavro takes cramjam where it is there, and does without.
    program = f"""
import importlib, sys
sys.modules |= dict.fromkeys({EXTRAS | {"cramjam"}!r})
for name in {modules_of(installed)!r}:
    importlib.import_module(name)
"""
    run_installed("-c", program)


@pytest.mark.parametrize("module", ["headrace.schemas.codec", "headrace.cli.main"])
def test_a_registry_s_client_is_loaded_only_when_used(run_installed: Run, module: str) -> None:
    """`confluent-kafka[schema-registry]` is an extra too."""
    loaded = json.loads(run_installed("-c", IMPORT.format(module)))
    assert not [name for name in loaded if name.startswith("confluent_kafka.schema_registry")]


def test_a_command_whose_packages_are_missing_says_so(run_installed: Run) -> None:
    program = """
import sys
from click.testing import CliRunner
from headrace.cli import main as module
module.COMMANDS["far"] = "not_installed.anywhere:command"
result = CliRunner().invoke(module.main, ["far", "--fast", "now"])
print(result.exit_code, result.output.strip())
print("not_installed" in CliRunner().invoke(module.main, ["--help"]).output)
"""
    refusal, is_listed = run_installed("-c", program).splitlines()
    assert refusal == "1 Error: Needs not_installed, which is not installed: pip install 'headrace[local]'."
    assert is_listed == "True"
