"""A KV connector for vLLM's scheduler: a host's memory that keeps the blocks of ended requests.

vLLM loads this module by its name. A load takes ``steps`` results of the model; with 0, the step
itself waits for it. A request whose ``kv_transfer_params`` ask for a ``do_remote_prefill`` loads
all of its prompt, as in a server that only decodes.
"""

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.v1.outputs import KVConnectorOutput

OF_WORKERS = "vLLM calls this beside a model, and the tests run none"


class HostMemory(KVConnectorBase_V1, SupportsHMA):
    """The scheduler's side of the connector, which needs no worker."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self._steps = vllm_config.kv_transfer_config.kv_connector_extra_config["steps"]
        self._size = vllm_config.cache_config.block_size
        self._kept = set()  # hashes of blocks
        self._loading = {}  # name of a request -> results until its load ends
        self.loaded = {}  # name of a request -> its loaded tokens

    @property
    def awaits_load(self):
        return bool(self._loading)

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        if not self._kv_transfer_config.is_kv_consumer:
            return 0, False
        params = request.kv_transfer_params or {}
        if params.get("do_remote_prefill") and request.request_id not in self.loaded:
            # vLLM computes the last token again after a load beside its steps, but not after one in
            # a step.
            found = request.num_prompt_tokens - (not self._steps) - num_computed_tokens
            return found, bool(self._steps and found)
        blocks, hashes = num_computed_tokens // self._size, request.block_hashes
        most = (request.num_tokens - 1) // self._size  # the last token is always computed
        end = blocks
        while end < min(most, len(hashes)) and hashes[end] in self._kept:
            end += 1
        found = (end - blocks) * self._size
        return found, bool(self._steps and found)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens:
            self.loaded.setdefault(request.request_id, num_external_tokens)
            if self._steps:
                self._loading[request.request_id] = self._steps

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request, block_ids):
        self._kept.update(request.block_hashes)
        return False, None

    def transferred(self):
        """Return what ends with the current result of the model."""
        self._loading = {name: left - 1 for name, left in self._loading.items()}
        ended = {name for name, left in self._loading.items() if not left}
        for name in ended:
            del self._loading[name]
        return KVConnectorOutput(finished_recving=ended)

    def start_load_kv(self, forward_context, **named):
        raise NotImplementedError(OF_WORKERS)

    def wait_for_layer_load(self, layer_name):
        raise NotImplementedError(OF_WORKERS)

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **named):
        raise NotImplementedError(OF_WORKERS)

    def wait_for_save(self):
        raise NotImplementedError(OF_WORKERS)
