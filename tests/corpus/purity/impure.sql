-- Queries that are not a function of their window, each with all that must be found in it.

--- clock: now()
-- expect clock | now() | query
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2 AND s.at < now()

--- clock: CURRENT_DATE
-- expect clock | CURRENT_DATE | query
SELECT $1, count(*), CURRENT_DATE FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: CURRENT_TIMESTAMP with a precision
-- expect clock | CURRENT_TIMESTAMP | query
SELECT $1, count(*), CURRENT_TIMESTAMP(3) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: CURRENT_TIME
-- expect clock | CURRENT_TIME | query
SELECT $1, count(*), CURRENT_TIME FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: LOCALTIME and LOCALTIMESTAMP
-- expect clock | LOCALTIME & LOCALTIMESTAMP | query
SELECT $1, count(*), LOCALTIME, LOCALTIMESTAMP FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: clock_timestamp()
-- expect clock | clock_timestamp() | query
SELECT $1, clock_timestamp() FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: statement_timestamp(), transaction_timestamp(), timeofday()
-- expect clock | statement_timestamp() & transaction_timestamp() & timeofday() | query
SELECT $1, statement_timestamp(), transaction_timestamp(), timeofday() FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: a literal that reads as today
-- expect clock | 'today' | query
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2 AND s.at < 'today'

--- clock: a literal with a type before it
-- expect clock | 'Tomorrow' | query
SELECT $1, count(*) FILTER (WHERE s.at < timestamptz 'Tomorrow') FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: a cast of a literal
-- expect clock | 'now' | query
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2 AND s.at::time < 'now'::time

--- clock: a cast of a text that is only text
-- expect clock | 'yesterday' | query
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2 AND s.at > CAST('yesterday'::text AS timestamptz)

--- clock: a literal on two lines
-- expect clock | 'today' | query
SELECT s.at, date 'to'
    'day' FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: literals with escapes
-- expect clock | 'today' & 'now' & 'tomorrow' | query
SELECT s.at, U&'\0074oday'::date, E'n\x6fw'::timestamptz, $$tomorrow$$::date FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: what reads a literal, by its name
-- expect clock | 'today' | query
SELECT s.at, date_in('today') FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: a range of literals
-- expect clock | '[yesterday,today)' | query
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2 AND s.at <@ '[yesterday,today)'::tstzrange

--- clock: age() of one argument
-- expect clock | age(timestamp with time zone) | query
SELECT $1, max(age(s.at)) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: in a GROUP BY
-- expect clock | now() | query
SELECT $1, now() - s.at, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2 GROUP BY now() - s.at

--- clock: in an ORDER BY and a LIMIT
-- expect clock | now() | query
SELECT $1, s.id FROM sales s WHERE s.at >= $1 AND s.at < $2 ORDER BY now() - s.at, s.id LIMIT 3

--- clock: in a join's condition
-- expect clock | now() | query
SELECT $1, s.id FROM sales s JOIN refunds r ON r.sale = s.id AND r.at >= $1 AND r.at < $2 AND r.at < now() WHERE s.at >= $1 AND s.at < $2

--- clock: in a subquery, a CTE, an EXISTS
-- expect clock | now() & CURRENT_DATE & clock_timestamp() | query
WITH w AS (SELECT s.id, s.at, now() AS read_at FROM sales s WHERE s.at >= $1 AND s.at < $2)
SELECT $1, w.id, w.read_at, (SELECT CURRENT_DATE) FROM w WHERE EXISTS (SELECT 1 WHERE w.at < clock_timestamp())

--- clock: in a window's definition
-- expect clock | now() | query
SELECT $1, s.id, count(*) OVER (PARTITION BY s.at > now()) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: behind two views
-- expect clock | now() | view public.recent_named > view public.recent
SELECT $1, sum(r.amount) FROM recent_named r WHERE r.at >= $1 AND r.at < $2

