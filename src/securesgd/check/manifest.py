"""Signatures: the digest of every file of a run folder, signed, for whoever knows the signer.

`manifest.json` has the SHA-256 of each file, `manifest.sig` an Ed25519 signature of it and the public key. Files for
one machine, and secrets, are left out. No torch.
"""

__all__ = ["MANIFEST_CLAIMS", "SignedFolder", "create_key", "fingerprint", "require_public_key", "sign_folder"]

import base64
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from securesgd import __version__
from securesgd.check.outcome import Claim, NotCheckable
from securesgd.errors import DamagedFileError, InvalidInputError
from securesgd.runtime import run_folder as names
from securesgd.runtime.run_folder import RunFolder
from securesgd.runtime.storage import file_digest, is_leftover, read_bytes, read_json, write_all, write_json

MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
_FORMAT = "securesgd-manifest"
_LEFT_OUT = (MANIFEST, SIGNATURE, names.LOCAL, names.SECRET, names.CHECKPOINT)
_MAX_KEY = 1 << 16
_RAW, _RAW_PUBLIC = serialization.Encoding.Raw, serialization.PublicFormat.Raw


@dataclass(frozen=True, kw_only=True)
class SignedFolder:
    """A run folder, and the file of the public key that must have signed it (None: whichever it is)."""

    folder: Path
    public_key: Path | None = None


def create_key(path: Path) -> str:
    """Write a new private key to `path`, readable by its owner only, the public one beside it; return its fingerprint.

    Guarantee: nothing is overwritten.
    Raises: InvalidInputError if there is a file already, or none can be written.
    """
    key, public = Ed25519PrivateKey.generate(), path.with_name(path.name + ".pub")
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    shown = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for file in (path, public):
        if file.exists() or file.is_symlink():
            raise InvalidInputError(f"{file} exists; valid: the path of a new file, as no key is overwritten")
    for file, content, mode in ((path, private, 0o600), (public, shown, 0o644)):
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        except OSError as error:
            raise InvalidInputError(f"{file} cannot be written: {error.strerror}; give another path") from None
        try:
            write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return fingerprint(key.public_key())


def sign_folder(folder: Path, key: Path) -> str:
    """Write manifest and signature into a finished run folder; return the fingerprint of the signer.

    Raises: InvalidInputError if the run is not finished, or `key` is not a private key of Ed25519.
    """
    if not RunFolder(folder).complete:
        raise InvalidInputError(f"{folder} is not a finished run; valid: the folder of one")
    signer = _private_key(key)
    manifest = {"format": _FORMAT, "version": 1, "securesgd_version": __version__, "files": _digests(folder)}
    write_json(folder / MANIFEST, manifest)
    public = signer.public_key().public_bytes(_RAW, _RAW_PUBLIC)
    signature = signer.sign(read_bytes(folder / MANIFEST))
    write_json(
        folder / SIGNATURE,
        {
            "algorithm": "Ed25519",
            "public_key": base64.b64encode(public).decode(),
            "signature": base64.b64encode(signature).decode(),
        },
    )
    return fingerprint(signer.public_key())


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return the SHA-256 of a public key, by which people compare it."""
    return "SHA256:" + hashlib.sha256(key.public_bytes(_RAW, _RAW_PUBLIC)).hexdigest()


def _check_signature(signed: SignedFolder) -> str:
    """Return who signed the folder, if it is as it was then. Raises: DamagedFileError if it is not."""
    folder = signed.folder
    there = [name for name in (MANIFEST, SIGNATURE) if (folder / name).exists()]
    if not there:
        if signed.public_key is not None:
            raise DamagedFileError("the folder is not signed, by nobody and so not by the key that was given")
        raise NotCheckable("the folder is not signed: who made it is not known here (securesgd sign)")
    if len(there) == 1:
        raise DamagedFileError(f"{there[0]} is there without its other half: the signature proves nothing")
    content, signature = read_bytes(folder / MANIFEST), read_json(folder / SIGNATURE)
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(signature["public_key"], validate=True))
    try:
        key.verify(base64.b64decode(signature["signature"], validate=True), content)
    except InvalidSignature:
        raise DamagedFileError("manifest.sig is not a signature of manifest.json by its key: one was changed") from None
    _require_unchanged(folder, read_json(folder / MANIFEST))
    signer = fingerprint(key)
    if signed.public_key is None:
        return f"unchanged since it was signed by {signer}, whom you must know yourself (--public-key)"
    wanted = fingerprint(require_public_key(signed.public_key))
    if wanted != signer:
        raise DamagedFileError(f"it was signed by {signer}, not by {wanted}")
    return f"unchanged since it was signed by {signer}, the key that was given"


def _require_unchanged(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise DamagedFileError if files of a folder are not those of a manifest."""
    if manifest.get("format") != _FORMAT or manifest.get("version") != 1:
        raise DamagedFileError("manifest.json is of another format than this version reads")
    stated, true = dict(manifest["files"]), _digests(folder)
    for words, files in (
        ("changed after signing", sorted(name for name in stated if name in true and stated[name] != true[name])),
        ("removed after signing", sorted(set(stated) - set(true))),
        ("added after signing", sorted(set(true) - set(stated))),
    ):
        if files:
            raise DamagedFileError(f"{words}: {', '.join(files)}")


def _digests(folder: Path) -> dict[str, str | None]:
    """Return the SHA-256 of each file of a folder, by name; of a link that of what it points to.

    Raises: DamagedFileError for a link to a folder, whose files no manifest covers.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()]
    linked = next((path for path in files if path.is_dir()), None)
    if linked is not None:
        raise DamagedFileError(f"{linked.relative_to(folder)} is a link to a folder, which no signature covers")
    files = [path for path in files if not is_leftover(path)]
    named = {path.relative_to(folder).as_posix(): path for path in files}
    return {name: file_digest(path) for name, path in named.items() if name not in _LEFT_OUT}


def _private_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(read_bytes(path, _MAX_KEY), None)
    except (ValueError, TypeError, UnsupportedAlgorithm, DamagedFileError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInputError(f"{path} is not a private key; valid: a file that securesgd sign --new-key made")
    return key


def require_public_key(path: Path) -> Ed25519PublicKey:
    """Return the public key in a file. Raises: InvalidInputError if there is none."""
    try:
        key = serialization.load_pem_public_key(read_bytes(path, _MAX_KEY))
    except (ValueError, TypeError, UnsupportedAlgorithm, DamagedFileError):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidInputError(f"{path} is not a public key; valid: the .pub file beside a key of securesgd sign")
    return key


MANIFEST_CLAIMS = (Claim(name="signature", files=(MANIFEST, SIGNATURE), check=_check_signature),)
