"""Send JSON bodies with odd values in engine fields to a router before a recording worker.

``python -m tests.fuzz.fuzz_bodies 300 [SEED]`` prints how the bodies were answered, and each body
that was answered wrongly or reached the worker with a harmful field. The list of harmful fields
repeats docs/reference/hardening.md on purpose.
"""

import asyncio
import gzip
import io
import json
import random
import sys
import zipfile
from collections import Counter
from math import isfinite

from fairbench_serve import fields as passed
from tests.fuzz.fuzz_files import ODD
from tests.serve.live_router import CHAT, COMPLETIONS, GENERATE, PATHS, cluster

VOCABULARY = 2048
RANGES = {
    "temperature": (0, 100),
    "top_p": (1e-6, 1),
    "min_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "repetition_penalty": (0.01, 100),
    "logprobs": (0, 20),
    "top_logprobs": (0, 20),
    "top_logprobs_num": (0, 20),
    "n": (1, 1),
    "best_of": (1, 1),
    "top_k": (-(2**31), 2**31 - 1),
    **dict.fromkeys(("seed", "sampling_seed"), (-(2**63), 2**63 - 1)),
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "min_tokens", "max_new_tokens", "min_new_tokens"),
        (0, 2**31 - 1),
    ),
}
REFUSED = frozenset(
    {
        *("stop_regex", "regex", "ebnf", "structural_tag"),
        *("custom_logit_processor", "custom_params", "logits_processors", "guided_regex"),
        *("guided_json", "guided_grammar", "guided_choice", "structured_outputs"),
        *("allowed_token_ids", "bad_words", "vllm_xargs", "prompt_logprobs"),
        *("priority", "beam_width", "use_beam_search", "data_parallel_rank"),
        *("bootstrap_host", "bootstrap_room", "session_params", "lora_path"),
        *("input_embeds", "rid", "request_id", "routing_key"),
        *("return_hidden_states", "truncate_prompt_tokens", "kv_transfer_params", "cache_salt"),
        *("prompt_embeds", "add_special_tokens", "include_stop_str_in_output", "length_penalty"),
        *("mm_processor_kwargs", "documents", "chat_template", "media_io_kwargs"),
        *("return_token_ids", "extra_key"),
    }
)
VALUES = [
    *(value for value in ODD if value != "\ud800"),
    *(-0.0, 5e-324, 1e-7, 0.5, 1.0, 64.0, 1e39, 1e308, -1e39, 2**31 - 1, -(2**31), -(2**63)),
    *("1", "0.5", "1e39", "nan", "(.|.|.)+ZZZ", "x" * 300, "٣", "1_0", " 5", "root ::= root"),
    *([5], ["a"] * 33, [60_000], [-1], [5] * 129, ["x" * 257], {"5": 1}, {"60000": 1}, {"5": 1e39}),
    *({"type": "string", "pattern": "(a|a)*b"}, {"$ref": "#"}, {"minItems": 10**9}),
    *({"type": "json_schema", "json_schema": {"schema": {"pattern": "(a|a)*b"}}},),
    *({"type": "regex", "regex": "(a|a)*b"}, [{"function": {"parameters": {"pattern": "a"}}}]),
]
ALLOWED = {GENERATE: passed.GENERATE, COMPLETIONS: passed.COMPLETIONS, CHAT: passed.CHAT}


def field_of(rng, allowed):
    """Return a field and a value: an allowed one near its bounds, or any field with any value."""
    if rng.random() < 0.6:
        name = rng.choice(sorted(RANGES.keys() & allowed) or sorted(RANGES))
        least, most = RANGES[name]
        near = (least, most, (least + most) / 2, float(most), least - 1e-3, most * 1.001, -most)
        return name, rng.choice((*near, str(most), [most], most + 1, None, rng.choice(VALUES)))
    if rng.random() < 0.6:
        return rng.choice(sorted(allowed)), rng.choice(VALUES)
    return rng.choice(sorted(REFUSED | passed.DROPPED)), rng.choice(VALUES)


