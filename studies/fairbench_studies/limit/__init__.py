"""The study of the limit: how near each scheduler comes to the best possible schedule."""
