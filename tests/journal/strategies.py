"""Every entry and every history that a journal must keep, as Hypothesis strategies."""

from __future__ import annotations

import attrs
from hypothesis import strategies as st

from gymckpt.core.entry import Entry
from tests.journal.samples import OPERATION, RUN

ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
names = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=20)
seconds = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(1, 2**63 - 1)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
facts = st.dictionaries(st.text(max_size=8), plain, max_size=5)
instances = st.builds(
    "{}/replica-{}".format,
    st.from_regex(r"[a-z][a-z0-9_.-]{0,8}", fullmatch=True),
    st.integers(0, 99),
)

any_entry = st.builds(
    Entry,
    run=ids,
    operation_id=ids,
    seq=counts,
    epoch=counts,
    ts=seconds,
    at_s=seconds,
    instance=st.none() | instances,
    call=st.none() | names,
    ask=st.none() | counts,
    trigger=names,
    source=st.just("") | names,
    dest=names,
    facts=facts,
)


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """Return all entries of one operation, through one or more epochs."""
    drawn = draw(st.lists(any_entry, min_size=1, max_size=8))
    opened = attrs.evolve(drawn[0], seq=1, epoch=1, instance=None, source="")
    history = [attrs.evolve(opened, run=RUN, operation_id=OPERATION)]
    for one in drawn[1:]:
        last = history[-1]
        epoch = last.epoch + draw(st.sampled_from([0, 0, 1]))
        history.append(
            attrs.evolve(one, run=RUN, operation_id=OPERATION, seq=last.seq + 1, epoch=epoch)
        )
    return history
