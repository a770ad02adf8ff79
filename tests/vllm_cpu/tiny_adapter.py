"""A LoRA adapter for the tiny model, with random numbers."""

import json
import sys
from pathlib import Path

RANK = 8
WIDTH, VALUES = 64, 128  # width of the model's hidden states, and of its two key and value heads


def write_adapter(folder, seed):
    """Write an adapter for the value projections. The Python needs torch and safetensors."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": ["v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    weights = {}
    for layer in range(2):
        name = f"base_model.model.model.layers.{layer}.self_attn.v_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, WIDTH)
        weights[f"{name}.lora_B.weight"] = torch.randn(VALUES, RANK)
    save_file(weights, folder / "adapter_model.safetensors")


if __name__ == "__main__":
    write_adapter(sys.argv[1], int(sys.argv[2]))
