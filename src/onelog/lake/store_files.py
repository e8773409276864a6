"""Files of tables in a bucket of Azure or Google Cloud Storage, reached as the store itself is.

Rules: it has those methods of the file systems of Arrow that tables of history need, and no others.
Paths begin with the bucket. A file that is written lies in a temporary file until it is closed, and
then goes to the store at once; it has a name that nobody else has.
"""

from __future__ import annotations

import datetime
import functools
import io
import mmap
import tempfile
from typing import TYPE_CHECKING, Any, Final

from onelog.objects.clouds import AZURE, GOOGLE
from onelog.objects.store import StoreSettings

if TYPE_CHECKING:
    from onelog.objects.bucket import BucketAccess

Words = tuple[tuple[str, str], ...]
TYPE_NAME: Final = "bucket"
CLOUD_STARTS: Final = tuple(f"{scheme}://" for scheme in (*AZURE.schemes, *GOOGLE.schemes))
"""How addresses begin whose files are reached here."""


@functools.lru_cache(maxsize=16)
def store_files(address: str, words: Words) -> StoreFiles:
    """The files of a bucket by its address, such as `az://CONTAINER`."""
    from onelog.objects.bucket import BucketAccess  # noqa: PLC0415 - an extra

    return StoreFiles(BucketAccess(StoreSettings(url=address, options=dict(words))))


class StoreFiles:
    """The files of one bucket."""

    type_name = TYPE_NAME

    def __init__(self, access: BucketAccess) -> None:
        self._access = access

    def size_bytes(self, path: str) -> int:
        """How long a file is. Raises NotFound."""
        return self._access.size_bytes(_name(path))

    def open_input_file(self, path: str) -> Any:
        """A file that Arrow reads in parts."""
        import pyarrow as pa  # noqa: PLC0415 - an extra

        return pa.PythonFile(_StoredFile(self._access, _name(path)), mode="r")

    def open_output_stream(self, path: str) -> Any:
        """A file that is there when it was closed."""
        import pyarrow as pa  # noqa: PLC0415 - an extra

        return pa.PythonFile(_NewFile(self._access, _name(path)), mode="w")

    def get_file_info(self, selector: Any) -> list[Any]:
        """All files below a folder."""
        from pyarrow import fs  # noqa: PLC0415 - an extra

        bucket = selector.base_dir.partition("/")[0]
        return [
            fs.FileInfo(
                f"{bucket}/{row.name}",
                fs.FileType.File,
                size=row.size_bytes,
                mtime=datetime.datetime.fromtimestamp(row.modified_ms / 1000, datetime.UTC),
            )
            for row in self._access.list(f"{_name(selector.base_dir)}/", "")
        ]

    def delete_file(self, path: str) -> None:
        """Delete a file; one that is not there is no error."""
        self._access.delete([_name(path)])


class _StoredFile(io.RawIOBase):
    def __init__(self, access: BucketAccess, name: str) -> None:
        self._access = access
        self._name = name
        self._size = access.size_bytes(name)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        found = bytes(self._access.get_range(self._name, self._at, wanted))
        self._at += len(found)
        return found


class _NewFile(io.RawIOBase):
    def __init__(self, access: BucketAccess, name: str) -> None:
        self._access = access
        self._name = name
        self._held = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this file

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._held.tell()

    def write(self, data: Any) -> int:
        return self._held.write(data)

    def close(self) -> None:
        if self.closed:
            return
        try:
            self._held.flush()
            size = self._held.tell()
            if size:
                file = self._held.fileno()
                with (
                    mmap.mmap(file, size, access=mmap.ACCESS_READ) as held,
                    memoryview(held) as data,
                ):
                    self._access.put(self._name, [data], size)
            else:
                self._access.put(self._name, [], 0)
        finally:
            self._held.close()
            super().close()


def _name(path: str) -> str:
    return path.partition("/")[2]
