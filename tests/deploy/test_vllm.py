import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import orjson
import pytest

from headrace.cli.stack.process import ProcessId
from headrace.cli.stack.service import ServiceError
from headrace.cli.stack.settings import StackSettings
from headrace.cli.stack.vllm import VllmServer

_PARENT = """
import sys
from pathlib import Path
from headrace.cli.stack.vllm import VllmServer

root, model, bytecode = map(Path, sys.argv[1:])
server = VllmServer(root, model=model, bytecode=bytecode).start()
print(server.pid, server.endpoint, flush=True)
sys.stdin.read()
"""


def members(group: int) -> list[ProcessId]:
    """Who lives in a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        process = ProcessId.of(int(entry.name))
        if int(fields[2]) == group and process is not None:
            found.append(process)
    return found


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"no model in .*nothing: it has no config\.json"):
        VllmServer(tmp_path / "root", model=tmp_path / "nothing").start()


@pytest.mark.integration
def test_it_serves_and_stops_whole(vllm_factory: Callable[..., VllmServer]) -> None:
    server = vllm_factory().start()
    assert server.pid is not None
    everyone = members(server.pid)
    assert len(everyone) >= 2
    assert server.startup_s < 120
    server.stop()
    assert server.exit_status == 0
    assert all(process.wait_gone(5) for process in everyone)


@pytest.mark.integration
def test_c18_its_own_error_is_shown(vllm_factory: Callable[..., VllmServer]) -> None:
    server = vllm_factory(max_model_len=10**9)
    with pytest.raises(
        ServiceError, match=r"(?s)waiting for vLLM at http.*exited with status 1.*max_model_len"
    ):
        server.start()


@pytest.mark.chaos
def test_nothing_of_it_outlives_a_parent_that_is_killed(tmp_path: Path, tiny_model: Path) -> None:
    arguments = [str(tmp_path / "root"), str(tiny_model), str(StackSettings().cache / "bytecode")]
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        pid, endpoint = parent.stdout.readline().split()
        everyone = members(int(pid))
        assert len(everyone) >= 2
        # In the middle of its work, too.
        call = threading.Thread(target=_ask_in_vain, args=(endpoint,))
        call.start()
        parent.kill()
    assert all(process.wait_gone(30) for process in everyone)
    call.join()


def _ask_in_vain(endpoint: str) -> None:
    body = {"model": "policy", "prompt": [0], "max_tokens": 2000, "min_tokens": 2000}
    request = urllib.request.Request(  # noqa: S310 - http://
        f"{endpoint}/v1/completions", orjson.dumps(body), {"content-type": "application/json"}
    )
    with suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        answer.read()