--- clock: in an SQL function
-- expect clock | now() | function public.age_of(timestamp with time zone)
SELECT $1, max(age_of(s.at)) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: in a function behind a function
-- expect clock | now() | function public.age_in_days(timestamp with time zone) > function public.age_of(timestamp with time zone)
SELECT $1, max(age_in_days(s.at)) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: a literal in a function's text
-- expect clock | 'today' | function public.since_today(timestamp with time zone)
SELECT $1, max(since_today(s.at)) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: in a function with a quoted name and a body of its own
-- expect clock | CURRENT_TIMESTAMP | function public."Quoted Now"()
SELECT $1, "Quoted Now"() FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: the default of an argument that the call leaves out
-- expect clock | now() | function public.stamped(numeric,timestamp with time zone) (default)
SELECT $1, stamped(s.amount) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: a function declared IMMUTABLE that lies
-- expect clock | age(timestamp with time zone) | function public.lying_age(timestamp with time zone)
SELECT $1, max(lying_age(s.at)) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: a literal in PL/pgSQL
-- expect clock | 'today' | function public.today_text()
SELECT $1, today_text() FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: in a schema that only the call names, in PL/pgSQL
-- setup
CREATE SCHEMA util;
CREATE FUNCTION util.stamp() RETURNS date LANGUAGE sql STABLE AS 'SELECT current_date';
CREATE FUNCTION stamp() RETURNS date LANGUAGE plpgsql STABLE AS 'BEGIN RETURN util.stamp(); END';
-- query
-- expect clock | CURRENT_DATE | function public.stamp() > function util.stamp()
SELECT s.at, stamp() FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: behind an operator
-- expect clock | now() | function public.near_now(timestamp with time zone,interval)
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2 AND s.at ~> '1 day'

--- clock: the default of a column of the target
-- setup
ALTER TABLE facts ALTER i SET DEFAULT now();
-- expect clock | now() | column i of public.facts (default)
-- query
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- clock: a trigger of the target
-- setup
CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.i := now()::text; RETURN NEW; END';
CREATE TRIGGER stamping BEFORE INSERT ON facts FOR EACH ROW EXECUTE FUNCTION stamp();
-- expect clock | now() | trigger stamping of public.facts
-- query
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- random: random()
-- expect random | random() | query
SELECT $1, s.id FROM sales s WHERE s.at >= $1 AND s.at < $2 AND random() < 0.1

--- random: gen_random_uuid()
-- expect random | gen_random_uuid() | query
SELECT $1, gen_random_uuid(), s.id FROM sales s WHERE s.at >= $1 AND s.at < $2

--- random: ORDER BY random()
-- expect random | random() | query
SELECT $1, s.id FROM sales s WHERE s.at >= $1 AND s.at < $2 ORDER BY random() LIMIT 10

--- random: in PL/pgSQL that is declared IMMUTABLE
-- expect random | random() | function public.lying_dice()
SELECT $1, s.id, lying_dice() FROM sales s WHERE s.at >= $1 AND s.at < $2

--- random: in PL/pgSQL that another function's text names
-- expect random | random() | function public.calls_dice(numeric) > function public.lying_dice()
SELECT $1, s.id, calls_dice(s.amount) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- random: the default of a key of the target
-- setup
ALTER TABLE facts ADD key uuid NOT NULL DEFAULT gen_random_uuid();
-- expect random | gen_random_uuid() | column key of public.facts (default)
-- query
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- sequence: nextval()
-- expect sequence | nextval(regclass) | query
SELECT $1, nextval('numbers'), s.id FROM sales s WHERE s.at >= $1 AND s.at < $2

--- sequence: read as a table
-- expect sequence | public.numbers | query
SELECT $1, s.id + n.last_value FROM sales s, numbers n WHERE s.at >= $1 AND s.at < $2

--- sequence: currval() and lastval()
-- expect sequence | currval(regclass) & lastval() | query
SELECT $1, currval('numbers'), lastval(), s.id FROM sales s WHERE s.at >= $1 AND s.at < $2

--- sequence: an identity column of the target
-- setup
ALTER TABLE facts ADD key bigint GENERATED ALWAYS AS IDENTITY;
-- expect sequence | identity | column key of public.facts (identity)
-- query
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- sequence: a serial column of the target
-- setup
ALTER TABLE facts ADD key serial;
-- expect sequence | nextval(regclass) | column key of public.facts (default)
-- query
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- volatile: PL/pgSQL that nobody declared otherwise
-- expect volatile-function | public.careless_double(numeric) | query
SELECT $1, sum(careless_double(s.amount)) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- volatile: an SQL function that reads what others commit meanwhile
-- expect volatile-function | public.count_of_sales() | query
-- expect mutable-dimension | public.sales | function public.count_of_sales()
SELECT $1, count_of_sales() FROM refunds r WHERE r.at >= $1 AND r.at < $2

