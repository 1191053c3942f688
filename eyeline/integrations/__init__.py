"""How eyeline reaches into other libraries; nothing else in the package knows them."""
