"""Columnar file that is being written, under a hidden name."""

from __future__ import annotations

from typing import Any, Final

from sluiceway.errors import ConnectorError

__all__ = ["CODECS", "SUFFIXES", "ColumnFile", "schema_in"]

CODECS: Final = {
    "parquet": ("snappy", "zstd", "gzip", "lz4", "brotli", "none"),
    "orc": ("zlib", "snappy", "zstd", "lz4", "none"),
}
_ORC: Final[Any] = {"none": "uncompressed", **{name: name for name in CODECS["orc"][:-1]}}
SUFFIXES: Final = {"gzip": "gz", "none": ""}


class ColumnFile:
    """Writer of a columnar file, which buffers batches up to the size of a row group.

    Args:
        file: what is written to.
        form: ``parquet`` or ``orc``.
        codec: compression inside it.
        schema: of the batches.
        where: names the sink in messages.

    Attributes:
        held: bytes of batches that are not written yet.
        rows: how many rows they have.
        file: as given.
    """

    def __init__(self, file: Any, form: str, codec: str, schema: Any, where: str) -> None:
        self.file = file
        self.held = 0
        self.rows = 0
        self._is_begun = False
        self._where = where
        self._batches: list[Any] = []
        self._schema = schema
        self._writer: Any
        if form == "orc":
            from pyarrow import orc

            self._writer = orc.ORCWriter(file, compression=_ORC[codec])
        else:
            import pyarrow.parquet as pq

            self._writer = pq.ParquetWriter(file, schema, compression=codec)  # type: ignore[arg-type]

    def add(self, batch: Any) -> None:
        """Take rows."""
        self._batches.append(batch)
        self.held += batch.nbytes
        self.rows += batch.num_rows

    def write(self) -> None:
        """Write what is held, as a row group."""
        import pyarrow as pa

        if self._is_begun and not self._batches:
            return
        self._is_begun = True
        batches, self._batches = self._batches, []
        self.held = self.rows = 0
        try:
            table = pa.Table.from_batches(batches, schema=self._schema)
            self._writer.write(table.combine_chunks() if len(batches) > 1 else table)
        except pa.ArrowException as error:
            raise ConnectorError(f"{self._where}: {error}") from error

    @property
    def written(self) -> int:
        """Bytes that are in the file."""
        return int(self.file.tell())

    def finish(self) -> None:
        """Write the rest. The file stays open."""
        self.write()
        self._writer.close()

    def abandon(self) -> None:
        """Free what is held: the file is to be removed."""
        self._batches = []
        try:
            self._writer.close()
        finally:
            self._writer.is_open = False  # or it would try again when it is collected


def schema_in(file: Any, form: str) -> Any:
    """Return the schema of a file."""
    if form == "orc":
        from pyarrow import orc

        return orc.ORCFile(file).schema
    import pyarrow.parquet as pq

    return pq.read_schema(file)
