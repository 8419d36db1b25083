"""A small grid: what its worker processes import, which is little."""

import os
import time

CELLS = [{"method": m, "epsilon": e, "seed": s} for m in ("a", "b") for e in (0.2, 1.0) for s in (0, 1)]


def measured(cell, work):
    """Two rows per cell, and a mark on disk for every call."""
    with (work / "calls").open("a") as file:
        file.write(f"{cell}\n")
    threads = os.environ.get("OMP_NUM_THREADS")
    return [{**cell, "attack": k, "value": cell["epsilon"] + k, "threads": threads} for k in (0, 1)]


def wait_long(cell, work):
    (work / "pid").write_text(str(os.getpid()))
    time.sleep(60)
    return [{**cell, "value": 1}]
