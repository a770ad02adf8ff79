"""The VTC paper: experiments, figures 3 to 14, and claims."""
