"""The base of every table of a workload file: frozen, strict, without unknown keys."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_CLIENTS = 1000  # of a workload file

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class FileTable(BaseModel):
    """A table of a workload file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Group(FileTable):
    """Consecutive clients: ``count`` of them from number ``client`` on."""

    client: Annotated[int, Field(ge=0, lt=MAX_CLIENTS)]
    count: Annotated[int, Field(ge=1, le=MAX_CLIENTS)] | None = None  # 1, and not stored

    @property
    def numbers(self) -> range:
        """The numbers of its clients."""
        return range(self.client, self.client + (self.count or 1))
