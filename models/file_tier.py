"""Rows in a file, for tables larger than the machine's memory.

Evictions write all the time, so the file is no consistent state of the tables at any moment: it is a swap area, made
anew for each run. Checkpoints are files of their own (`store_checkpoint`).
"""

import errno
import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .direct_io import SECTOR, DirectFile
from .tier import StoreSpec, state_bytes


class FileTier:
    """See `Tier`. Row r has record r: its values, its states, and zeros up to `record` bytes (by default the smallest
    multiple of 512). `depth` transfers are in flight at once. Memory: a byte a row, and one batch's records.

    Raises ValueError for a record narrower than a row, BlockingIOError if another process has the file, and OSError
    with the table's name if the disk is full.
    """

    def __init__(self, path: str | os.PathLike, spec: StoreSpec, depth: int = 16, record: int | None = None) -> None:
        self.spec = spec
        self.row_bytes = spec.dim * spec.dtype.itemsize + state_bytes(spec)
        record = record or -(-self.row_bytes // SECTOR) * SECTOR
        if record < self.row_bytes:
            raise ValueError(
                f"{spec.label!r}: expected records of at least {self.row_bytes} bytes (a row and its states), "
                f"given {record}"
            )
        self.file = DirectFile(path, spec.rows, record, depth)
        self.written = torch.zeros(spec.rows, dtype=torch.bool)

    def read(self, rows: Tensor, lines: Sequence[Tensor], slots: Tensor) -> None:
        """See `Tier`."""
        for line, field in zip(lines, self._fields(self.file.read(rows.numpy()), lines), strict=True):
            line[slots] = field

    def write(self, rows: Tensor, lines: Sequence[Tensor], slots: Tensor) -> None:
        """See `Tier`."""
        records = self.file.buffer(len(rows))
        for line, field in zip(lines, self._fields(records, lines), strict=True):
            field.copy_(line[slots])
        try:
            self.file.write(rows.numpy(), records)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise OSError(
                error.errno,
                f"table {self.spec.table_of(int(rows[0]))!r}: no room for its changed rows in {self.file.path} "
                f"({len(rows)} records of {self.file.record} bytes); make room and start from the last checkpoint",
            ) from error
        self.written[rows] = True

    def _fields(self, records: np.ndarray, lines: Sequence[Tensor]) -> list[Tensor]:
        """The parts of `records` [n, record] that belong to each of the arrays, in their shapes."""
        fields, begin = [], 0
        for line in lines:
            size = line[0].nbytes
            part = torch.from_numpy(records[:, begin : begin + size]).view(line.dtype)
            fields.append(part if line.ndim == 2 else part[:, 0])
            begin += size
        return fields

    def is_written(self, rows: Tensor) -> Tensor:
        """See `Tier`."""
        return self.written[rows]

    def clear(self) -> None:
        """See `Tier`."""
        self.written.fill_(False)

    def close(self) -> None:
        """Give the file back; what is in it is not kept."""
        self.file.close()
