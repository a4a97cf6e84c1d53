"""
A Hypothesis profile for mutation runs: few examples, always the same, and none made smaller.

It is a plugin of pytest: `-p tools.mutation_profile --hypothesis-profile=mutation`. What a mutant
fails with is of no interest, only that it fails, and a mutant must fare the same in every run.
"""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile(
    "mutation",
    database=None,
    deadline=None,
    derandomize=True,
    max_examples=6,
    phases=(Phase.explicit, Phase.generate),
)
