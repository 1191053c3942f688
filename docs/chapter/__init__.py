"""The chapter on attention: its templates, the numbers that fill them, and its figures."""
