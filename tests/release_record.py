"""Write the observations of each engine release, and their page docs/reference/releases.md.

``tests/sglang_cpu/release.sh`` and ``tests/vllm_cpu/release.sh`` call ``record`` through
``release_check.py``. ``python tests/release_record.py`` rewrites the page.
"""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests/data/releases.json"
PAGE = ROOT / "docs/reference/releases.md"

HEAD = """\
# Engine releases

This page lists the releases and features of SGLang and vLLM that the [plugins](../guide/sglang.md)
support, and the test results of each. `tests/release_record.py` generates the page. To test a
release:

```sh
tests/sglang_cpu/release.sh 0.5.19
tests/vllm_cpu/release.sh 0.33.0
```

The scripts run the release's own scheduler classes on a CPU, with random request streams and small
KV pools.

- *Serves correctly*: streams in which every request finished with all of its tokens.
- *Decides as the engine*: streams in which the plugin's FCFS (on SGLang also its LPM) makes the
  same decisions as this release without the plugin, in every iteration.
- *Decides as simulated*: streams in which admissions, cached tokens, evictions and preemptions
  equal the simulator's in every iteration.
- *Server*: whether the tests started a real server of the release with the plugin, on a CPU.

The plugins refuse other releases before they import the engine. To try a newer release, give
`--allow-untested-release` to `run`, `sweep` or `serve`, or set `FAIRBENCH_ALLOW_UNTESTED_RELEASE=1`
in the environment of a server that you start yourself. Older releases are always refused.

The simulator follows the rules of SGLang 0.5.23. To simulate an older release, set its name:
`--set engine.release=0.5.17`. The simulator then follows these rules:

- Before 0.5.23 a request that finishes in a decode step stays in the batch until the next decode
  step. Until then, the request takes a slot and reserves the tokens that it did not use, and a
  batch that is marked full remains full.
- Before 0.5.23 a prompt that is computed in chunks takes two of `max_running_requests` from its
  second chunk on.
- Before 0.5.23 a pass tries one more request when the next chunk of a prompt has used up a budget.
  The request is admitted if only `max_prefill_tokens` is used up.
- Before 0.5.22 the prefixes of the first waiting requests are not refreshed.
- Before 0.5.22 a retracted request's prompt and outputs are stored as a single tree node when they
  are computed again. The node is split when the request finishes; before 0.5.20 it is never split.

Before 0.5.22 `ignore_eos` does not reserve all outputs; `engine.full_reservation` does so in every
simulated release.

The plugin keeps matches between passes on `RadixCache` and `UnifiedRadixCache` of every release. On
`UnifiedRadixCache` (tree in Python), the plugin's LPM made the same decisions as SGLang's own LPM
in 10 of 10 streams with each of 0.5.17, 0.5.20 and 0.5.21.

| engine | release | hooked functions | serves correctly | as the engine | as simulated | server |
|---|---|---|---|---|---|---|
"""

FEATURES = """
## Features

A feature that is refused ends SGLang's server before a model is loaded, with one line that names
the flag and the reason, and exit code 2. *SGLang's own classes* are its scheduler, batch, policy
and cache on a CPU without a model (`tests/sim/test_sim_sglang_features.py`); the CPU server is
started by `tests/sglang_cpu/test_sglang_cpu_features.py`. The table comes from
`fairbench_engines/features.py`.

"""

SERVERS = {("SGLang", "0.5.23"), ("vLLM", "0.32.0")}


def record(engine, row):
    """Add a release's row and rewrite the page."""
    rows = read()
    rows.setdefault(engine, {})[row["release"]] = row
    RECORD.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


def read():
    """Return the observations: engine -> release -> row."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def page():
    """Return the page for the record and the releases that the plugins support."""
    from fairbench_engines.features import table
    from fairbench_engines.sglang.release import SUPPORTED as SGLANG
    from fairbench_engines.vllm.release import SUPPORTED as VLLM

    rows, lines = read(), []
    for engine, supported in (("SGLang", SGLANG), ("vLLM", VLLM)):
        seen = rows.get(engine, {})
        lines += [_line(engine, release, seen.get(release)) for release in supported]
    return HEAD + "\n".join(lines) + "\n" + FEATURES + table()


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
    """Return (streams, served, alike) over all cases and seeds; ``play`` returns
    (served, alike).
    """
    total = served = alike = 0
    for case in cases:
        for seed in seeds:
            well, same = play(case, seed)
            total, served, alike = total + 1, served + well, alike + same
    return {"streams": total, "served": served, "alike": alike}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
