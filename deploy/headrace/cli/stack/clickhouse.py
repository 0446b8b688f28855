"""ClickHouse as a child process: the whole server out of the chdb-core wheel, on loopback.

Survives `kill -9`: no acknowledged insert is lost. Stops when its stdin closes.
"""

import importlib.util
import platform
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.cli.stack.ports import LOOPBACK, pick
from headrace.cli.stack.service import Service, ServiceError

_CHILD = Path(__file__).with_name("clickhouse_child.py")

# No <logger>: a log file of this build is always at trace level. Errors go to stderr, which is our log.
_CONFIG = """\
<clickhouse>
  <http_port>{port}</http_port>
  <tcp_port>{native_port}</tcp_port>
  <listen_host>{host}</listen_host>
  <keep_alive_timeout>10</keep_alive_timeout>
{extra_xml}
</clickhouse>
"""


class ClickHouseServer(Service):
    def __init__(
        self,
        root: Path,
        *,
        port: int | None = None,
        native_port: int | None = None,
        timezone: str = "UTC",
        extra_xml: str = "",
        log_dir: Path | None = None,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 20.0,
    ) -> None:
        """`port` is HTTP's. Ports are preferences: taken ones are replaced. `extra_xml` is config.xml's."""
        super().__init__(
            root,
            name="clickhouse",
            log_dir=log_dir,
            start_timeout_s=start_timeout_s,
            stop_timeout_s=stop_timeout_s,
        )
        self.host = LOOPBACK
        self.port = pick(port)
        self.native_port = pick(native_port, taken=(self.port,))
        self.timezone = timezone
        self.extra_xml = extra_xml

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"port": self.port, "native_port": self.native_port}

    @property
    def waits_for(self) -> str:
        return f"ClickHouse at {self.endpoint} to answer /ping"

    def _command(self) -> Sequence[str]:
        # -P: this folder has modules of its own, which must not stand in for others of the same name.
        return [sys.executable, "-P", str(_CHILD), str(self.data_path)]

    def _environment(self) -> Mapping[str, str]:
        # This build takes no heed of <timezone>.
        return {"TZ": self.timezone}

    def _prepare(self) -> None:
        check_machine()
        values = {"host": self.host, "port": self.port, "native_port": self.native_port}
        config = _CONFIG.format(**values, extra_xml=self.extra_xml)
        (self.root / "config.xml").write_text(config)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/ping", timeout=1) as answer:  # noqa: S310
                return bool(answer.read() == b"Ok.\n")
        except OSError:
            return False

    def _request_stop(self, process: subprocess.Popen[bytes]) -> None:
        # SIGTERM would end it without its own shutdown.
        if process.stdin is not None:
            process.stdin.close()


def check_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Raises ServiceError, saying what to do, where the server out of the wheel can't run."""
    if importlib.util.find_spec("chdb") is None:
        raise ServiceError(
            "the ClickHouse server comes with chdb-core, which is not installed: "
            "pip install 'headrace[local]'"
        )
    is_x86 = platform.machine() in {"x86_64", "AMD64"}
    if is_x86 and cpuinfo.exists() and "avx2" not in cpuinfo.read_text().split():
        raise ServiceError(
            "the ClickHouse server of chdb-core needs a CPU with AVX2, which this one has not: set "
            "HEADRACE_CLICKHOUSE_HOST and HEADRACE_CLICKHOUSE_PORT to a ClickHouse that runs elsewhere"
        )
