"""vLLM's V1 engine, version 0.32.0: one token budget per step, blocks, preemption.

Written after ``vllm.v1.core`` of that wheel, and tested against it. See docs/appendix/engine.md.
"""
