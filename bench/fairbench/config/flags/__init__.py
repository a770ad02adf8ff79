"""The flags of experiments, each declared once: commands, keywords, checks and docs read them."""
