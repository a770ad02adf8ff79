"""The kit that all studies share: stores, tables, claims."""
