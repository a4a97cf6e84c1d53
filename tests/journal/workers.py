"""
What other processes do to a journal in the tests: appending, dying, filling the disk.

Run as `python -m tests.journal.workers <name> <arguments>`; each prints one line when it is ready
and waits for a line where it must be told to go on.
"""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from gymckpt.errors import Fenced, JournalConflict, JournalError
from gymckpt.journal import Journal, open_journal
from tests.journal.samples import FOUGHT_FOR, OPERATION, RUN, begun, entries, entry

BUSY_TIMEOUT_S = 30.0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _wait() -> None:
    sys.stdin.readline()


def own(path: str, name: str, count: str) -> None:
    """Append to an operation of its own, and to the shared one in competition with others."""
    _say("ready")
    _wait()
    with open_journal(path, busy_timeout_s=BUSY_TIMEOUT_S) as journal:
        begun(journal, operation_id=name)
        for number in range(1, int(count) + 1):
            seq = 2 * number
            pair = entries(seq, seq + 1, operation_id=name)
            journal.append(pair, expected_seq=seq - 1, epoch=1)
            _append_shared(journal, f"{name}-{number}")
    _say("done")


def _append_shared(journal: Journal, mark: str) -> None:
    """Append one marked entry to the shared operation, after whatever others have appended."""
    while True:
        held = journal.operation(RUN, OPERATION)
        assert held is not None
        at = held.last_seq
        try:
            journal.append([entry(at + 1, facts={"mark": mark})], expected_seq=at, epoch=1)
        except JournalConflict:
            continue
        return


def fight(path: str, name: str, count: str) -> None:
    """Take a run over again and again, appending what one can before it is lost."""
    _say("ready")
    _wait()
    with open_journal(path, busy_timeout_s=BUSY_TIMEOUT_S) as journal:
        for number in range(int(count)):
            epoch = journal.claim(FOUGHT_FOR, holder=f"{name}-{number}", force=True)
            held = journal.operation(FOUGHT_FOR, OPERATION)
            assert held is not None
            at = held.last_seq
            mark = {"owner": f"{name}-{number}"}
            try:
                for seq in (at + 1, at + 2):
                    one = entry(seq, run=FOUGHT_FOR, epoch=epoch, facts=mark)
                    journal.append([one], expected_seq=seq - 1, epoch=epoch)
            except Fenced:
                continue
    _say("done")


def stand_still(path: str) -> None:
    """Append to the shared operation, and stop in the middle of that transaction until told."""
    journal: Any = open_journal(path, busy_timeout_s=BUSY_TIMEOUT_S)
    insert = journal._store.insert_rows

    def insert_rows(connection: Any, rows: Any) -> None:
        journal._store.insert_rows = insert
        _say("inside")
        _wait()
        insert(connection, rows)

    journal._store.insert_rows = insert_rows
    try:
        journal.append([entry(2)], expected_seq=1, epoch=1)
    except JournalError as error:
        _say(type(error).__name__)
    journal.close()


def create(path: str, name: str) -> None:
    """Open a journal that is not there yet, together with others, and use it at once."""
    _say("ready")
    _wait()
    with open_journal(path, busy_timeout_s=BUSY_TIMEOUT_S) as journal:
        begun(journal, 2, operation_id=name)
    _say("done")


def append_for_ever(path: str) -> None:
    """Append batches of three, saying after each which entry is durable, until killed."""
    with open_journal(path) as journal:
        begun(journal)
        seq = 1
        while True:
            journal.append(entries(seq + 1, seq + 3), expected_seq=seq, epoch=1)
            seq += 3
            _say(str(seq))


def hold(path: str) -> None:
    """Append to an operation of six entries, and keep the journal open until killed."""
    with open_journal(path) as journal:
        journal.append([entry(7)], expected_seq=6, epoch=1)
        _say("ready")
        _wait()


def limited(path: str, bytes_max: str) -> None:
    """Append until the operating system refuses to let a file grow, then with room again."""
    journal = open_journal(path)
    begun(journal)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(bytes_max), hard))
    seq, facts = 1, {"text": "x" * 20_000}
    try:
        while True:
            journal.append([entry(seq + 1, facts=facts)], expected_seq=seq, epoch=1)
            seq += 1
    except JournalError as error:
        _say(f"{type(error).__name__} after {seq}: {error}")
    _say(str(len(journal.read(RUN, OPERATION))))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    journal.append([entry(seq + 1, facts=facts)], expected_seq=seq, epoch=1)
    _say(str(len(journal.read(RUN, OPERATION))))
    journal.close()


WORKERS: dict[str, Callable[..., None]] = {
    worker.__name__: worker
    for worker in (own, fight, stand_still, create, append_for_ever, hold, limited)
}

if __name__ == "__main__":
    WORKERS[sys.argv[1]](*sys.argv[2:])
