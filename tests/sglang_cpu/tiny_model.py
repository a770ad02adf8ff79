"""Write a tiny Llama without weights and a tokenizer of 2,048 words, for SGLang on a CPU.

``python tiny_model.py DIR``. The words are ``w3`` ... ``w2047``, one token each.
"""

import json
import sys
from pathlib import Path
from typing import Any

VOCABULARY = 2048
SPECIAL = {"<unk>": 0, "<s>": 1, "</s>": 2}
CONTEXT = 16384

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "initializer_range": 0.02,
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "chat_template": "{% for m in messages %}{{ m['content'] }} {% endfor %}",
}


def write_model(folder: Path, config: dict[str, Any] = CONFIG) -> None:
    """Write everything that ``--model-path`` needs together with ``--load-format dummy``."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    words = {f"w{number}": number for number in range(len(SPECIAL), config["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(SPECIAL | words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    tokenizer_config = TOKENIZER_CONFIG | {"model_max_length": config["max_position_embeddings"]}
    files = {"config": config, "tokenizer_config": tokenizer_config, "generation_config": ends}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
