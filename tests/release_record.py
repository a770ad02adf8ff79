"""Write the observations of each engine release, and their page docs/reference/releases.md.

``tests/sglang_cpu/release.sh`` and ``tests/vllm_cpu/release.sh`` call ``record`` through
``release_check.py``. ``python tests/release_record.py`` rewrites the page.
"""

import json
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests/data/releases.json"
PAGE = ROOT / "docs/reference/releases.md"

HEAD = """\
# Engine releases

This page lists the releases and features of SGLang and vLLM that fairbench's
[plugins](../guide/sglang.md) support, with test results. These commands test the plugin with a
release of an engine:

```sh
tests/sglang_cpu/release.sh 0.5.19
tests/vllm_cpu/release.sh 0.33.0
```

The scripts `release.sh` test an engine release's scheduler classes on a CPU, with random request
streams and small KV pools. In each iteration of a request stream, the tests compare the plugin's
decisions with those of the engine without the plugin and those of the simulator.

| column of the table below | meaning |
|---|---|
| serves correctly | whether every request of every stream finished with all of its tokens |
| as the engine | streams in which the plugin's FCFS (on SGLang also LPM) decides as the release |
| as simulated | streams with the simulator's admissions, cached tokens, evictions and preemptions |
| server | whether tests started a real server of the release with the plugin on a CPU |

The plugins refuse all releases that this page does not list. To use a newer release anyway, set
`--allow-untested-release` for `run`, `sweep` or `serve`, or `FAIRBENCH_ALLOW_UNTESTED_RELEASE=1` in
the environment of a server that you start yourself. The plugins always refuse engine releases that
are older than all tested releases.

With [`--engine-code PYTHON`](own-code.md), an installed engine's own code makes the decisions in a
simulation. In random runs, `fairbench engine-check --engine-code PYTHON` compares the engine's own
code with fairbench's model of the release, and finds the first decision that differs. The scripts
`release.sh` also run `engine-check`.
CHECKED

By default, the simulator follows the rules of SGLang 0.5.23. `--set engine.release=0.5.17`
simulates an older release of SGLang, with these differences:

| release of SGLang | difference |
|---|---|
| before 0.5.23 | a finished request keeps its slot and its reserved tokens until the next decode \
step, and a batch that is marked full remains full |
| before 0.5.23 | a prompt that is computed in chunks counts as two requests in \
`max_running_requests` from its second chunk on |
| before 0.5.23 | a scheduling pass tries one more request after a chunk has used up a budget, and \
admits it if only the budget `max_prefill_tokens` is used up |
| before 0.5.22 | a scheduling pass does not refresh the cached prefixes of the first waiting \
requests |
| before 0.5.22 | the prefix tree stores the recomputed prompt and outputs of a retracted request \
as one node, and splits the node when the request finishes (before 0.5.20: never) |

Since SGLang 0.5.22, a request with `ignore_eos` reserves memory for all its output tokens. With
`engine.full_reservation`, the simulator reserves memory for all output tokens of every request.

The SGLang plugin keeps prefix matches between scheduling passes, for both of SGLang's prefix caches
(`RadixCache` and `UnifiedRadixCache`). With `UnifiedRadixCache` (a tree in Python), the plugin's
LPM made the same decisions as SGLang's LPM in 10 of 10 request streams, on each of SGLang 0.5.17,
0.5.20 and 0.5.21.

| engine | release | hooked functions | serves correctly | as the engine | as simulated | server |
|---|---|---|---|---|---|---|
"""

FEATURES = """
## Features

This table states for each feature of the engines whether the plugin supports the feature, and how
the feature was tested. A server that refuses a feature prints one line with the flag and the
reason, and exits with code 2 before it loads a model.

Tests on *SGLang's own classes* run SGLang's scheduler, batch, policy and cache without a model
(`tests/sim/test_sim_sglang_features.py`). Tests on *vLLM's own classes* run vLLM's scheduler and KV
cache manager (`tests/sim/test_sim_vllm_features.py`). Tests *on a server on a CPU* start a real
engine on a CPU (`tests/sglang_cpu/test_sglang_cpu_features.py`,
`tests/vllm_cpu/test_vllm_cpu_features.py`).

"""

