"""Follow docs/start.md as a reader does, in a new folder, and record what its commands and programs print.

    python release/start_page.py              (in an environment with the wheel; rows into results/start/rows.jsonl)

Everything after the installation is run as printed, whole and with a secret key, so other runs have other numbers. The
page shows lines of these rows; tests/test_numbers.py compares.
"""

import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.markdown import blocks  # noqa: E402

ROWS = ROOT / "results" / "start" / "rows.jsonl"


def main() -> None:
    """Run the blocks of the page in order; stop at the first that fails."""
    import securesgd

    if Path(securesgd.__file__).is_relative_to(ROOT):
        raise SystemExit("the page is followed with the wheel installed, not with the sources of this repository")
    programs = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "120"}
    machine = {
        "version": securesgd.__version__, "processor": platform.machine(), "processors": len(os.sched_getaffinity(0)),
        "threads": os.environ.get("OMP_NUM_THREADS", "not set"),
    }  # fmt: skip
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for block in blocks(ROOT / "docs" / "start.md"):
            commands = block.commands() if block.kind == "commands" else []
            if block.kind == "python":
                commands = [["python", "-c", block.text]]
            if any(words[0] == "pip" for words in commands):
                continue  # done before: this program runs in what it installed
            for words in commands:
                before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
                result = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                if result.returncode:
                    raise SystemExit(f"{shlex.join(words)}: {result.stderr or result.stdout}")
                used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                rows.append({
                    "command": shlex.join(words), "printed": result.stdout.splitlines(),
                    "seconds": round(time.monotonic() - wall, 1), "processor_seconds": round(used, 1),
                    "load": round(os.getloadavg()[0], 1), **machine,
                })  # fmt: skip
                print(f"{rows[-1]['seconds']:7.1f} s  {shlex.join(words).splitlines()[0]}", flush=True)
    ROWS.parent.mkdir(parents=True, exist_ok=True)
    ROWS.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


if __name__ == "__main__":
    main()
