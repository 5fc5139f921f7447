#!/usr/bin/env bash
# A worker for pg_backfill that needs only psql: claims windows of a pipeline, has the server rebuild each
# with the pipeline's query, says how it went.
#
#     worker.sh --worker NAME --pipeline NAME [--until-idle]
#
# Connects as libpq's environment says (PGHOST, PGDATABASE, ...).
set -euo pipefail

# How often to ask for work while there is none, in seconds. psql cannot wait for NOTIFY backfill.
POLL=${POLL:-1}
worker='' pipeline='' until_idle=''
while [ $# -gt 0 ]; do
    case $1 in
        --worker) worker=$2; shift 2 ;;
        --pipeline) pipeline=$2; shift 2 ;;
        --until-idle) until_idle=yes; shift ;;
        *) echo "unknown: $1" >&2; exit 2 ;;
    esac
done
: "${worker:?--worker is missing}" "${pipeline:?--pipeline is missing}"

# Runs SQL from standard input. Its exit code is 2 if there is no connection.
run() { psql -X -q -A -t -v VERBOSITY=terse "$@" -f -; }

claim() {
    run -v ON_ERROR_STOP=1 -v worker="$worker" -v pipeline="$pipeline" <<'SQL'
SELECT token, window_key, ceil(extract(epoch FROM lease_for) / 3)
FROM backfill_claim(:'worker', pipelines => ARRAY[:'pipeline']);
SQL
}

# One statement is one transaction: the fence, the new rows and the end of the lease are committed together.
# The server runs the lease's query. Rows from elsewhere would take three statements in one transaction:
#     SELECT backfill_stage(:token) AS stage \gset
#     COPY :stage FROM STDIN ...
#     SELECT * FROM replace_partition(:token)
produce() {
    run -v token="$token" -v window="$window" -v again="${1:-false}" <<'SQL'
SELECT format('done %s (token %s): %s rows', :'window', token, rows) FROM replace_partition(:token);
\if :ERROR
    SELECT :'LAST_ERROR_SQLSTATE' = 'BF001' AND :again AS ended,
           :'LAST_ERROR_SQLSTATE' IN ('BF001', 'BF002') AS lost \gset
    \if :ended
        -- Of a token that finished it answers the same again; of one that was taken over BF001 again.
        SELECT format('%s %s (token %s)', backfill_finish(:token), :'window', :token);
    \elif :lost
        -- Another worker has the window by now, or nobody should do it. There is nobody to report to.
        \echo refused :window (token :token): :LAST_ERROR_SQLSTATE :LAST_ERROR_MESSAGE
    \else
        SELECT format('failed %s (token %s), now %s', :'window', :token,
                      backfill_fail(:token, :'LAST_ERROR_MESSAGE', sqlstate => :'LAST_ERROR_SQLSTATE'));
    \endif
\endif
SQL
}

# Extends the lease every $1 seconds until its input ends, which it does with the window and with the worker.
heartbeat() {
    while read -r -t "$1" || [ $? -gt 128 ]; do
        psql -X -q -c "SELECT backfill_heartbeat($token)" >/dev/null 2>&1 || true
    done
}

# Stopped in between, the next worker gets the window now instead of when the lease expires.
token=''
trap '[ -z "$token" ] || psql -X -q -c "SELECT backfill_release($token)" >/dev/null 2>&1 || true' EXIT
trap 'exit 130' INT TERM

while true; do
    # Without a connection it asks again; what the server refuses it would refuse again.
    lease=$(claim) || { [ $? -eq 2 ] || exit 1; sleep "$POLL"; continue; }
    IFS='|' read -r token window beat <<<"$lease"
    if [ -n "$token" ]; then
        exec {alive}> >(heartbeat "$beat")
        # A connection that breaks takes the answer with it, perhaps that of COMMIT: doing the window again
        # finds out, because the token of a window that is done is stale.
        produce || { sleep "$POLL"; produce true; } || echo "left $window (token $token) to its lease"
        exec {alive}>&-
        token=''
    elif [ -n "$until_idle" ]; then
        exit 0
    else
        sleep "$POLL"
    fi
done
