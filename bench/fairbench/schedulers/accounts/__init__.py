"""Accounts: how much service each client has received or is owed, flat or in a tree of tenants."""
