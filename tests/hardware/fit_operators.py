"""Fit a timing profile to the operator times that NVIDIA measured, as the bundled ones were.

    pip install aiconfigurator-core==0.12.0 scipy  # an environment of its own
    python tests/hardware/fit_operators.py meta-llama/Meta-Llama-3.1-70B a100_sxm 0.5.10 --tp 4

prints the entry for engine_profiles.json; with ``--against ID`` the errors of a bundled profile on
the iterations that are drawn here.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from aiconfigurator_core.sdk.rust_engine_step import RustForwardPassPerfModel
from scipy.optimize import least_squares

BUNDLED = Path(__file__).parents[2] / "bench/fairbench/hardware/profiles/engine_profiles.json"
NAMES = "c0", "c_w", "c_T", "p", "c_A", "c_K", "c_npf", "c_nd"
ITERATIONS, HELD_OUT, SEED = 900, 270, 0
HOST_MS = 0.5


def operators(model, system, version, tp, backend="sglang"):
    """Return a function that computes an engine's time for an iteration, in ms."""
    config = {"schema_version": 1, "pp_size": 1, "moe_tp_size": 1, "moe_ep_size": 1}
    config |= {"attention_dp_size": 1, "backend": backend, "backend_version": version}
    config |= {"model_path": model, "model_name": model, "tp_size": tp}
    config |= {"system": system, "system_name": system}
    return RustForwardPassPerfModel.from_native(config)


def drawn(count, rng, most_context):
    """Draw iterations, a third each of prefill, decode and both: columns of sequences and tokens.

    Sequences of one kind in an iteration are equal, because only sums matter.
    """

    def between(low, high):
        return np.exp(rng.uniform(np.log(low), np.log(high), count)).astype(int)

    kind = rng.integers(0, 3, count)
    prefills = np.where(kind == 1, 0, between(1, 9))
    new = np.maximum(1, between(16, 8193) // np.maximum(1, prefills))
    prefix = np.where(rng.random(count) < 0.5, 0, between(16, 32_769))
    decodes = np.where(kind == 0, 0, between(1, 401))
    context = np.minimum(between(64, 16_385), most_context // np.maximum(1, decodes))
    return {
        "n": prefills,
        "new": new * (prefills > 0),
        "prefix": prefix * (prefills > 0),
        "nd": decodes,
        "context": context * (decodes > 0),
    }


def priced(model, it):
    """Return the milliseconds of each iteration according to the operators."""
    times = []
    for n, new, prefix, nd, context in zip(*it.values(), strict=True):
        scheduled = {"num_prefill_requests": n, "sum_prefill_tokens": n * new}
        scheduled |= {"sum_prefill_kv_tokens": n * prefix, "var_prefill_length": 0.0}
        scheduled |= {"num_decode_requests": nd, "sum_decode_kv_tokens": nd * context}
        whole = {name: value if name[0] == "v" else int(value) for name, value in scheduled.items()}
        whole["var_decode_kv_tokens"] = 0.0
        times.append(model.estimate_forward_pass_time_ms({"scheduled_requests": whole}))
    return np.array(times)


def predicted(values, it):
    """Return the milliseconds of each iteration by the profile's formula, without the host."""
    c = dict(zip(NAMES, values, strict=True))
    linear = c["c_T"] * (it["n"] * it["new"] + it["nd"])
    joined = np.logaddexp(*(c["p"] * np.log(np.maximum(1e-12, x)) for x in (c["c_w"], linear)))
    attention = c["c_A"] * it["new"] * (it["prefix"] + (it["new"] + 1) / 2)
    prefills = it["n"] * (np.maximum(attention, c["c_K"] * it["prefix"]) + c["c_npf"])
    decodes = it["nd"] * (c["c_K"] * it["context"] + c["c_nd"])
    return c["c0"] + np.exp(joined / c["p"]) + prefills + decodes


def fitted(it, times):
    """Fit non-negative coefficients by least squares of logarithms, soft-L1, with p from 1 to 8."""
    start = np.array([2.0, 5.0, 0.05, 2.0, 1e-6, 5e-5, 0.02, 0.002])
    low, high = np.zeros(8), np.full(8, np.inf)
    low[3], high[3] = 1.0, 8.0

    def residuals(scaled):
        return np.log(predicted(scaled * start, it) / times)

    found = least_squares(
        residuals, np.ones(8), bounds=(low / start, high / start), loss="soft_l1", f_scale=0.05
    )
    return found.x * start


def errors_pct(values, it, times):
    """Return relative errors in percent: mean, percentiles, largest, and bias."""
    off = 100 * (predicted(values, it) / times - 1)
    size = np.abs(off)
    named = {"MAPE": size.mean(), "P50": np.median(size), "P95": np.percentile(size, 95)}
    named |= {"max": size.max(), "bias": off.mean()}
    return {name: round(float(value), 2) for name, value in named.items()}


def rows(it, chosen):
    return {name: column[chosen] for name, column in it.items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="as a hub names it")
    parser.add_argument("system", help="as aiconfigurator names the GPU")
    parser.add_argument("version", help="of the engine")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--backend", default="sglang", help="the engine")
    parser.add_argument("--most-context", type=int, default=400_000, help="tokens of decodes")
    parser.add_argument("--against", help="the id of a bundled profile")
    given = parser.parse_args()
    it = drawn(ITERATIONS, np.random.default_rng(SEED), given.most_context)
    model = operators(given.model, given.system, given.version, given.tp, given.backend)
    times = priced(model, it)
    kept, held = slice(HELD_OUT, None), slice(HELD_OUT)
    if given.against:
        entry = json.loads(BUNDLED.read_text())["profiles"][given.against]
        values = [entry["coefficients_ms"][name] for name in NAMES]
    else:
        values = fitted(rows(it, kept), times[kept])
    entry = {
        "coefficients_ms": {n: float(f"{v:.6g}") for n, v in zip(NAMES, values, strict=True)},
        "host_ms": HOST_MS,
        "grade": f"fitted to measured operators ({ITERATIONS} iterations, {HELD_OUT} held out)",
        "provenance": "aic-70b",
        "heldout_error_pct": errors_pct(values, rows(it, held), times[held]),
    }
    print(json.dumps(entry, indent=2))


if __name__ == "__main__":
    main()
