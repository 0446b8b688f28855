import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli.stack.clickhouse import ClickHouseServer, check_machine
from headrace.cli.stack.ports import is_open
from headrace.cli.stack.service import ServiceError


def query(server: ClickHouseServer, sql: str) -> str:
    with urllib.request.urlopen(server.endpoint, data=sql.encode(), timeout=30) as answer:  # noqa: S310 - http://
        return str(answer.read().decode().strip())


@pytest.mark.integration
def test_the_private_entry_of_chdb_core_still_gives_a_server(clickhouse: ClickHouseServer) -> None:
    assert query(clickhouse, "SELECT version()").startswith("26.9.")
    assert query(clickhouse, "SELECT timezone()") == "UTC"
    assert is_open(clickhouse.native_port)


@pytest.mark.integration
def test_data_survives_stop_and_kill(clickhouse_factory: Callable[..., ClickHouseServer]) -> None:
    server = clickhouse_factory().start()
    endpoint = server.endpoint
    query(server, "CREATE TABLE t (x UInt8) ENGINE = MergeTree ORDER BY x")
    query(server, "INSERT INTO t VALUES (1)")
    server.stop()
    assert server.exit_status == 0
    server.start()
    query(server, "INSERT INTO t VALUES (2)")
    server.kill()
    server.start()
    assert server.endpoint == endpoint
    assert query(server, "SELECT x FROM t ORDER BY x") == "1\n2"


@pytest.mark.integration
def test_c16_a_server_in_another_time_zone(clickhouse_factory: Callable[..., ClickHouseServer]) -> None:
    with clickhouse_factory(timezone="Asia/Tokyo") as server:
        assert query(server, "SELECT timezone()") == "Asia/Tokyo"


@pytest.mark.integration
def test_c18_the_servers_own_error_is_shown(clickhouse_factory: Callable[..., ClickHouseServer]) -> None:
    server = clickhouse_factory()
    with socket.socket() as thief:
        thief.bind((server.host, server.port))
        thief.listen()
        with pytest.raises(ServiceError, match=r"(?s)waiting for ClickHouse at http.*Address already in use"):
            server.start()


def test_a_processor_without_avx2_is_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu sse4_2 avx\n")
    with pytest.raises(ServiceError, match=r"AVX2.*HEADRACE_CLICKHOUSE_HOST"):
        check_machine(cpuinfo)
    cpuinfo.write_text("flags\t\t: fpu sse4_2 avx avx2\n")
    check_machine(cpuinfo)
