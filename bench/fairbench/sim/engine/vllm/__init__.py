"""vLLM's V1 engine, version 0.32.0: one token budget per step, blocks, preemption.

The engine follows ``vllm.v1.core`` of that wheel, and is tested against it. See
docs/appendix/engine.md.
"""
