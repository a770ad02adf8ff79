"""Several routers, and the totals they exchange in order to be as fair as one router."""
