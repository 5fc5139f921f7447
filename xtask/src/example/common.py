"""What the trials of the examples have in common: a pipeline without a target, and accidents."""

import os
import sys

import psycopg
from psycopg.rows import namedtuple_row


class Ledger:
    def __init__(self, pipeline):
        self.pipeline = pipeline
        self.connection = psycopg.connect("", autocommit=True, row_factory=namedtuple_row)
        self.plan = None
        self.execute("SELECT pool_define('backfill', 32)")
        self.execute("SELECT pipeline_define(%s, '1 day', '2024-03-01', lease_for => '1 hour')", pipeline)

    def execute(self, sql, *arguments):
        return self.connection.execute(sql, arguments).fetchone()

    def url(self):
        """For SQLAlchemy, which reads the rest from libpq's environment."""
        return f"postgresql+psycopg:///{os.environ.get('PGDATABASE', 'postgres')}"

    def lease(self, window_key, lease_for="1 hour"):
        """A lease of a window, under a plan of its own."""
        settings = f'{{"lease_for": "{lease_for}"}}'
        self.execute("SELECT pipeline_alter(%s, %s::jsonb)", self.pipeline, settings)
        sql = "SELECT plan_id FROM backfill_plan(%s, NULL, NULL, 'a trial', keys => ARRAY[%s], expect => 1)"
        self.plan = self.execute(sql, self.pipeline, window_key).plan_id
        return self.claim(window_key)

    def claim(self, window_key):
        sql = "SELECT * FROM backfill_claim('trial', pipelines => ARRAY[%s], window_key => %s)"
        return self.execute(sql, self.pipeline, window_key)

    def take_over(self, late):
        """The lease that another worker gets once the first one has expired."""
        while True:
            lease = self.claim(late.window_key)
            if lease:
                return lease
            # The server's clock decides; this one only asks.
            self.execute("SELECT pg_sleep(greatest(0, extract(epoch FROM %s - clock_timestamp())))", late.expires_at)

    def cancel(self):
        with psycopg.connect("", autocommit=True) as person:
            person.execute("SELECT backfill_cancel(%s, 'it is wrong')", [self.plan])

    def slice(self, window_key):
        sql = "SELECT token FROM backfill.slices WHERE pipeline = %s AND window_key = %s"
        return self.execute(sql, self.pipeline, window_key).token


def refused(sqlstate, call, *arguments):
    """Whether a call fails with that SQLSTATE, however the error is wrapped."""
    try:
        call(*arguments)
    except Exception as error:
        found = getattr(error, "sqlstate", None) or getattr(getattr(error, "orig", None), "sqlstate", None)
        if found != sqlstate:
            raise
        return True
    return False


def show(claim, holds):
    print(f"  {'ok    ' if holds else 'FAILED'} {claim}", flush=True)
    if not holds:
        sys.exit(1)
