SELECT count(*) AS got, max(token) AS token FROM backfill_claim('bench', pipelines => :pipelines)
\gset
\if :got
SELECT backfill_finish(:token);
\endif
