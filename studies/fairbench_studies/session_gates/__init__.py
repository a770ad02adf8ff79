"""The study of gates for agent sessions, which compares throughput with who waits."""
