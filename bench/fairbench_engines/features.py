"""The table of engine features on the releases page, which says what each plugin supports.

The table shows a feature as refused if the plugin of the engine refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fairbench_engines.sglang import release as sglang
from fairbench_engines.vllm import release as vllm

CLASSES = "SGLang's own classes"
VLLM_CLASSES = "vLLM's own classes"
SERVER = "a server on a CPU"
RANKS = "one account over all ranks, which exchange their charges and never wait for each other"


ABSENT = "vLLM has no such option"


ADAPTERS = (
    "the client stays the client, the adapter is a part of the prefix, and an adapter without a "
    "slot counts as no room"
)


class Feature(NamedTuple):
    """A feature of an engine: what works with fairbench's plugin, and the flags that turn it on.

    ``sglang`` and ``vllm`` say what works in SGLang and in vLLM, and how the feature is tested.
    ``flags`` and ``paths`` name settings of SGLang and vLLM that the plugins refuse; these names
    are keys of the tables ``sglang.OFF`` and ``vllm.OFF``.
    """

    name: str
    sglang: str = ""
    flags: tuple[str, ...] = ()
    vllm: str = ""
    paths: tuple[str, ...] = ()


FEATURES = (
    Feature(
        "data-parallel ranks in one server",
        f"{RANKS}. Tested on {CLASSES} and on {SERVER} with two ranks and a flood; one process a "
        "rank (`--tp-size 1`), and no classes of priority",
        vllm=f"{RANKS}. Tested on {VLLM_CLASSES} and on {SERVER}, with two ranks of a dense model "
        "and a flood; not on several hosts, with Ray, or for ranks that are started one by one",
    ),
    Feature(
        "data-parallel attention",
        flags=("enable_dp_attention", "attn_dp_size"),
        vllm=ABSENT,
    ),
    Feature(
        "LoRA adapters",
        f"{ADAPTERS}. Tested on {CLASSES}: streams equal the simulator's",
        vllm=f"{ADAPTERS}. Tested on {VLLM_CLASSES}: streams equal vLLM's (which lets others pass "
        f"an adapter without a slot) and the simulator's; and on {SERVER}",
    ),
    Feature(
        "LoRA: overlapped loading, drained adapters",
        "an adapter that loads or drains counts as no room. Tested on "
        f"{CLASSES}: every request is served and charged once",
        vllm=ABSENT,
    ),
    Feature(
        "speculative decoding",
        "accepted tokens are charged, and neither drafts nor tokens after the end. Tested on "
        f"{CLASSES}: streams equal SGLang's, also under preempting schedulers; no eviction policy",
        vllm="as in SGLang, also with asynchronous scheduling and eviction policies. Tested on "
        f"{VLLM_CLASSES}: streams equal vLLM's, charges equal the outputs; and on {SERVER}",
    ),
    Feature(
        "priorities",
        "fair inside a class, with classes and preemption in SGLang's order. Tested on "
        f"{CLASSES}: streams equal SGLang's and the simulator's; and on {SERVER}",
        vllm="fair inside a class, with classes and preemption in vLLM's order. Tested on "
        f"{VLLM_CLASSES}: streams equal vLLM's and the simulator's; and on {SERVER}",
    ),
    Feature(
        "HiCache, KV offload",
        "tokens from the host or from storage count as cached, and a request whose prefix is still "
        "fetched from storage counts as without room. The GPU time of a load is charged to the "
        f"request that needs it. Tested on {CLASSES}: streams equal SGLang's; no eviction policy",
        flags=("enable_lmcache",),
        vllm="with `--kv-transfer-config` and `--kv-offloading-size`, loaded tokens count as "
        "cached. The GPU time of a load is charged if the step waits for it; a load beside the "
        f"steps takes none. Tested on {VLLM_CLASSES} with a connector: streams equal vLLM's; and "
        f"with vLLM's example connector on {SERVER}",
    ),
    Feature(
        "disaggregated prefill and decode",
        "a prefill server orders fairly; a decode server gives memory in the scheduler's order and "
        f"charges outputs. Tested on {CLASSES}: under `fcfs` memory is given as SGLang does, and "
        f"prompts are ordered as simulated; and on {SERVER} that decodes; no scheduler that "
        "preempts or refuses requests, no eviction policy, no pipeline",
        vllm="a server that prefills orders fairly, and a server that decodes charges outputs and "
        f"the rest of each prompt. Tested on {VLLM_CLASSES} with a connector: streams equal "
        f"vLLM's and the simulator's; and with vLLM's example connector on {SERVER}",
    ),
    Feature(
        "disaggregated encoders",
        "a server with `--language-only` charges all tokens that SGLang assigns to an image. "
        f"Tested on {CLASSES}",
        flags=("encoder_only",),
        paths=("ec_transfer_config",),
    ),
    Feature(
        "pipeline parallelism",
        f"each stage decides alike. Tested on {CLASSES}: two running batches, streams equal "
        "SGLang's; no scheduler that reads the clock",
        vllm="one scheduler decides for all stages; outputs are charged when they are known. "
        f"Tested on {VLLM_CLASSES}: up to four batches in flight, streams equal vLLM's",
    ),
    Feature(
        "tensor parallelism",
        f"each rank decides alike. Tested on {CLASSES}: equal streams under different clocks and "
        "random numbers; no scheduler that reads the clock",
        vllm=f"one scheduler decides for all ranks. Tested on {VLLM_CLASSES}: streams equal vLLM's",
    ),
    Feature(
        "multimodal models",
        "clients pay for all tokens that SGLang assigns to an image. Tested on "
        f"{CLASSES}, with token numbers of 62 bits",
        vllm="clients pay for all tokens that vLLM assigns to an image, and equal images are a "
        f"common prefix. Tested on {VLLM_CLASSES}: streams equal vLLM's and the simulator's",
        paths=("model_config.is_encoder_decoder",),
    ),
    Feature(
        "embeddings",
        "served in order of arrival, which the server says at its start, because SGLang does not "
        f"tell its scheduler their clients. Tested on {CLASSES}: streams equal SGLang's",
        vllm="served in order of arrival, which the server says at its start, because vLLM does "
        f"not tell its scheduler their clients. Tested on {SERVER}; no eviction policy",
    ),
    Feature(
        "structured output",
        f"a request is queued once its grammar is ready. Tested on {CLASSES}: streams equal "
        f"SGLang's; and on {SERVER}",
        vllm="a request keeps its position until its grammar is ready, and others pass it. "
        f"Tested on {VLLM_CLASSES}: streams equal vLLM's; and on {SERVER}",
    ),
    Feature(
        "sessions",
        "the eviction policy `retention` and schedulers of programs know a session that the caller "
        f"names with `session_id`. Tested on {SERVER}",
        vllm="as in SGLang; the session is `session_id` in `vllm_xargs`, because the field "
        f"`session_id` names the client. Tested on {VLLM_CLASSES} and on {SERVER}",
    ),
    Feature(
        "memory shares (`memory.share`)",
        "with SGLang 0.5.23 and the eviction policies `max-min`, `quota` and `quota-lending`; no "
        f"classes of priority. Tested on {CLASSES}: admissions and evictions equal the simulator's",
        vllm="with the eviction policies `max-min`, `quota` and `quota-lending`; no classes of "
        f"priority. Tested on {VLLM_CLASSES}: admissions and overwritten blocks equal the "
        "simulator's",
    ),
    Feature(
        "several choices and prompts in a request",
        "each choice (`n`) and prompt keeps the client of the request. Tested on "
        f"{SERVER}, with `/v1/responses` behind `serve`",
        vllm=f"each choice keeps the client of the request. Tested on {SERVER}",
    ),
    Feature("diffusion LLMs", flags=("dllm_algorithm",), paths=("model_config.is_diffusion",)),
)


def table() -> str:
    """Return the table of features as Markdown."""
    lines = ["| feature | SGLang | vLLM |", "|---|---|---|"]
    lines += [f"| {one.name} | {_in_sglang(one)} | {_in_vllm(one)} |" for one in FEATURES]
    return "\n".join(lines) + "\n"


def _in_sglang(feature: Feature) -> str:
    told = [f"works: {feature.sglang}"] if feature.sglang else []
    if feature.flags:
        flags = ", ".join(f"`--{name.replace('_', '-')}`" for name in feature.flags)
        told.append(f"refused ({flags}): {sglang.OFF[feature.flags[0]].why}")
    return ". ".join(told)


def _in_vllm(feature: Feature, off: Mapping[str, vllm.OffValue] = vllm.OFF) -> str:
    if feature.vllm == ABSENT:
        return ABSENT
    told = [f"works: {feature.vllm}"] if feature.vllm else []
    for one in (off[path] for path in feature.paths):
        flag = f"`{one.flag}`" if one.flag.startswith("--") else one.flag
        told.append(f"refused ({flag}): {one.why}")
    return ". ".join(told)
