"""Several routers: what they tell each other, so that together they are as fair as one router."""
