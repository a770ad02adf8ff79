"""vLLM's engine (V1), as of version 0.32.0: one token budget a step, blocks, preemption.

Written after the modules ``vllm.v1.core`` of that wheel, and tested against them. See docs/engine.md.
"""
