"""Formats of lines: the access logs of nginx and Apache, and regular expressions. From lines to columns."""