--- volatile: pg_sleep()
-- expect volatile-function | pg_sleep(double precision) | query
SELECT $1, count(*), pg_sleep(0) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- volatile: a query in a text
-- expect volatile-function | query_to_xml(text,boolean,boolean,text) | query
SELECT $1, query_to_xml('SELECT 1', true, true, '') FROM sales s WHERE s.at >= $1 AND s.at < $2

--- writes: an SQL function that inserts
-- expect writes | INSERT | function public.note_it(text)
-- expect volatile-function | public.note_it(text) | query
SELECT $1, note_it(s.note)::text FROM sales s WHERE s.at >= $1 AND s.at < $2

--- session: current_user and session_user
-- expect session | CURRENT_USER & SESSION_USER | query
SELECT $1, count(*), current_user, session_user FROM sales s WHERE s.at >= $1 AND s.at < $2

--- session: in a view
-- expect session | CURRENT_USER | view public.mine
SELECT $1, sum(m.amount) FROM mine m WHERE m.at >= $1 AND m.at < $2

--- session: where and by whom it runs
-- expect session | pg_backend_pid() & inet_client_addr() & current_database() & version() | query
SELECT $1, pg_backend_pid(), inet_client_addr(), current_database(), version() FROM sales s WHERE s.at >= $1 AND s.at < $2

--- session: privileges
-- expect session | has_table_privilege(text,text) | query
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2 AND has_table_privilege('sales', 'SELECT')

--- transaction: its number
-- expect transaction | txid_current() & pg_current_xact_id() & pg_current_snapshot() | query
SELECT $1, txid_current(), pg_current_xact_id(), pg_current_snapshot() FROM sales s WHERE s.at >= $1 AND s.at < $2

--- transaction: rows that others hold
-- expect transaction | SKIP LOCKED | query
SELECT s.at, s.amount FROM sales s WHERE s.at >= $1 AND s.at < $2 FOR SHARE SKIP LOCKED

--- transaction: system columns
-- expect system-column | public.sales.ctid & public.sales.xmin & public.sales.tableoid | query
SELECT $1, s.ctid, s.xmin, s.tableoid FROM sales s WHERE s.at >= $1 AND s.at < $2

--- transaction: a system column behind a correlated subquery
-- expect system-column | public.sales.xmin | query
SELECT $1, s.id FROM sales s WHERE s.at >= $1 AND s.at < $2
    AND EXISTS (SELECT 1 FROM refunds r WHERE r.at >= $1 AND r.at < $2 AND r.sale::text = s.xmin::text)

--- settings: current_setting()
-- expect reads-setting | current_setting(text) | query
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2 AND s.note = current_setting('app.tenant')

--- settings: in a policy
-- expect reads-setting | current_setting(text) | policy own of public.tenants_sales
SELECT $1, sum(t.amount) FROM tenants_sales t WHERE t.at >= $1 AND t.at < $2

--- settings: the session's text search configuration
-- expect setting-not-pinned | to_tsvector(text) & to_tsquery(text) | query
SELECT $1, s.id FROM sales s WHERE s.at >= $1 AND s.at < $2 AND to_tsvector(s.note) @@ to_tsquery('good')

--- settings: names of months in the session's language
-- expect setting-not-pinned | to_char(timestamp with time zone,text) | query
SELECT $1, to_char(s.at, 'TMMonth') FROM sales s WHERE s.at >= $1 AND s.at < $2

--- settings: separators of the session's language
-- expect setting-not-pinned | to_char(numeric,text) | query
SELECT $1, to_char(sum(s.amount), '9G999D99') FROM sales s WHERE s.at >= $1 AND s.at < $2

--- settings: money
-- expect setting-not-pinned | cash_out(money) | query
SELECT $1, s.cost::text FROM sales s WHERE s.at >= $1 AND s.at < $2

--- server: pg_stat views
-- expect server-state | pg_catalog.pg_stat_activity | query
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2 AND (SELECT count(*) FROM pg_stat_activity) > 3

--- server: the catalog
-- expect server-state | pg_catalog.pg_class | query
SELECT $1, s.id, c.relname FROM sales s JOIN pg_class c ON c.oid = s.item::oid WHERE s.at >= $1 AND s.at < $2

