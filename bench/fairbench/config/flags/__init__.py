"""The flags of experiments. Commands, Python keywords, checks and docs derive from them."""
