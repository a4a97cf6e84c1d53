"""
What users hold their own backends and journals to the protocol with; `docs/testing.md` shows how.

Import what you need from its module: only `instance_contract` and `journal_contract` need pytest,
and only `strategies` Hypothesis. Nothing else of the package imports anything from here.
"""
