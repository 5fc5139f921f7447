"""Two ways to meet bad luck: examples/python/worker.py, held at one point for the demo to strike.

    clumsy.py POINT --worker NAME --pipeline NAME

POINT is `computed` (the rows are there, nothing is written yet) or `written` (written and not committed).
At its twelfth window the worker reaches it, says so, and goes on when it reads a line.
"""

import sys
from itertools import count
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "examples/python"))
import worker

POINT = sys.argv.pop(1)
WINDOW = 12


class Clumsy(worker.Worker):
    windows = count(1)

    def rows_of(self, lease):
        rows = super().rows_of(lease)
        self.window = next(self.windows)
        self.reach("computed", lease)
        return rows

    def publish(self, lease, rows):
        replacement = super().publish(lease, rows)
        self.reach("written", lease)
        return replacement

    def reach(self, point, lease):
        if (point, self.window) == (POINT, WINDOW):
            worker.say(f"{point} {lease.window_key} {lease.token}")
            sys.stdin.readline()


worker.main(Clumsy)
