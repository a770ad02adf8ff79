"""The known attacks under many schedulers, and whether a search rediscovers them."""
