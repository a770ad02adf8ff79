"""Derive the bundled profiles of models and GPUs that nobody measured for this project.

    pip install -e '.[profile]'  # in a separate environment
    python tests/hardware/derive_profiles.py

writes ``derived_profiles.json``. A profile uses SGLang's operator times if the tables have them,
else vLLM's, else a roofline. Models that do not fit a GPU, and pairs that were fitted before, are
left out.
"""

import json
from dataclasses import replace
from pathlib import Path

from fairbench.errors import UsageError
from fairbench.hardware.catalogue import DERIVED, table_of
from fairbench_calibration.profiling.derived_profile import derive

PROFILES = Path(__file__).parents[2] / "bench/fairbench/hardware/profiles"
GPUS = ("a100", "h100", "h200", "l40s", "b200")
MODELS = {
    "qwen3-8b": 1,
    "qwen3-14b": 1,
    "qwen3-32b": 1,
    "qwen3-30b-a3b": 1,
    "llama-3.1-8b": 1,
    "gpt-oss-20b": 1,
    "gpt-oss-120b": 1,
    "deepseek-v3": 8,
    "mixtral-8x7b": 2,
}


def best(model, gpu, tp):
    """Return SGLang's operators, else vLLM's, else a roofline; None if the model does not fit."""
    try:
        found = [derive(model, gpu, tp=tp, engine=engine) for engine in ("sglang", "vllm")]
    except UsageError as error:
        print(f"left out: {error}")
        return None
    return next((one for one in found if not one.note), found[0])


def main():
    fitted = json.loads((PROFILES / "engine_profiles.json").read_text())["profiles"]
    tables = []
    for model, tp in MODELS.items():
        for gpu in GPUS:
            found = best(model, gpu, tp)
            if found is None or found.profile.profile_id in fitted:
                continue
            print(found.profile.profile_id, found.error_pct["MAPE"], found.note)
            # In bundled profiles, all engines have equal pools.
            profile = replace(found.profile, pool=replace(found.profile.pool, vllm=None))
            tables.append(table_of(profile, found.source, found.error_pct))
    text = json.dumps({"profiles": tables}, indent=1)
    (PROFILES / DERIVED).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
