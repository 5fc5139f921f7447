"""examples/files, tried: a slice, one rebuilt, a worker that comes back late, a plan that is cancelled, a crash."""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from common import Ledger, refused, show

sys.path.append(str(Path(__file__).parents[3] / "examples/files"))
import slices

FOLDER = tempfile.TemporaryDirectory(prefix="slices-")
ROOT = Path(FOLDER.name)


def rows(text):
    return lambda folder: (folder / "part-0.csv").write_text(text)


def content(ledger):
    folder = slices.read(ledger.connection, ROOT, ledger.pipeline, "2024-03-01")
    return (folder / "part-0.csv").read_text() if folder else None


def publish(ledger, lease, text):
    return slices.publish(ledger.connection, ROOT, lease, rows(text), rows=1)


ledger = Ledger("files")
lease = ledger.lease("2024-03-01")
show("nothing counts before it is published", content(ledger) is None)
publish(ledger, lease, "first")
show("a slice is the folder of its token", content(ledger) == "first")

late = ledger.lease("2024-03-01", lease_for="1 second")
taken = ledger.take_over(late)
publish(ledger, taken, "second")
show("a worker that comes back late is refused", refused("BF001", publish, ledger, late, "late"))
show("its folder is there, and nobody reads it", (ROOT / "2024-03-01" / str(late.token)).exists() and content(ledger) == "second")

lost = ledger.lease("2024-03-01")
folder = publish(ledger, lost, "third")
publish(ledger, lost, "another")
show("a COMMIT whose answer was lost is repeated, and changes nothing", content(ledger) == "third")

cancelled = ledger.lease("2024-03-01")


def cancel_meanwhile(folder):
    rows("cancelled")(folder)
    ledger.cancel()


show(
    "a plan that is cancelled while the files are written publishes none of them",
    refused("BF002", slices.publish, ledger.connection, ROOT, cancelled, cancel_meanwhile),
)
show("what counted before still counts", content(ledger) == "third")

half = ledger.lease("2024-03-01")
partial = ROOT / "2024-03-01" / f".{half.token}"
partial.mkdir()
(partial / "part-9.csv").write_text("of an attempt that was killed")
publish(ledger, half, "fourth")
names = [file.name for file in slices.read(ledger.connection, ROOT, ledger.pipeline, "2024-03-01").iterdir()]
show("what a killed attempt left half written is thrown away", names == ["part-0.csv"])

slices.sweep(ledger.connection, ROOT, ledger.pipeline, keep="0")
left = [folder.name for folder in (ROOT / "2024-03-01").iterdir()]
show("a sweep leaves the folder that counts", left == [str(half.token)])
