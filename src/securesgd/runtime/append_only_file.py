"""A file that one process at a time appends to; what was appended is on disk before the call returns."""

__all__ = ["AppendOnlyFile"]

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Self

from securesgd.errors import DamagedFileError, InvalidInputError, PrivacyError
from securesgd.runtime.storage import create_draft, read_bytes, sync_folder, write_all


class AppendOnlyFile:
    """An open file under an exclusive lock; build it with `create` or `open`.

    Guarantee: when `append` returns, the bytes survive a crash of the process and of the machine (as far as
    the disk honours fsync). Two processes, or two objects in one process, never hold the same file: the lock
    (flock) ends with `close` or with the process. After a failed write every further `append` is refused.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor
        self._owner = os.getpid()
        self._size = 0
        self._failed = False

    @classmethod
    def create(cls, path: Path, content: bytes) -> Self:
        """Return a new file that holds `content`.

        Guarantee: after a crash the file is either absent or whole: it is written under another name, synced,
        then linked; link fails if the name exists, so nothing is ever overwritten.
        Raises: InvalidInputError if the path exists or cannot be created.
        """
        try:
            if os.path.lexists(path):
                raise FileExistsError
            draft, descriptor = create_draft(path.parent, 0o644)
        except FileExistsError:
            raise _path_exists(path) from None
        except OSError as error:
            raise InvalidInputError(f"{path} cannot be created: {error.strerror}") from None
        file = cls(path, descriptor)
        try:
            file._lock()
            write_all(descriptor, content)
            os.fsync(descriptor)
            _link(draft, path)
            draft.unlink(missing_ok=True)
            sync_folder(path.parent)
        except BaseException as error:
            file.close()
            with contextlib.suppress(OSError):
                draft.unlink()
            if isinstance(error, FileExistsError):
                raise _path_exists(path) from None
            if isinstance(error, OSError):
                raise InvalidInputError(f"{path} cannot be created: {error.strerror}") from None
            raise
        file._size = len(content)
        return file

    @classmethod
    def open(cls, path: Path) -> tuple[Self, bytes]:
        """Return an existing file and its content; nothing is written.

        Raises: DamagedFileError if it cannot be opened, or is a symbolic link, a pipe or a device;
        PrivacyError if another process holds it.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise DamagedFileError(f"{path} does not exist") from None
        except OSError as error:
            reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
            raise DamagedFileError(f"{path} cannot be opened: {reason}") from None
        file = cls(path, descriptor)
        try:
            file._lock()
            content = read_bytes(path)
            file._size = len(content)
            file._check_unchanged()
        except BaseException:
            file.close()
            raise
        return file, content

    def append(self, content: bytes, *, at: int) -> None:
        """Write `content` at byte `at`, dropping what is beyond it (a torn end), and sync it to disk.

        Raises: PrivacyError if the file is closed, belongs to another process or cannot be written;
        DamagedFileError if another program moved, removed, shortened or extended it since. In all these cases the
        content does not count as written.
        """
        descriptor = self._descriptor_to_write()
        self._check_unchanged()
        try:
            if at < self._size:
                os.ftruncate(descriptor, at)
            os.lseek(descriptor, at, os.SEEK_SET)
            write_all(descriptor, content)
            os.fsync(descriptor)
        except BaseException as error:
            self._failed = True  # how much is on disk is unknown until the file is opened again
            if isinstance(error, OSError):
                raise PrivacyError(f"{self.path} could not be written ({error.strerror}); open it again") from None
            raise
        self._size = at + len(content)

    def close(self) -> None:
        """Close the file and give up the lock; closing it twice is harmless."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _descriptor_to_write(self) -> int:
        """Return the open descriptor. Raises: PrivacyError if this object must not write any more."""
        if self._descriptor is None:
            raise PrivacyError(f"{self.path} is closed; open it again")
        if self._failed:
            raise PrivacyError(f"{self.path} failed in an earlier write; open it again")
        if os.getpid() != self._owner:
            raise PrivacyError(f"{self.path} was opened by process {self._owner}; only that process may write to it")
        return self._descriptor

    def _check_unchanged(self) -> None:
        own = os.fstat(self._descriptor_to_write())
        try:
            named = self.path.lstat()
        except OSError:
            raise DamagedFileError(f"{self.path} was removed while in use") from None
        if (own.st_dev, own.st_ino) != (named.st_dev, named.st_ino) or own.st_size != self._size:
            raise DamagedFileError(f"{self.path} was changed by another program while in use")

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor_to_write(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PrivacyError(f"{self.path} is in use by another process; two runs cannot share a ledger") from None


def _link(draft: Path, path: Path) -> None:
    """Give the draft its name. Raises: FileExistsError if the name is taken."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # no hard links here (exFAT, some network drives)
        if os.path.lexists(path):
            raise FileExistsError from None
        draft.rename(path)


def _path_exists(path: Path) -> InvalidInputError:
    return InvalidInputError(f"{path} exists; valid: a new path (an existing ledger is opened, never overwritten)")
