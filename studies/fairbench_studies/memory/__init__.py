"""The study of fair shares of KV memory."""