--- server: information_schema
-- expect server-state | information_schema.tables | query
SELECT $1, s.id, (SELECT count(*) FROM information_schema.tables) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- server: sizes and statistics by functions
-- expect server-state | pg_relation_size(regclass) & pg_stat_get_live_tuples(oid) | query
SELECT $1, pg_relation_size('sales'), pg_stat_get_live_tuples('sales'::regclass) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- server: the extension's own views
-- expect server-state | backfill.slices | query
SELECT $1, s.id FROM sales s WHERE s.at >= $1 AND s.at < $2 AND EXISTS (SELECT FROM backfill.slices)

--- elsewhere: dblink
-- expect other-server | public.dblink(text,text) | query
SELECT $1, f.amount FROM dblink('afar', 'SELECT 1') AS f (amount numeric), sales s WHERE s.at >= $1 AND s.at < $2

--- elsewhere: a foreign table
-- expect foreign-table | public.far_sales | query
SELECT $1, sum(f.amount) FROM far_sales f WHERE f.at >= $1 AND f.at < $2

--- sample: TABLESAMPLE
-- expect sample | public.sales | query
SELECT $1, count(*) FROM sales s TABLESAMPLE BERNOULLI (10) WHERE s.at >= $1 AND s.at < $2

--- sample: TABLESAMPLE that is repeatable as long as no row moves
-- expect sample | public.sales | query
SELECT $1, count(*) FROM sales s TABLESAMPLE SYSTEM (10) REPEATABLE (1) WHERE s.at >= $1 AND s.at < $2

--- window: neither bound
-- expect window-unused | $1, $2 | query
-- expect not-windowed | public.sales | query
SELECT s.at, s.amount FROM sales s

--- window: the bounds are used and restrict nothing
-- expect not-windowed | public.sales | query
SELECT $1, count(*), $2 FROM sales s

--- window: only from below
-- expect open-ended | public.sales | query
-- expect bound-unused | $2 | query
SELECT s.at, s.amount FROM sales s WHERE s.at >= $1

--- window: only from above
-- expect open-start | public.sales | query
-- expect bound-unused | $1 | query
SELECT $2 - interval '1 day', sum(s.amount) FROM sales s WHERE s.at < $2

--- window: one bound, the other only shown
-- expect open-start | public.sales | query
SELECT $1, sum(s.amount) FROM sales s WHERE s.at < $2

--- window: on another column than that of the slice
-- expect wrong-column | public.sales.at | query
SELECT s.at, s.amount FROM sales s WHERE s.loaded_at >= $1 AND s.loaded_at < $2

--- window: on another column, inside a subquery
-- expect wrong-column | public.sales.at | query
SELECT t.day, count(*) FROM (SELECT date_trunc('day', s.at) AS day FROM sales s WHERE s.loaded_at >= $1 AND s.loaded_at < $2) t GROUP BY 1

--- window: what overlaps the window, from before its start
-- expect wrong-column | public.prices.valid_from | query
SELECT least(p.valid_from, $1), p.item FROM prices p WHERE p.valid_from < $2 AND p.valid_to > $1

--- window: how far from the end
-- expect open-start | public.sales | query
SELECT s.at, s.amount FROM sales s WHERE s.at - $1 < interval '1 day' AND $2 - s.at > interval '0'

--- window: the later one of two moments
-- expect open-start | public.refunds & public.sales | query
SELECT greatest(s.at, r.at), s.amount FROM sales s JOIN refunds r ON r.sale = s.id
WHERE greatest(s.at, r.at) >= $1 AND greatest(s.at, r.at) < $2

--- window: the later one of two moments, only from below
-- expect not-windowed | public.refunds & public.sales | query
SELECT $1, count(*) FROM sales s JOIN refunds r ON r.sale = s.id WHERE greatest(s.at, r.at) >= $1 AND least(s.at, r.at) < $2

--- window: the second choice only from above
-- expect open-ended | public.sales | query
-- expect open-start | public.refunds | query
SELECT $1, count(*) FROM sales s FULL JOIN refunds r ON r.sale = s.id WHERE coalesce(s.at, r.at) >= $1 AND r.at < $2

--- window: only one side of a join
-- expect mutable-dimension | public.refunds | query
SELECT $1, sum(s.amount - r.amount) FROM sales s JOIN refunds r ON r.sale = s.id WHERE s.at >= $1 AND s.at < $2

