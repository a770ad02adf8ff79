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
[plugins](../guide/sglang.md) support, and the test results of each release. The script
`tests/release_record.py` generates this page about releases. These commands test a release of
SGLang or vLLM:

```sh
tests/sglang_cpu/release.sh 0.5.19
tests/vllm_cpu/release.sh 0.33.0
```

Both scripts test the scheduler classes of the engine's release on a CPU, with random request
streams and small KV pools. The table of tested releases has these columns:

- *Serves correctly* is the number of streams in which every request finished with all of its
  tokens.
- *As the engine* is the number of streams in which the plugin's FCFS (on SGLang also the plugin's
  LPM) makes the same decisions in every iteration as the release without the plugin.
- *As simulated* is the number of streams in which admissions, cached tokens, evictions and
  preemptions are equal to the simulator's in every iteration.
- *Server* states whether tests started a real server of the release with the plugin on a CPU.

The plugins refuse all releases that are not in the table. To use a newer release, set
`--allow-untested-release` for `run`, `sweep` or `serve`, or set
`FAIRBENCH_ALLOW_UNTESTED_RELEASE=1` in the environment of a server that you start yourself. The
plugins always refuse releases that are older than the tested releases.

With [`--engine-code PYTHON`](own-code.md), the installed engine's own code takes every decision in
a simulation, so a release or a fork may differ from fairbench's model. `fairbench engine-check
--engine-code PYTHON` finds the first decision in which the installed engine and fairbench's model
differ. The scripts above also run `engine-check`, which compares the release with the model of the
same release in random runs.
CHECKED

The simulator follows the rules of SGLang 0.5.23. To simulate an older release of SGLang, set the
release: `--set engine.release=0.5.17`. If `engine.release` names an older release, the simulator
follows these rules of older releases:

- Before SGLang 0.5.23, a request that finishes in a decode step stays in the batch until the next
  decode step. Until the next decode step, the finished request occupies a place in the batch and
  reserves its unused tokens, and a batch that is marked full remains full.
- Before SGLang 0.5.23, a prompt that is computed in chunks counts twice in `max_running_requests`
  from its second chunk on.
- Before SGLang 0.5.23, a scheduling pass tries one more request after the next chunk of a prompt
  has used up a budget. The pass admits one more request if only the budget `max_prefill_tokens` is
  used up.
- Before SGLang 0.5.22, a scheduling pass does not refresh the cached prefixes of the first waiting
  requests.
- Before SGLang 0.5.22, the prefix tree stores the recomputed prompt and outputs of a retracted
  request as a single node. The single node is split when the request finishes; before SGLang
  0.5.20, it is never split.

Before SGLang 0.5.22, `ignore_eos` does not reserve memory for all outputs. The setting
`engine.full_reservation` reserves memory for all outputs in every simulated release.

The SGLang plugin stores prefix matches between scheduling passes, on `RadixCache` and
`UnifiedRadixCache` of every release. On `UnifiedRadixCache` (a tree in Python), the plugin's LPM
made the same decisions as SGLang's LPM in 10 of 10 streams with each of 0.5.17, 0.5.20 and 0.5.21.

| engine | release | hooked functions | serves correctly | as the engine | as simulated | server |
|---|---|---|---|---|---|---|
"""

FEATURES = """
## Features

If a feature that the plugin refuses is on, the server prints one line that names the flag and the
reason, and exits with code 2 before it loads a model. In this table, *SGLang's own classes* are
SGLang's scheduler, batch, policy and cache on a CPU without a model
(`tests/sim/test_sim_sglang_features.py`); `tests/sglang_cpu/test_sglang_cpu_features.py` starts the
CPU server. *vLLM's own classes* are vLLM's scheduler and KV cache manager
(`tests/sim/test_sim_vllm_features.py`); `tests/vllm_cpu/test_vllm_cpu_features.py` starts the CPU
server. The source of the table is `fairbench_engines/features.py`.

"""

DETAILS = """
### Features inside SGLang

- *LoRA.* If the adapter of a request has no slot, is still loading
  (`--enable-lora-overlap-loading`) or drains (`--lora-drain-wait-threshold`), the request counts as
  a request without room: admission stops, or, with `no_room=skip`, the scheduler tries the next
  request.
- *HiCache* (`--enable-hierarchical-cache`). Tokens that SGLang loads from the host's memory count
  as cached tokens. With `charge=gpu-time`, the measured time of a step includes the time to load
  tokens. The plugin fits the loading time of a token, and charges this time to the request that
  needs the tokens. While SGLang loads a prefix from storage (`--hicache-storage-backend`), the
  prefix's request counts as a request without room.
- *Prefill servers.* A prefill server queues a request once a decode server has memory for the
  request. Until a decode server has memory for a request, clients share the prefill server's
  buffers for arriving prompts by weight.
- *Decode servers.* A decode server gives memory to one request after another, and fairbench's
  scheduler chooses the next request. On a decode server, the scheduler skips requests whose prefill
  server is not ready. On a decode server, retracted requests return first, in SGLang's order. On a
  decode server, the client pays for each output token except the first token, which the prefill
  server charges together with the prompt. On a decode server, no prefix counts as cached.
- *Refused in prefill and decode servers.* The plugin refuses schedulers that preempt (`edf`): a
  preempted request is computed again from its prompt, but the server that decodes the request
  computes no prompts. The plugin refuses schedulers that refuse requests (`rpm`), because the
  server on the other side (prefill or decode) would wait for the refused request. On prefill and
  decode servers, the plugin refuses pipeline parallelism, because the pipeline stages of SGLang
  agree on an order of requests that is not the scheduler's.
- *Choices and prompts.* Without the plugin, SGLang drops the `routing_key` in batches, in requests
  with `n` above 1 and in `/v1/responses`. The plugin keeps the `routing_key` of such requests.
- *CPU time.* `python -m tests.benchmarks.plugin_step --engine sglang --count --turns 8` counts
  Python's bytecode instructions in a step of SGLang 0.5.23 with 256 running and 256 waiting
  requests. Divided by the count of SGLang's own FCFS, the mean count is 1.05 for `fcfs`, 1.07 for
  `vtc`, 1.10 for `lpm`, 1.12 for `dlpm` and 1.38 for `edf` (`edf` with 24 steps). Of the 12% of
  `dlpm`, about 7% are charges and SGLang's own matching of each arriving prompt.
- *CPU milliseconds.* The counts omit work in C, so the CPU time grows more. On two cores that 40
  other processes shared, a mean step of SGLang took 2.7 ms with SGLang's own FCFS, 3.3 ms with
  `fcfs`, 3.6 ms with `vtc` and `lpm`, and 3.7 ms with `dlpm`. With three other processes, a mean
  step took 1.4 ms with SGLang's own FCFS and 2.4 ms with `edf`. In every step, `edf` fits its cost
  model again and ranks all waiting requests. Without `--count`, `plugin_step` measures CPU
  milliseconds on your machine.

### Features inside vLLM

- *LoRA.* The LoRA adapter is part of a request's prefix, and does not change the client of the
  request. If the adapter of the chosen request has no free slot (`--max-loras`), admission stops.
  Without the plugin, vLLM lets other requests pass, so a client with a rare adapter may wait
  forever.
- *Speculative decoding.* Clients pay for accepted tokens, but not for rejected draft tokens or
  tokens after the end of a request. With a drafting model such as EAGLE, vLLM recomputes the last
  block of a prefix match, so a prefix-aware scheduler matches all waiting requests in every pass.
- *Priorities.* With vLLM's `--scheduling-policy priority`, each priority has its own scheduler.
  Requests with the lowest priority number go first, and clients of one priority share fairly. When
  memory runs out, vLLM preempts a request with the highest priority number: the newest request, or
  the request that the scheduler chooses (`preempt=fair`). The plugin refuses schedulers that charge
  measured time together with priorities. `fairbench serve` does not pass on `priority`, because a
  client could put its own requests before the requests of other clients.
- *KV connectors and offloading* (`--kv-transfer-config`, `--kv-offloading-size`) work with the
  plugin. Tokens that a KV connector loads count as cached tokens. If the tokens of a request are
  loaded while steps run, the request is admitted and charged when the load begins. With
  `charge=gpu-time`, a load for which a step waits is charged as a part of the step, and a load that
  runs while steps run is free. Prefix-aware schedulers see only the prefixes in the GPU's memory.
  If a load of the KV cache fails, vLLM recomputes the affected tokens, and no client pays for the
  recomputation.
- *Disaggregation.* In a prefill server, fairbench's scheduler chooses a fair order of requests. In
  a decode server, a client pays for the output tokens of a request. The client also pays for the
  prompt tokens whose KV cache the decode server did not load from the prefill server, which is at
  least one token.
- *Images.* Clients pay for the tokens of images as vLLM counts image tokens. Two prompts share an
  image as a prefix only if the images are equal.
- *Embeddings.* vLLM does not tell its scheduler the clients of pooling requests. With `--runner
  pooling`, the plugin therefore serves requests in order of arrival, says so when the server
  starts, and reports the scheduler `fcfs`. The plugin refuses an eviction policy together with
  `--runner pooling`.
- *Sessions.* `session_id` in the field `vllm_xargs` names the session of a request, because the
  request's own field `session_id` names the client. The eviction policy `retention` keeps the
  tokens of sessions.
- *Several answers.* If a request has `n` above 1, the client pays for every answer.

"""

RANKS = """## Data-parallel ranks

`--dp-size N` (SGLang) and `--data-parallel-size N` (vLLM) start N engine processes, called ranks,
in one server; each rank has its own queue and scheduler object. The ranks share one account of each
client. Service at one rank counts at all ranks, so a client that floods every rank receives no more
than its share of the server.

- *Exchange.* Each rank writes its charges to a file in memory every 50 ms, and reads the charges of
  the other ranks. No rank waits for another rank of the server. The first process of a server
  creates the folder of these files, and sets `FAIRBENCH_RANKS` to its path.
- *Bound.* If two clients wait at all N ranks of a server, their service differs by at most N times
  the bound of one rank (DLPM Theorem 5.1), plus twice the charges that a rank has not read yet.
- *Work.* No rank stays idle because a client waits at another rank. A client that waits at only one
  rank receives at most the service of this rank, and goes before clients that received more service
  at other ranks in the meantime.
- *Schedulers.* `vtc`, `dlpm` and their variants share accounts between ranks. `fcfs`, `lpm`, `edf`
  and all other schedulers without accounts exchange nothing. The plugin refuses schedulers with
  other totals (`rpm`, `equinox`, `tenants=tree`).
- *Refused.* A server with several ranks refuses ranks on several hosts, and priorities. An SGLang
  server with several ranks also refuses tensor or pipeline parallelism inside a rank under `vtc` or
  `dlpm`. A vLLM server with several ranks also refuses Ray, external load balancers, and a
  `VLLM_PLUGINS` without `fairbench`.
- *Failures.* If a rank dies, both SGLang and vLLM stop the whole server. The charges of a dead rank
  remain valid, and after 10 s its clients no longer count as waiting. A restarted rank reads all
  charges of the other ranks.
- *Reset.* On a server with several ranks, `POST /flush_cache` and `POST /reset_prefix_cache` do not
  reset the clients' accounts.
- *Metrics.* The server's `/metrics` has three gauges for each rank: the rank's own charges
  (`fairbench_rank_charges_sent{rank="0"}`), the charges of other ranks that the rank has read
  (`fairbench_rank_charges_received`), and the age of the last of these charges when the rank read
  them (`fairbench_rank_lag_seconds`).

In a test, a CPU server of vLLM 0.32.0 had two ranks under `vtc`, each with two places in its batch.
One client flooded both ranks over 40 connections, and a well-behaved client had 4 connections at
rank 0. The well-behaved client received 40% of the service, as with one rank with four places. With
separate accounts of the ranks, the well-behaved client received 23%, and its median latency rose
from 0.11 s to 0.20 s. `tests/vllm_cpu/test_vllm_cpu_ranks.py` and
`tests/sglang_cpu/test_sglang_cpu_ranks.py` repeat the test of two ranks.
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
        f"The records are equal in {equal} of {runs} runs with each of {', '.join(names)}."
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
