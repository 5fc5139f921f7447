#!/usr/bin/env python3
"""A worker for pg_backfill: claims windows of a pipeline, rebuilds each in one transaction, says how it went.

    python worker.py --worker NAME --pipeline NAME [--until-idle]

Connects as libpq's environment says (PGHOST, PGDATABASE, …). Needs psycopg 3.
Copy it and put your work into rows_of(); the rest is what every worker has to do.
"""

import argparse
import signal
import threading
import time
from contextlib import contextmanager, suppress

import psycopg
from psycopg.rows import namedtuple_row, tuple_row

# The fence's two answers: another worker has the window by now, or nobody should do it any more.
LOST = ("BF001", "BF002")
# How often to ask for work while there is none, in seconds. A notification makes it sooner.
POLL = 1


class Worker:
    def __init__(self, name, pipeline):
        self.name = name
        self.pipeline = pipeline
        self.connection = None

    def rows_of(self, lease):
        """The work: the rows of one window, in the order of the target's columns.

        It depends on nothing but the window, so that whoever repeats it gets the same rows. This one runs the
        pipeline's query; yours may as well read files or call a service.
        """
        with self.connection.transaction():
            # As the server does when it runs the query itself.
            self.execute("SELECT set_config('TimeZone', %s, true)", lease.time_zone)
            # The query has $1 and $2, which only a raw cursor leaves alone.
            with psycopg.RawCursor(self.connection, row_factory=tuple_row) as cursor:
                return cursor.execute(lease.query, [lease.window_start, lease.window_end]).fetchall()

    def produce(self, lease):
        """Exchanges the rows of the window: all of it becomes visible at COMMIT, or nothing."""
        # Before the transaction that passes the fence: slow work keeps no lock.
        rows = self.rows_of(lease)
        with self.connection.transaction():
            return self.publish(lease, rows)

    def publish(self, lease, rows):
        # A table like the target that belongs to this token; its rows go into the target.
        stage = self.execute("SELECT backfill_stage(%s) AS name", lease.token).name
        with self.connection.cursor().copy(f"COPY {stage} FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        return self.execute("SELECT * FROM replace_partition(%s)", lease.token)

    def attempt(self, lease):
        """Does the window, whether or not the connection holds; answers what there is to say about it."""
        try:
            return f"{self.produce(lease).rows} rows"
        except psycopg.OperationalError:
            if not self.connection.broken:
                raise
        # The answer is lost, and if it was that of COMMIT, the slice is there. Doing the window again finds
        # out: the token of a window that is done, or was taken over meanwhile, is stale.
        self.reconnect()
        try:
            return f"{self.produce(lease).rows} rows"
        except psycopg.DatabaseError as error:
            if error.sqlstate != "BF001":
                raise
        # Of a token that finished it answers the same again, of others it does not.
        return self.execute("SELECT backfill_finish(%s) AS answer", lease.token).answer

    def work(self, lease):
        """Does the window and tells the ledger if that failed."""
        window = f"{lease.window_key} (token {lease.token})"
        try:
            with heartbeat(lease):
                say(f"done {window}: {self.attempt(lease)}")
        except KeyboardInterrupt:
            # The next worker gets the window now instead of when the lease expires, and it costs no attempt.
            with suppress(psycopg.DatabaseError):
                self.execute("SELECT backfill_release(%s)", lease.token)
            raise
        except Exception as error:
            sqlstate = getattr(error, "sqlstate", None)
            if sqlstate not in LOST:
                answer = self.fail(lease, error, sqlstate)
                say(f"failed {window}, now {answer}: {error}")
            else:
                # Nothing of this attempt is in the target. There is nobody to report to.
                say(f"refused {window}: {sqlstate} {error}")

    def fail(self, lease, error, sqlstate):
        sql = "SELECT backfill_fail(%s, %s, sqlstate => %s) AS answer"
        try:
            return self.execute(sql, lease.token, str(error), sqlstate).answer
        except psycopg.DatabaseError as refused:
            if refused.sqlstate in LOST:
                return "somebody else's"
            raise

    def run(self, until_idle):
        self.connect()
        while True:
            try:
                if not self.step(until_idle):
                    return
            except psycopg.OperationalError as error:
                if not self.connection.broken:
                    raise
                # Whatever was being done is in the ledger: done, or claimable when its lease has expired.
                say(f"connection lost: {error}")
                self.reconnect()

    def step(self, until_idle):
        """Claims and does a window, or waits for one; answers whether to go on."""
        lease = self.execute(
            "SELECT * FROM backfill_claim(%s, pipelines => %s)", self.name, [self.pipeline]
        )
        if lease:
            self.work(lease)
        elif until_idle:
            return False
        else:
            # Only a hint that asking may be worth it. Expired leases and retries come without one.
            for _ in self.connection.notifies(timeout=POLL, stop_after=1):
                pass
        return True

    def connect(self):
        self.connection = psycopg.connect(autocommit=True, row_factory=namedtuple_row)
        self.execute("LISTEN backfill")

    def reconnect(self):
        while True:
            try:
                return self.connect()
            except psycopg.OperationalError as error:
                say(f"no connection: {error}")
                time.sleep(POLL)

    def execute(self, sql, *parameters):
        cursor = self.connection.execute(sql, parameters)
        return cursor.fetchone() if cursor.description else None


@contextmanager
def heartbeat(lease):
    """Extends the lease while the block runs, from a thread and connections of its own.

    Its connections are opened when they are needed: most windows are done before the first beat is due.
    """
    over = threading.Event()

    def beat():
        while not over.wait(lease.lease_for.total_seconds() / 3):
            try:
                with psycopg.connect(autocommit=True) as connection:
                    connection.execute("SELECT backfill_heartbeat(%s)", [lease.token])
            except psycopg.Error as error:
                # One missed beat is no harm; if the lease is lost, the fence tells the worker.
                if error.sqlstate in LOST:
                    return

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def say(line):
    print(line, flush=True)


def main(kind=Worker):
    arguments = argparse.ArgumentParser(description="Does windows of a pg_backfill pipeline.")
    arguments.add_argument("--worker", required=True, help="a name that tells people where this runs")
    arguments.add_argument("--pipeline", required=True)
    arguments.add_argument("--until-idle", action="store_true", help="end when nothing can be claimed")
    options = arguments.parse_args()
    # A polite kill is like Ctrl-C: it gives the window back.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        kind(options.worker, options.pipeline).run(options.until_idle)
    except KeyboardInterrupt:
        say("stopped")


if __name__ == "__main__":
    main()