--- window: the wrong side of an outer join
-- expect not-windowed | public.sales & public.refunds | query
SELECT s.at, r.amount FROM sales s LEFT JOIN refunds r ON r.sale = s.id AND s.at >= $1 AND s.at < $2

--- window: one part of a UNION
-- expect mutable-dimension | public.refunds | query
SELECT $1, sum(m.amount) FROM (SELECT s.amount FROM sales s WHERE s.at >= $1 AND s.at < $2 UNION ALL SELECT -r.amount FROM refunds r) m

--- window: one arm of an OR
-- expect not-windowed | public.sales | query
SELECT $1, count(*) FROM sales s WHERE (s.at >= $1 AND s.at < $2) OR s.note = 'late'

--- window: groups by their newest row
-- expect not-windowed | public.sales | query
SELECT max(s.at), s.item, sum(s.amount) FROM sales s GROUP BY s.item HAVING max(s.at) >= $1 AND max(s.at) < $2

--- window: groups of the window, and others
-- expect not-windowed | public.sales | query
SELECT s.at, sum(s.amount) FROM sales s GROUP BY s.at HAVING (s.at >= $1 AND s.at < $2) OR count(*) > 10

--- window: days that are listed from the first on
-- expect open-ended | public.sales | query
SELECT s.at, $2 FROM sales s WHERE s.at >= ANY (ARRAY(SELECT $1))

--- window: an hour that comes again each day
-- expect not-windowed | public.sales | query
SELECT $1, count(*), $2 FROM sales s WHERE extract(hour FROM s.at) = extract(hour FROM $1)

--- window: after a LIMIT
-- expect not-windowed | public.sales | query
SELECT t.at, t.amount FROM (SELECT s.at, s.amount FROM sales s ORDER BY s.at, s.id LIMIT 1000) t WHERE t.at >= $1 AND t.at < $2

--- window: after a window function, which saw the rows before it
-- expect not-windowed | public.sales | view public.lagged
SELECT l.at, l.before FROM lagged l WHERE l.at >= $1 AND l.at < $2

--- window: a scalar subquery over all time
-- expect mutable-dimension | public.sales | query
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2 AND s.amount > (SELECT avg(o.amount) FROM sales o)

--- window: a function beside another one that the window restricts
-- setup
CREATE FUNCTION moments() RETURNS SETOF timestamptz LANGUAGE sql STABLE AS 'SELECT r.at FROM refunds r ORDER BY r.at';
-- query
-- expect mutable-dimension | public.refunds | function public.moments()
SELECT m.a, 1 FROM ROWS FROM (generate_series($1, $2, '1 hour'), moments()) m (a, b) WHERE m.a >= $1 AND m.a < $2

--- window: a function that is given only one bound
-- expect open-ended | public.sales | function public.sold_since(timestamp with time zone)
-- expect bound-unused | $2 | query
SELECT f.at, f.amount FROM sold_since($1) f

--- dimension: a join
-- expect mutable-dimension | public.items | query
SELECT $1, i.name, sum(s.amount) FROM sales s JOIN items i ON i.id = s.item WHERE s.at >= $1 AND s.at < $2 GROUP BY i.name

--- dimension: behind a view
-- expect mutable-dimension | public.items | view public.paid_named
SELECT $1, p.name, sum(p.amount) FROM paid_named p WHERE p.at >= $1 AND p.at < $2 GROUP BY p.name

--- dimension: an anti-join
-- expect mutable-dimension | public.items | query
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2 AND NOT EXISTS (SELECT FROM items i WHERE i.id = s.item)

--- dimension: read by PL/pgSQL
-- expect mutable-dimension | public.items | function public.price_of(integer)
SELECT $1, sum(price_of(s.item)) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- dimension: the newest row of a history
-- expect open-start | public.prices | query
SELECT $1, (SELECT p.price FROM prices p WHERE p.item = s.item AND p.valid_from <= s.at ORDER BY p.valid_from DESC LIMIT 1)
FROM sales s WHERE s.at >= $1 AND s.at < $2

--- dimension: a materialized view
-- expect materialized-view | public.cached | query
SELECT $1, sum(c.amount) FROM cached c WHERE c.at >= $1 AND c.at < $2

--- dimension: a text that is made when it runs
-- expect dynamic-sql | EXECUTE | function public.any_count(text)
SELECT $1, any_count('items') FROM sales s WHERE s.at >= $1 AND s.at < $2

