"""Several routers, and the totals that they exchange in order to be as fair as one router."""
