"""The study of gates for agent sessions: their throughput, and which clients wait."""