--- self: the target
-- expect self-read | public.facts | query
SELECT $1, count(*) FROM facts f WHERE f.day >= $1 - interval '1 day' AND f.day < $2

--- self: the target, all of it
-- expect self-read | public.facts | query
-- expect mutable-dimension | public.facts | query
SELECT $1, s.id FROM sales s WHERE s.at >= $1 AND s.at < $2 AND NOT EXISTS (SELECT FROM facts f WHERE f.a = s.id::text)

--- order: LIMIT
-- expect limit-without-order | LIMIT | query
SELECT s.at, s.id FROM sales s WHERE s.at >= $1 AND s.at < $2 LIMIT 10

--- order: OFFSET
-- expect limit-without-order | OFFSET | query
SELECT s.at, s.id FROM sales s WHERE s.at >= $1 AND s.at < $2 OFFSET 10

--- order: LIMIT in a view, which cuts before the window does
-- expect limit-without-order | LIMIT | view public.top_ten
-- expect not-windowed | public.sales | view public.top_ten
SELECT t.at, t.amount FROM top_ten t WHERE t.at >= $1 AND t.at < $2

--- order: LIMIT in a scalar subquery
-- expect limit-without-order | LIMIT | query
SELECT $1, (SELECT r.amount FROM refunds r WHERE r.at >= $1 AND r.at < $2 AND r.sale = s.id LIMIT 1) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- order: DISTINCT ON
-- expect distinct-on-without-order | DISTINCT ON | query
SELECT DISTINCT ON (s.item) s.at, s.item, s.amount FROM sales s WHERE s.at >= $1 AND s.at < $2 ORDER BY s.item

--- order: array_agg
-- expect aggregate-without-order | array_agg(anynonarray) | query
SELECT $1, array_agg(s.id) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- order: string_agg
-- expect aggregate-without-order | string_agg(text,text) | query
SELECT $1, string_agg(s.note, ',') FROM sales s WHERE s.at >= $1 AND s.at < $2 GROUP BY s.item

--- order: JSON
-- expect aggregate-without-order | json_agg(anyelement) & jsonb_agg(anyelement) & json_object_agg("any","any") | query
SELECT $1, json_agg(s.id), jsonb_agg(s.id), json_object_agg(s.id, s.amount) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- order: XML
-- expect aggregate-without-order | xmlagg(xml) | query
SELECT $1, xmlagg(s.page)::text FROM sales s WHERE s.at >= $1 AND s.at < $2

--- order: ARRAY of a subquery
-- expect aggregate-without-order | ARRAY(SELECT ...) | query
SELECT $1, ARRAY(SELECT r.amount FROM refunds r WHERE r.at >= $1 AND r.at < $2 AND r.sale = s.id) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- order: an aggregate of somebody's own
-- expect aggregate-without-order | public.first(text) | query
SELECT $1, first(s.note) FROM sales s WHERE s.at >= $1 AND s.at < $2 GROUP BY s.item

--- order: row_number() over nothing
-- expect window-without-order | row_number() | query
SELECT $1, s.id, row_number() OVER (PARTITION BY s.item) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- order: lag() and first_value()
-- expect window-without-order | lag(anyelement) & first_value(anyelement) | query
SELECT $1, lag(s.amount) OVER w, first_value(s.id) OVER w FROM sales s WHERE s.at >= $1 AND s.at < $2 WINDOW w AS (PARTITION BY s.store)

--- order: a frame of rows
-- expect window-without-order | sum(numeric) | query
SELECT $1, sum(s.amount) OVER (ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- floats: sum, avg, stddev
-- expect float-sum | sum(double precision) & avg(real) & stddev(double precision) | query
SELECT $1, sum(s.price), avg(s.ratio), stddev(s.price) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- floats: over a window
-- expect float-sum | sum(double precision) | query
SELECT $1, s.price / sum(s.price) OVER (PARTITION BY s.item) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- all at once: each thing is said where it stands, once
-- expect clock | now() | view public.recent
-- expect random | random() | query
-- expect mutable-dimension | public.items | query
-- expect limit-without-order | LIMIT | query
SELECT $1, r.amount, i.name FROM recent r JOIN recent o ON o.at = r.at JOIN items i ON i.price = r.amount
WHERE r.at >= $1 AND r.at < $2 AND random() < random() LIMIT 5
