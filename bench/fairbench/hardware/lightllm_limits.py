"""The settings of a LightLLM server, and the cost of a minibatch on the server."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.hardware.load_cap import LoadCapSetting


@dataclass(frozen=True)
class LightLLMLimits:
    """Server settings. ``max_prefill_tokens`` = 0 is S-LoRA's max(pool / 6, 3072).

    ``client_tokens`` of the pool are set aside for each client in the batch (its adapter).
    ``prefill_overhead_ms`` is what a minibatch costs beyond its tokens (its own start and merge).
    The linear layers of a prefill compute whole tiles of ``prefill_tile`` rows; a minibatch of less
    than one takes the next power of two. An idle server looks for requests every ``idle_poll_ms``.
    ``load_cap`` is as in ``EngineParams``.
    """

    pool_tokens: int
    client_tokens: int = 0
    max_running_requests: int = 1_000
    max_wait_tokens: int = 10
    max_prefill_tokens: int = 0
    prefill_overhead_ms: float = 0.0
    prefill_tile: int = 1
    idle_poll_ms: float = 0.0
    load_cap: LoadCapSetting = None

    @property
    def minibatch_tokens(self) -> int:
        """The largest number of prompt tokens of a minibatch."""
        return self.max_prefill_tokens or max(self.pool_tokens // 6, 3_072)

    def prefill_rows(self, tokens: int) -> int:
        """Return the rows that the linear layers compute for a minibatch of ``tokens`` tokens."""
        tile = min(self.prefill_tile, 1 << (tokens - 1).bit_length())
        return -(-tokens // tile) * tile
