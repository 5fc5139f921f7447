"""Slices of an Apache Iceberg table whose catalog is in the same PostgreSQL as the ledger.

The catalog keeps one row a table, which points to its newest metadata. PyIceberg moves that pointer with an UPDATE, and
here that UPDATE is part of the transaction that passes the fence and finishes the lease: the table and the ledger change
together or not at all. The token stands in the properties of the snapshot.

Needs pyiceberg[sql-postgres,pyarrow] and psycopg 3.
"""

import time

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThan
from sqlalchemy import text

# Workers of other windows move the pointer too: whoever comes second builds its snapshot on theirs.
TRIES = 20


def catalog_of(url, warehouse):
    return SqlCatalog("ledger", uri=url, warehouse=warehouse)


def publish(catalog, name, column, lease, rows):
    """Exchanges the slice of a lease for the rows of an Arrow table, and finishes the lease.

    Fails with BF001 or BF002 where the right to do so has gone: then the table is what it was. Data files of a commit
    that failed are orphans, as always in Iceberg.
    """
    for attempt in range(TRIES):
        try:
            return exchange(catalog, name, column, lease, rows)
        except CommitFailedException:
            if attempt == TRIES - 1:
                raise
            time.sleep(0.05 * (attempt + 1))


def exchange(catalog, name, column, lease, rows):
    engine = catalog.engine
    with engine.connect() as connection, connection.begin():
        connection.execute(text("SELECT fence_check(:token)"), {"token": lease.token})
        # A session that joins a transaction commits nothing by itself.
        catalog.engine = connection
        try:
            catalog.load_table(name).overwrite(
                rows,
                overwrite_filter=And(
                    GreaterThanOrEqual(column, lease.window_start.isoformat()),
                    LessThan(column, lease.window_end.isoformat()),
                ),
                snapshot_properties={
                    "pg_backfill.pipeline": lease.pipeline,
                    "pg_backfill.window": lease.window_key,
                    "pg_backfill.token": str(lease.token),
                },
            )
        finally:
            catalog.engine = engine
        finish = text("SELECT backfill_finish(:token, rows => :rows)")
        connection.execute(finish, {"token": lease.token, "rows": rows.num_rows})


def token_of(catalog, name, window_key):
    """The token that the newest snapshot of a window names; None where it was never published."""
    for snapshot in reversed(catalog.load_table(name).snapshots()):
        # Deleting the old rows and adding the new ones are two snapshots of one commit.
        if snapshot.summary and snapshot.summary.get("pg_backfill.window") == window_key:
            return int(snapshot.summary["pg_backfill.token"])
    return None
