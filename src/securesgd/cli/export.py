"""`securesgd export`: the model of a run as one ONNX file, with the recipe of its vote."""

__all__ = ["export"]

from pathlib import Path
from typing import Annotated

import typer

from securesgd.cli.app import Network, app


@app.command(epilog="Example: securesgd export runs/a --onnx model.onnx")
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    onnx: Annotated[Path, typer.Option(help="File to write; an existing one is not overwritten.", metavar="FILE")],
    norm: Annotated[
        str, typer.Option(help="Of the radii, for a noisy network: linf, l2 or l1. The run's own if not given.")
    ] = "",
    network: Network = "",
) -> None:
    """Write the model as an ONNX file that onnxruntime predicts from, without torch and without this package.

    Of a noisy network the noise is an input of the graph, to be drawn afresh for every prediction; the metadata say how
    votes are counted and what radius they prove, and examples/onnx_voter.py does it. Models without noise are exported
    too, but their radii are by interval bounds, which only [dim]securesgd certify[/] computes.
    """
    from securesgd.run import load_run

    path = load_run(run, network=network or None).export(onnx, norm=norm or None)
    print(path)
