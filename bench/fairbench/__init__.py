"""fairbench: is this LLM serving scheduler fair, and what does fairness cost?"""

__version__ = "0.1.0"
