"""eyeline as an attention implementation of Hugging Face transformers.

Importing this makes it known, once a process; `model.set_attn_implementation("eyeline")` then
computes with it, and ``output_attentions=True`` returns lazy weights. Watching a model needs none
of it and leaves transformers' registries as they were.
"""

from __future__ import annotations

from eyeline.integrations import huggingface_attention

huggingface_attention.register()
