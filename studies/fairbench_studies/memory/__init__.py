"""Studies of eviction policies that give each client a fair share of KV memory."""
