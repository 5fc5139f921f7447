SELECT count(*) AS got, array_agg(token) AS tokens FROM backfill_claim('bench', 10, pipelines => :pipelines)
\gset
\if :got
SELECT count(backfill_finish(token)) FROM unnest(:tokens::bigint[]) token;
\endif
