"""The base of every table of a workload file: frozen, strict, without unknown keys."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

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


class Sizes(FileTable):
    """Sizes by ``zipf``, or ``heavy`` first clients that send ``heavy_share`` of the total.

    By Zipf's law, client r sends in proportion to r to the power of minus ``zipf``; 0 makes all
    clients equal.
    """

    zipf: Annotated[float, Field(ge=0, le=10)] | None = None
    heavy: Annotated[int, Field(ge=1)] | None = None
    heavy_share: Annotated[float, Field(gt=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.heavy is None) != (self.heavy_share is None):
            raise ValueError("heavy and heavy_share must be given together")
        if (self.zipf is None) == (self.heavy is None):
            raise ValueError("give either zipf, or heavy and heavy_share")
        return self

    def multiples(self, count: int) -> list[float]:
        """Return the factor on the rate of each of ``count`` clients; the mean is 1.

        Raises ValueError if no client is left beside the heavy ones.
        """
        if self.heavy is None or self.heavy_share is None:
            parts = [rank ** -(self.zipf or 0.0) for rank in range(1, count + 1)]
            return [part * count / sum(parts) for part in parts]
        heavy, light = self.heavy, count - self.heavy
        if light < 1:
            raise ValueError(f"heavy = {heavy}: must be below the {count} clients of its group")
        above, below = self.heavy_share / heavy, (1 - self.heavy_share) / light
        return [part * count for part in [above] * heavy + [below] * light]


def multiples(sizes: Sizes | None, count: int) -> list[float]:
    """Return the factors of ``sizes``; all 1 without sizes."""
    return [1.0] * count if sizes is None else sizes.multiples(count)
