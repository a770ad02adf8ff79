"""Accounts of the service that each client or tenant has received or may still receive."""
