"""The study of rules that charge clients for shared prefixes."""
