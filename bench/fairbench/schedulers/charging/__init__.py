"""Rules for the amounts that events of an engine or a router charge to the accounts of clients."""
