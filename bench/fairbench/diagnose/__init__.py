"""The diagnosis of an access log: who floods, who is hurt, and what would change it."""
