"""Write a model of Llama-3.1-8B's shape without weights, and a tokenizer of the same size.

``python -m tests.gpu.llama_8b DIR``. With ``--load-format dummy``, SGLang computes as with real
weights.
"""

import sys
from pathlib import Path

from tests.sglang_cpu.tiny_model import CONFIG, write_model

LLAMA_8B = CONFIG | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "torch_dtype": "bfloat16",
}

if __name__ == "__main__":
    write_model(Path(sys.argv[1]), LLAMA_8B)
