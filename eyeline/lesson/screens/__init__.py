"""The screens of the lesson, one concept a module; each is a function Stage → Screen."""
