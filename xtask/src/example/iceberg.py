"""examples/iceberg, tried: slices, one rebuilt, workers of other windows at once, a late worker, a cancelled plan."""

import logging
import sys
import tempfile
import threading
import warnings
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow
from common import Ledger, refused, show
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, TimestamptzType

sys.path.append(str(Path(__file__).parents[3] / "examples/iceberg"))
import slices

# A window without rows, and a pointer that somebody else moved first, are told of as if they were mishaps.
warnings.filterwarnings("ignore", message="Delete operation did not match any records")
logging.getLogger("pyiceberg").setLevel(logging.ERROR)
NAME = "lake.events"
FOLDER = tempfile.TemporaryDirectory(prefix="warehouse-")
WAREHOUSE = FOLDER.name
SCHEMA = pyarrow.schema([("at", pyarrow.timestamp("us", tz="UTC")), ("n", pyarrow.int64())])


def day(number, value):
    """Three rows in the middle of a day."""
    noon = datetime(2024, 3, number, 12, tzinfo=timezone.utc)
    hours = [noon + timedelta(hours=hour) for hour in range(3)]
    return pyarrow.table({"at": hours, "n": [value] * 3}, schema=SCHEMA)


def content(catalog):
    table = catalog.load_table(NAME).scan().to_arrow().to_pydict()
    return sorted((at.day, n) for at, n in zip(table["at"], table["n"]))


def three(*days):
    return sorted([(day, value) for day, value in days for _ in range(3)])


def publish(catalog, lease, number, value):
    return slices.publish(catalog, NAME, "at", lease, day(number, value))


ledger = Ledger("iceberg")
catalog = slices.catalog_of(ledger.url(), f"file://{WAREHOUSE}")
catalog.create_namespace("lake")
fields = NestedField(1, "at", TimestamptzType()), NestedField(2, "n", LongType())
catalog.create_table(NAME, schema=Schema(*fields))

publish(catalog, ledger.lease("2024-03-01"), 1, 10)
publish(catalog, ledger.lease("2024-03-02"), 2, 20)
show("slices of two windows are there", content(catalog) == three((1, 10), (2, 20)))
again = ledger.lease("2024-03-01")
publish(catalog, again, 1, 11)
show("a window is exchanged, and its neighbour stays", content(catalog) == three((1, 11), (2, 20)))
show("the snapshot names the token", slices.token_of(catalog, NAME, "2024-03-01") == again.token)
show("and the ledger names it too", ledger.slice("2024-03-01") == again.token)

late = ledger.lease("2024-03-02", lease_for="1 second")
taken = ledger.take_over(late)
publish(catalog, taken, 2, 21)
show("a worker that comes back late is refused", refused("BF001", publish, catalog, late, 2, -1))
show("and has changed nothing", content(catalog) == three((1, 11), (2, 21)))

cancelled = ledger.lease("2024-03-01")
finish = slices.text


def cancel_before_finish(sql):
    """The plan is cancelled when the table's pointer is already moved, and before COMMIT."""
    if "backfill_finish" in sql:
        ledger.cancel()
    return finish(sql)


slices.text = cancel_before_finish
show("a plan that is cancelled before COMMIT publishes nothing", refused("BF002", publish, catalog, cancelled, 1, -2))
slices.text = finish
show("neither table nor ledger has moved", content(catalog) == three((1, 11), (2, 21)) and ledger.slice("2024-03-01") == again.token)

leases = [ledger.lease(f"2024-03-{number:02}") for number in range(3, 9)]
threads = [
    threading.Thread(target=lambda lease=lease, number=number: publish(slices.catalog_of(ledger.url(), f"file://{WAREHOUSE}"), lease, number, number))
    for number, lease in enumerate(leases, start=3)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
expected = three((1, 11), (2, 21), *((number, number) for number in range(3, 9)))
show("six workers publish at once, and no slice is lost", content(catalog) == expected)
