"""Accounts: what each client has been given or is owed, flat or by a tree of tenants."""