def body_of(rng):
    """Return a path, the bytes of a body, and headers that name its encoding."""
    path = rng.choice((GENERATE, COMPLETIONS, CHAT))
    body = json.loads(json.dumps(PATHS[path]))
    for _ in range(rng.choice((1, 1, 1, 2))):
        inner, allowed = body, ALLOWED[path]
        if path == GENERATE and rng.random() < 0.6 and isinstance(body["sampling_params"], dict):
            inner, allowed = body["sampling_params"], passed.SAMPLING
        name, value = field_of(rng, allowed)
        inner[name] = value
    text = json.dumps(body)
    if rng.random() < 0.1:  # if a field occurs twice, workers may use the last value or refuse both
        name, value = field_of(rng, ALLOWED[path])
        text = f"{text[:-1]}, {json.dumps(name)}: {json.dumps(value)}, {json.dumps(name)}: 1}}"
    if rng.random() < 0.15:
        return path, *encoded(text, rng)
    return path, text.encode(), {}


def encoded(text, rng):
    """Return the body in another encoding, complete or cut off."""
    data = text.encode()
    kind = rng.choice(("utf-16", "utf-8-sig", "gzip", "cut gzip", "zip", "cut", "escaped", "deep"))
    if kind in ("utf-16", "utf-8-sig"):
        return text.encode(kind), {}
    if kind == "cut":
        return data[: rng.randrange(len(data))], {}
    if kind == "escaped":  # escapes in field names, which mean the same
        return text.replace('"st', '"\\u0073\\u0074').encode(), {}
    if kind == "deep":
        return data[:-1] + b', "metadata": ' + b"[" * 3000 + b"]" * 3000 + b"}", {}
    if kind == "zip":
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as file:
            file.writestr("body.json", data)
        return packed.getvalue(), {}
    whole = gzip.compress(data)
    cut = whole[: rng.randrange(2, len(whole))] if kind == "cut gzip" else whole
    return cut, {"Content-Encoding": "gzip"}


def harm_in(body):
    """Return the parts of a body that could harm a worker or other clients."""
    found = []
    for given in (body, body.get("sampling_params") or {}):
        found += sorted((REFUSED - {"routing_key"}) & given.keys())
        for name, (least, most) in RANGES.items():
            value = given.get(name)
            if isinstance(value, bool) and name == "logprobs":
                continue  # a switch of chat requests
            if value is not None and not (is_number(value) and least <= value <= most):
                found.append(f"{name} = {value!r}")
        stops = given.get("stop") or []
        stops = [stops] if isinstance(stops, str) else stops
        if len(stops) > 32 or any(len(one) > 256 for one in stops):
            found.append("stop")
        ids = [*(given.get("stop_token_ids") or ()), *map(int, given.get("logit_bias") or ())]
        if any(not 0 <= one < VOCABULARY for one in ids):
            found.append(f"ids {ids}")
        if any(abs(value) > 100 for value in (given.get("logit_bias") or {}).values()):
            found.append("logit_bias")
        for name in ("json_schema", "response_format", "tools"):
            written = json.dumps(given.get(name))
            if '"pattern"' in written or '"regex"' in written:
                found.append(name)
    return found


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


async def attempts(count, seed, went_on=None):
    """Send ``count`` bodies. Return how they were answered, and complaints.

    Each body that reached the worker is added to the list ``went_on``, with its path.
    """
    rng, ends, wrong = random.Random(seed), Counter(), []
    async with cluster(1, info={"vocab_size": VOCABULARY}) as (router, (worker,)):
        for _ in range(count):
            path, data, headers = body_of(rng)
            before = len(worker.seen)
            headers["Content-Type"] = "application/json"
            async with router.session.post(router.url + path, data=data, headers=headers) as answer:
                said = await answer.read()
            ends[answer.status] += 1
            reached = [body for _, _, body in worker.seen[before:]]
            if went_on is not None:
                went_on += [(path, body) for body in reached]
            if answer.status not in (200, 400, 413, 415) or len(reached) > 1:
                wrong.append((path, data, answer.status, said))
            elif answer.status == 200 and (harm := harm_in(reached[0])):
                wrong.append((path, data, "reached the worker", harm))
            elif answer.status != 200 and (b'"error"' not in said or reached):
                wrong.append((path, data, answer.status, said))
        for path in PATHS:
            async with router.post(path) as answer:
                assert answer.status == 200
    return ends, wrong


def main(count, seed):
    ends, wrong = asyncio.run(attempts(count, seed))
    for one in wrong:
        print(f"{one!r}\n"[:3000], flush=True)
    print(f"seed {seed}, {count} bodies:", dict(sorted(ends.items())), f"{len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
