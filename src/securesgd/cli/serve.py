"""`securesgd serve`: a run as a web page and a JSON interface."""

__all__ = ["serve"]

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from securesgd.cli.app import Device, Network, app
from securesgd.errors import InvalidInputError


@app.command(epilog="Example: securesgd serve runs/a")
def serve(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0: any free one.")] = 8000,
    network: Network = "",
    draws: Annotated[int, typer.Option(help="Noise draws counted per prediction.")] = 1_000,
    workers_queue: Annotated[int, typer.Option(help="Requests that may wait for the model.")] = 64,
    device: Device = "cpu",
) -> None:
    """Serve a run: a page on which to try it, and a JSON interface with the proven radius of every prediction.

    Draws fresh secret noise for every request, so inputs may come from anybody. There is no password and no
    encryption: to let other machines in, put a server that has both in front. Needs pip install "securesgd\\[serve]".
    """
    try:
        from securesgd.serve.limits import Limits
        from securesgd.serve.server import is_loopback
        from securesgd.serve.server import serve as serve_until_stopped
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        raise InvalidInputError(f'{missing} is not installed; run pip install "securesgd[serve]"') from None
    from securesgd.run import load_run
    from securesgd.runtime.machine import keep_memory
    from securesgd.serve.answers import ServedRun, require_no_secret

    limits = Limits(queue=workers_queue)
    require_no_secret(run)
    keep_memory()
    served = ServedRun(load_run(run, network=network or None, device=device), draws=draws)
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)

    def announce(address: str) -> None:
        if not is_loopback(host):
            console.print("caution: other machines may ask, too, without a password and without encryption")
        print(f"serving at {address}", flush=True)

    serve_until_stopped(served, host=host, port=port, limits=limits, on_start=announce)
    console.print("stopped; all requests under way were finished")
