SELECT count(*) FROM backfill_claim('poller', pipelines => :pipelines);