DETAILS = """
### Features inside SGLang

- *LoRA.* An adapter is unavailable if it has no slot, is still loading
  (`--enable-lora-overlap-loading`) or is draining (`--lora-drain-wait-threshold`). The plugin
  treats a request with an unavailable adapter like a request that does not fit into memory:
  admission stops, or with `no_room=skip`, the scheduler tries the next request.
- *HiCache* (`--enable-hierarchical-cache`). Tokens that SGLang loads from the host's memory count
  as cached tokens. With `charge=gpu-time`, the measured time of a step includes the time to load
  tokens from the host's memory to the GPU. The plugin estimates from measured steps how long it
  takes to load a token, and charges this time to the request that needs the token. While SGLang
  loads a request's prefix from storage (`--hicache-storage-backend`), the plugin treats the request
  like one that does not fit into memory.
- *Prefill servers.* A prefill server queues a request once a decode server has memory for it. A
  request that waits for decode memory occupies a buffer for arriving prompts; clients share the
  buffers in proportion to their weights.
- *Decode servers.* A decode server first gives memory to its retracted requests, in SGLang's order.
  Among new requests, fairbench's scheduler chooses the next request that gets memory, and skips
  requests whose prefill server is not ready. In a decode server, the client pays for each output
  token except the first, which the prefill server charges together with the prompt. A scheduler in
  a decode server counts no prefix as cached.
- *Refused in prefill and decode servers.* The plugin refuses schedulers that preempt (`edf`),
  because a preempted request is computed again from its prompt, and decode servers compute no
  prompts. In prefill and decode servers, the plugin refuses schedulers that refuse requests
  (`rpm`), because the paired decode or prefill server would wait for the refused request. In
  prefill and decode servers, the plugin also refuses pipeline parallelism, because SGLang's
  pipeline stages would not follow the scheduler's order of requests.
- *Choices and prompts.* The plugin keeps the `routing_key` in batches, in requests with `n` above 1
  and in `/v1/responses`, where SGLang without the plugin drops the key.
- *CPU work.* Compared with SGLang's own FCFS, a step with the plugin executes 1.05 times as many
  Python bytecode instructions under `fcfs`, 1.07 times under `vtc`, 1.10 times under `lpm`, 1.12
  times under `dlpm` and 1.38 times under `edf`. Bytecode instructions were counted in scheduling
  steps of SGLang 0.5.23 with 256 running and 256 waiting requests (`python -m
  tests.benchmarks.plugin_step --engine sglang --count --turns 8`).
- *CPU time.* The plugin's overhead in CPU time is larger than its overhead in bytecode
  instructions, because instruction counts leave out work in C. On two cores shared with 40 other
  processes, a scheduling step took 2.7 ms on average with SGLang's own FCFS, 3.3 ms with the
  plugin's `fcfs`, 3.6 ms with `vtc` and `lpm`, and 3.7 ms with `dlpm`. On cores shared with three
  other processes, a scheduling step took 1.4 ms on average with SGLang's own FCFS, and 2.4 ms with
  `edf`. In every step, `edf` fits its cost model again and ranks all waiting requests.

### Features inside vLLM

- *LoRA.* In vLLM, a LoRA adapter is part of a request's prefix, and does not change the request's
  client. If the adapter of the chosen request has no free slot (`--max-loras`), admission stops.
  Without the plugin, vLLM lets other requests overtake a request that waits for an adapter slot, so
  a client with a rare adapter may wait forever.
- *Speculative decoding.* Clients pay for accepted tokens, but not for rejected draft tokens or
  tokens after the end of a request. With a draft model such as EAGLE, the plugin cannot reuse
  prefix matches, so a prefix-aware scheduler matches all waiting requests in every pass.
- *Priorities.* With vLLM's `--scheduling-policy priority`, each priority has its own scheduler.
  Requests with the lowest priority number go first, and clients of equal priority share fairly.
  When memory runs out, vLLM preempts a request with the highest priority number: by default the
  newest request, and with `preempt=fair` the request that the scheduler chooses. The plugin refuses
  to combine vLLM's priorities with schedulers that charge measured time. `fairbench serve` does not
  forward the field `priority`, because a client could use it to overtake other clients.
- *KV connectors and offloading* are set by `--kv-transfer-config` and `--kv-offloading-size`.
  Tokens that vLLM loads through a KV connector count as cached. If vLLM loads a request's tokens
  while steps run, the request is admitted and charged when the load begins. With `charge=gpu-time`,
  the time to load tokens is charged only if a step waits for the load; loading while steps run is
  free. Prefix-aware schedulers see only the prefixes in the GPU's memory. If a load through a KV
  connector fails, vLLM recomputes the tokens, and no client pays for the recomputation.
- *Disaggregation.* In a prefill server of vLLM, fairbench's scheduler orders the requests. In a
  decode server of vLLM, clients pay for output tokens, and for prompt tokens whose KV cache was not
  loaded from the prefill server (at least one token per request).
- *Images.* A client pays for all prompt tokens that vLLM assigns to an image. Two prompts share an
  image as a prefix only if the images are equal.
- *Embeddings.* vLLM does not tell its scheduler which client sent a pooling request. With `--runner
  pooling`, the plugin serves requests in order of arrival, reports the scheduler `fcfs`, prints a
  message when the server starts, and refuses an eviction policy.
- *Sessions.* The key `session_id` in the field `vllm_xargs` names the session of a request, because
  the request's own field `session_id` names the client. The eviction policy `retention` keeps the
  cached tokens of sessions.
- *Several answers.* If a request has `n` above 1, the client pays for every answer.

"""

