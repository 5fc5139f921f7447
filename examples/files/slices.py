"""Slices that are folders of files: one folder a token, and the ledger says which of them counts.

    ROOT/2024-03-01/1048577/part-0.csv     what the attempt with token 1048577 produced for that window

Nobody writes into a folder of another token, so that a worker that comes back late harms nothing; and a reader asks
the ledger for the token, so that what it finds is whole. Needs psycopg 3.
"""

import os
import shutil
from pathlib import Path


def publish(connection, root, lease, write, rows=None):
    """Writes the slice of a lease and makes it the one that counts; `write` fills an empty folder.

    Fails with BF001 or BF002 where the right to do so has gone: then the folder is there and nobody reads it.
    """
    window = Path(root) / lease.window_key
    ready, partial = window / str(lease.token), window / f".{lease.token}"
    # After a COMMIT whose answer was lost the folder is there: it was renamed when it was whole.
    if not ready.exists():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write(partial)
        for file in partial.iterdir():
            sync(file)
        sync(partial)
        partial.rename(ready)
        sync(window)
        sync(window.parent)
    with connection.transaction():
        # Now, and once more at COMMIT, the right is looked at.
        connection.execute("SELECT backfill_finish(%s, rows => %s)", [lease.token, rows])
    return ready


def read(connection, root, pipeline, window_key):
    """The folder that counts for a window; None where nothing was published yet."""
    token = connection.execute(
        "SELECT token FROM backfill.slices WHERE pipeline = %s AND window_key = %s", [pipeline, window_key]
    ).fetchone()
    return Path(root) / window_key / str(token[0]) if token else None


def sweep(connection, root, pipeline, keep="1 day"):
    """Removes folders that do not count: of attempts that ended so long ago, longer than any reader reads."""
    dead = connection.execute(
        """SELECT r.window_key, r.token FROM backfill.runs r
           LEFT JOIN backfill.slices s ON s.pipeline = r.pipeline AND s.window_key = r.window_key
           WHERE r.pipeline = %s AND r.finished_at < clock_timestamp() - %s::interval
             AND r.token IS DISTINCT FROM s.token""",
        [pipeline, keep],
    ).fetchall()
    for window_key, token in dead:
        for name in (str(token), f".{token}"):
            shutil.rmtree(Path(root) / window_key / name, ignore_errors=True)


def sync(path):
    """On disk, and not only in memory: a slice that counts must survive what the ledger survives."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
