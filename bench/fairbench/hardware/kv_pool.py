"""The size of the KV pool of a GPU, and the time to copy KV to host memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from fairbench.errors import UsageError

Amount = Annotated[float, Ge(0), Lt(1e12)]


@dataclass(frozen=True)
class KVPool:
    """The quantities that determine the KV pool (SGLang 0.5.23's formula).

    ``host_gb_s`` is the transfer rate of KV cache to and from host memory, in 10^9 bytes/s; 0 if
    unknown.
    """

    pre_load_avail_gib: Amount
    weights_gib: Amount
    kv_bytes_per_token: Amount
    mem_fraction_static: Amount
    chunked_prefill_size: Annotated[int, Ge(0)]
    host_gb_s: Amount = 0.0

    def tokens(self, mem_fraction_static: float) -> int:
        """Return the pool size in tokens. Raises UsageError if no memory is left."""
        gib = self.pre_load_avail_gib * mem_fraction_static - self.weights_gib
        tokens = int(gib * 2**30 / self.kv_bytes_per_token)
        if tokens <= 0:
            raise UsageError(
                f"mem_fraction_static = {mem_fraction_static}: leaves no memory for KV, "
                f"because the weights take {self.weights_gib} of "
                f"{self.pre_load_avail_gib} GiB; give a larger fraction"
            )
        return tokens

    def host_tokens(self, gib: float) -> int:
        """Return the tokens that ``gib`` GiB of host memory hold; 0 without a known rate."""
        return int(gib * 2**30 / self.kv_bytes_per_token) if self.host_gb_s else 0

    @property
    def host_token_ps(self) -> int:
        """The time to copy a token's KV to host memory or back; 0 if that is impossible."""
        return round(self.kv_bytes_per_token / self.host_gb_s * 1000) if self.host_gb_s else 0
