"""Names of models in files of measured runs, and the bundled models that they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Models of the same shape, which take the same time: only their weights' values differ.
SAME_SHAPE = {
    "llama-3-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.1-70b",
    "llama-3.3-70b": "llama-3.1-70b",
    "llama-2-7b-chat": "llama-2-7b",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
}
_TUNING = re.compile(r"-(instruct|chat|base|thinking|hf|it|bf16|fp16|v\d+\.\d+|\d{4})$")
_GLUED = re.compile(r"^(llama|qwen)(\d)")


def canonical_model(name: str, known: Iterable[str]) -> str:
    """Return the known model for a name, or the normalised name.

    Organisation, case, ``Meta-`` and endings such as ``-Instruct`` make no difference:
    ``meta-llama/Llama-3.1-70B-Instruct`` is ``llama-3.1-70b``. Models of one shape have one
    profile.
    """
    models = set(known)
    text = name.strip().lower().rsplit("/", 1)[-1].replace("_", "-").removeprefix("meta-")
    # Qwen writes its version without a hyphen, Llama with one.
    for spelled in (text, _GLUED.sub(r"\1-\2", text)):
        while True:
            if spelled in models:
                return spelled
            if SAME_SHAPE.get(spelled) in models:
                return SAME_SHAPE[spelled]
            if (shorter := _TUNING.sub("", spelled)) == spelled:
                break
            spelled = shorter
    return text
