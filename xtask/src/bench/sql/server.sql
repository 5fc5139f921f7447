SELECT pg_catalog.format('PostgreSQL %s, pg_backfill %s; fsync %s, synchronous_commit %s, shared_buffers %s',
                         current_setting('server_version'),
                         (SELECT extversion FROM pg_extension WHERE extname = 'pg_backfill'),
                         current_setting('fsync'), current_setting('synchronous_commit'),
                         current_setting('shared_buffers'));