RANKS = """## Data-parallel ranks

`--dp-size N` (SGLang) and `--data-parallel-size N` (vLLM) start N engine processes, called ranks,
in one server. Each rank has its own queue and scheduler, but all ranks share one account of each
client. A client that floods every rank therefore receives no more than its share of the server.

- *Exchange.* Each rank writes its charges to a file in memory every 50 ms, and reads the charges of
  the other ranks. The first process of a server creates the folder for the files of all ranks, and
  sets `FAIRBENCH_RANKS` to the folder's path. No rank waits for another rank.
- *Bound.* While two clients wait at all N ranks, their service differs by at most N times the bound
  of one rank (DLPM Theorem 5.1), plus twice the charges of other ranks that a rank has not read
  yet.
- *Work conservation.* A rank with waiting requests never idles, even if clients at other ranks have
  received less service. A client that waits at only one rank cannot receive more service than this
  rank provides. At each rank, clients that received less service from the whole server go first.
- *Schedulers.* `vtc`, `dlpm` and their variants share accounts between ranks. Ranks exchange
  nothing under `fcfs`, `lpm`, `edf` and other schedulers that do not count clients' service. On a
  server with several ranks, the plugin refuses `rpm`, `equinox` and `tenants=tree`, because ranks
  do not exchange the counts that these schedulers and settings need.
- *Refused.* The ranks of a server must be on one host, and a server with several ranks refuses
  priority scheduling. With several SGLang ranks under `vtc` or `dlpm`, a rank must not use tensor
  or pipeline parallelism. A vLLM server with several ranks refuses Ray, external load balancers,
  and a list of plugins in `VLLM_PLUGINS` that does not contain `fairbench`.
- *Failures.* If a rank dies, both SGLang and vLLM stop the whole server. Clients' accounts keep the
  charges for requests that a dead rank served. After 10 s, the clients of a dead rank no longer
  count as waiting. A restarted rank reads all charges of the other ranks.
- *Reset.* `POST /flush_cache` and `POST /reset_prefix_cache` do not reset the clients' accounts on
  a server with several ranks.
- *Metrics.* The server's `/metrics` has three gauges for each rank.
  `fairbench_rank_charges_sent{rank="0"}` counts the rank's own charges, and
  `fairbench_rank_charges_received` the charges of other ranks that the rank has read.
  `fairbench_rank_lag_seconds` is the age of the newest charge of another rank at the time of
  reading.

In a test of vLLM 0.32.0 on a CPU (`vtc`, two ranks that each run two requests at a time), one
client flooded both ranks over 40 connections, and a well-behaved client sent requests to one rank.
With accounts shared between ranks, the well-behaved client received 40% of the service. A server
with one rank that runs four requests at a time gave the client the same share. With separate
accounts at each rank, the well-behaved client received 23% of the service, and its median latency
was 0.20 s (shared accounts: 0.11 s; `tests/vllm_cpu/test_vllm_cpu_ranks.py`,
`tests/sglang_cpu/test_sglang_cpu_ranks.py`).
"""

