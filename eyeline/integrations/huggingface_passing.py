"""Calls of a Hugging Face model that its own kernel computes, and of which is told later.

Between two layers their weights drive the interpreter's code out of the processor's caches, and
each Python function takes several times as long as in a loop. So a call is put in a list with what
it was given, and what it was is told of all calls together: when the forward ends, or when someone
asks before.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from eyeline.calls import Noted, versions
from eyeline.calls.holding import held, keeps_more
from eyeline.integrations import Note
from eyeline.integrations.huggingface_calls import Given, Rules, call_of
from eyeline.integrations.huggingface_masks import Told
from eyeline.integrations.huggingface_ran import Ran

# of a call: its kernel, module and whether that trains, its queries, keys, mask, other arguments,
# and the versions of the three tensors
Passed = tuple[
    str, torch.nn.Module, bool, Tensor, Tensor, Tensor | None, dict[str, Any], tuple[int, int, int]
]


class Passing:
    """The calls of one forward that nobody was told of yet.

    `on` while calls may just be put into `calls`: after the first of a forward, up to the next
    telling. Where the first must be copied each is told, and copied, at once; the others that must
    be are copied when they are told.
    """

    def __init__(self, ran: Ran, rules: Rules, note: Note | None) -> None:
        self.calls: list[Passed] = []
        self.on = False
        self._ran, self._rules, self._note = ran, rules, note

    def begin(self, call: Passed) -> None:
        """The first call has run."""
        assert self._note is not None
        self._note.first(*call[3:5])
        self.calls.append(call)
        self.on = not keeps_more(*call[3:5])
        if not self.on:
            self.tell()

    def tell(self) -> None:
        """Tell of all calls that were not told."""
        self.on = False
        if not self.calls:
            return
        calls, self.calls = self.calls, []
        for kernel, module, training, query, key, mask, kwargs, before in calls:
            path = self._ran.paths.get(id(module))
            if path is None:  # of another model, which has the same configuration
                continue
            if keeps_more(query, key) and versions(query, key, mask) == before:
                query, key = held(query, key)
                before = versions(query, key, mask)
            given = Given.of(module, kwargs, training)
            rule = self._rules.of(mask, query, key)
            known = isinstance(rule, Told) and rule.known
            shown = rule if known else mask
            make = partial(call_of, path, kernel, shown, rule, self._ran.calls(path), given)
            assert self._note is not None
            self._note.note(Noted(path, query, key, None if known else mask, make, before))
