"""Makes `docs.chapter`, which writes the chapter on attention, importable by that name."""
