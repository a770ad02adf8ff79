"""The KV pool: the number of tokens that a GPU holds in addition to a model."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.errors import UsageError


@dataclass(frozen=True)
class KVPool:
    """The quantities that determine the KV pool (SGLang 0.5.23's formula).

    ``host_gb_s`` is the transfer rate of KV cache to and from host memory, in 10^9 bytes/s; 0 if
    unknown.
    """

    pre_load_avail_gib: float
    weights_gib: float
    kv_bytes_per_token: float
    mem_fraction_static: float
    chunked_prefill_size: int
    host_gb_s: float = 0.0

    def tokens(self, mem_fraction_static: float) -> int:
        """Return the pool size in tokens. Raises UsageError if none is left."""
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
