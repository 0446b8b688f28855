"""Run as a script: a ClickHouse server out of the chdb-core wheel, until stdin closes.

`python clickhouse_child.py DATA_FOLDER`; config.xml is read from the working directory. The entry is private
to chdb-core, so its version is pinned and a smoke test starts it. Three things must stay as they are: chdb
itself is not imported (that opens another engine in this process), the library is loaded with RTLD_DEEPBIND
as chdb does, and the last SELECT reads stdin, which is what keeps the server up.
"""

import importlib.util
import os
import sys
from pathlib import Path

_LISTEN = "SYSTEM START LISTEN HTTP; SYSTEM START LISTEN TCP"
_UNTIL_STDIN_CLOSES = "SELECT count() FROM file('-', 'LineAsString', 'line String')"


def main() -> None:
    package = importlib.util.find_spec("chdb")
    if package is None or not package.submodule_search_locations:
        sys.exit("chdb-core is not installed; pip install 'headrace[local]'")
    library = Path(package.submodule_search_locations[0]) / "_chdb.abi3.so"
    sys.setdlopenflags(sys.getdlopenflags() | os.RTLD_DEEPBIND)
    spec = importlib.util.spec_from_file_location("_chdb", library)
    if spec is None or spec.loader is None:
        sys.exit(f"{library} can't be loaded")
    engine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(engine)
    engine.query(f"{_LISTEN}; {_UNTIL_STDIN_CLOSES}", "TabSeparated", path=sys.argv[1])


if __name__ == "__main__":
    main()
