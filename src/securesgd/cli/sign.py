"""`securesgd sign`: the digest of every file of a run, signed."""

__all__ = ["sign"]

from pathlib import Path
from typing import Annotated

import typer

from securesgd.cli.app import app
from securesgd.errors import InvalidInputError


@app.command(epilog="Examples:\n\nsecuresgd sign --new-key me.key\n\nsecuresgd sign runs/a --key me.key")
def sign(
    run: Annotated[Path | None, typer.Argument(help="Folder of a finished run.")] = None,
    key: Annotated[Path | None, typer.Option(help="File of your private key.")] = None,
    new_key: Annotated[
        Path | None, typer.Option(help="Make a key in this file; the public one, for others, is beside it as .pub.")
    ] = None,
) -> None:
    """Sign a run: securesgd check then notices every file that is changed, added or removed, and names the signer.

    Writes manifest.json and manifest.sig (Ed25519) into the folder. Sign last: a report that is written later is a
    changed file.
    """
    from securesgd.check.manifest import create_key, sign_folder

    if new_key is not None:
        print(f"{new_key} is a new private key, {new_key}.pub its public one: {create_key(new_key)}")
    if run is None:
        if new_key is None or key is not None:
            raise InvalidInputError("no run is given; valid: securesgd sign RUN --key FILE, or --new-key FILE")
        return
    signing_key = key or new_key
    if signing_key is None:
        raise InvalidInputError(f"{run} cannot be signed without a key; valid: --key FILE, or --new-key FILE")
    print(f"{run} is signed by {sign_folder(run, signing_key)}")
