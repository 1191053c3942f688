"""How results are shown: terminal, page, figure, notebook. Nothing here computes attention."""