SERVERS = {("SGLang", "0.5.23"), ("vLLM", "0.32.0")}


def record(engine, row):
    """Add a release's row, and rewrite the page."""
    rows = read()
    rows.setdefault(engine, {})[row["release"]] = row
    RECORD.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


def read():
    """Return the observations: engine -> release -> row."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def page():
    """Return the page for the record and for the releases that the plugins support."""
    from fairbench_engines.features import table
    from fairbench_engines.sglang.release import SUPPORTED as SGLANG
    from fairbench_engines.vllm.release import SUPPORTED as VLLM

    rows, lines = read(), []
    for engine, supported in (("SGLang", SGLANG), ("vLLM", VLLM)):
        seen = rows.get(engine, {})
        lines += [_line(engine, release, seen.get(release)) for release in supported]
    head = HEAD.replace("CHECKED\n", _checked(rows))
    return head + "\n".join(lines) + "\n" + FEATURES + table() + DETAILS + RANKS


def _checked(rows):
    """Return sentences about the runs of ``engine-check`` whose records are equal."""
    groups = {}
    for engine, seen in rows.items():
        for release, row in seen.items():
            if "checked_runs" in row:
                counts = row["equal_runs"], row["checked_runs"]
                groups.setdefault(counts, []).append(f"{engine} {release}")
    text = [
        f"The engine's own code and fairbench's model produce equal records in {equal} of {runs} "
        f"runs with each of these releases: {', '.join(names)}."
        for (equal, runs), names in groups.items()
    ]
    filled = textwrap.fill(" ".join(text), 100, break_on_hyphens=False)
    return f"{filled}\n" if text else ""


def checked(engine, runs=10):
    """Return how many random runs ``engine-check`` compared, and how many have equal records.

    The engine under test is that of the running Python.
    """
    from fairbench_calibration.validate import check_engine

    equal = [not one.differing for one in check_engine("installed", engine, range(runs))]
    return {"checked_runs": len(equal), "equal_runs": sum(equal)}


def _line(engine, release, row):
    server = "started in the tests" if (engine, release) in SERVERS else "not tried"
    if row is None:
        cells = ["not tried"] * 4
    else:
        total, stock = row["streams"], row["stock_streams"]
        served = "yes" if row["served"] == total else f"{row['served']} of {total} streams"
        alike = f"{row['alike']} of {total} streams"
        cells = [str(row["targets"]), served, f"{row['as_stock']} of {stock} streams", alike]
    return f"| {' | '.join([engine, release, *cells, server])} |"


def seen_in(cases, seeds, play):
    """Count (streams, served, alike) over all cases and seeds. ``play`` returns (served, alike)."""
    total = served = alike = 0
    for case in cases:
        for seed in seeds:
            well, same = play(case, seed)
            total, served, alike = total + 1, served + well, alike + same
    return {"streams": total, "served": served, "alike": alike}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
