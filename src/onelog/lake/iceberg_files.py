"""The files of Iceberg in a bucket of Azure or Google Cloud Storage, for pyiceberg.

Rules: pyiceberg calls this module by name. These files are reached as the store is
(`store_files.py`): pyiceberg's own clients know other words and no `az://`. Files that lie
elsewhere are left to those clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT

from onelog.base.errors import NotFound
from onelog.lake.store_files import CLOUD_STARTS, StoreFiles, Words, store_files

PREFIX: Final = "onelog.store."
"""Before the words of the store among the properties of a catalog."""


def properties(words: Words) -> dict[str, str]:
    """What a catalog is told, so that it uses this module."""
    named = {f"{PREFIX}{name}": value for name, value in words}
    return {"py-io-impl": f"{__name__}.{IcebergFiles.__name__}", **named}


class IcebergFiles(FileIO):
    """All files of a catalog."""

    def __init__(self, properties: Mapping[str, Any] = EMPTY_DICT) -> None:
        super().__init__(dict(properties))
        self._elsewhere = PyArrowFileIO(dict(properties))
        self._words: Words = tuple(
            (name.removeprefix(PREFIX), str(value))
            for name, value in sorted(properties.items())
            if name.startswith(PREFIX)
        )

    def new_input(self, location: str) -> InputFile:
        """A file to read."""
        if not location.startswith(CLOUD_STARTS):
            return self._elsewhere.new_input(location)
        return IcebergInput(location, self._words)

    def new_output(self, location: str) -> OutputFile:
        """A file to write."""
        if not location.startswith(CLOUD_STARTS):
            return self._elsewhere.new_output(location)
        return IcebergOutput(location, self._words)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file; one that is not there is no error."""
        name = location if isinstance(location, str) else location.location
        if not name.startswith(CLOUD_STARTS):
            self._elsewhere.delete(name)
            return
        files, path = _opened(name, self._words)
        files.delete_file(path)


class IcebergInput(InputFile):
    """A file that is read."""

    def __init__(self, location: str, words: Words) -> None:
        super().__init__(location)
        self._words = words
        self._files, self._path = _opened(location, words)

    def __len__(self) -> int:
        try:
            return self._files.size_bytes(self._path)
        except NotFound as error:
            raise FileNotFoundError(str(error)) from error

    def exists(self) -> bool:
        """Whether it is there."""
        try:
            return len(self) >= 0
        except FileNotFoundError:
            return False

    def open(self, seekable: bool = True) -> InputStream:
        """Its bytes."""
        try:
            found: InputStream = self._files.open_input_file(self._path)
        except NotFound as error:
            raise FileNotFoundError(str(error)) from error
        return found


class IcebergOutput(OutputFile):
    """A file that is written."""

    def __init__(self, location: str, words: Words) -> None:
        super().__init__(location)
        self._words = words
        self._files, self._path = _opened(location, words)

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        """Whether it is there."""
        return self.to_input_file().exists()

    def to_input_file(self) -> IcebergInput:
        """The same file, to read."""
        return IcebergInput(self.location, self._words)

    def create(self, overwrite: bool = False) -> OutputStream:
        """Write it; it is there when it was closed."""
        if not overwrite and self.exists():
            raise FileExistsError(self.location)
        fresh: OutputStream = self._files.open_output_stream(self._path)
        return fresh


def _opened(location: str, words: Words) -> tuple[StoreFiles, str]:
    scheme, _, path = location.partition("://")
    host = path.partition("/")[0]
    return store_files(f"{scheme}://{host}", words), path
