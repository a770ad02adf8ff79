"""The study of gates for agent sessions: throughput against who waits."""
