"""The parts that all studies share: stores, tables and claims."""
