-- Queries that are a function of their window, or would be but for the tables that they name: those are listed, because
-- editing such a table does change what a window gives when it is run again. Nothing else may be found in them.

--- plain: a day of a table
SELECT s.at, s.amount FROM sales s WHERE s.at >= $1 AND s.at < $2

--- plain: sums by day
SELECT date_trunc('day', s.at), sum(s.amount), count(*), min(s.note), bool_or(s.amount > 3) FROM sales s
WHERE s.at >= $1 AND s.at < $2 GROUP BY 1

--- plain: BETWEEN
SELECT $1, sum(s.amount) FROM sales s WHERE s.at BETWEEN $1 AND $2 - interval '1 microsecond'

--- plain: in a range
SELECT $1, sum(s.amount) FROM sales s WHERE s.at <@ tstzrange($1, $2)

--- plain: ranges that overlap
SELECT $1, count(*) FROM sales s WHERE s.period && tstzrange($1, $2)

--- plain: OVERLAPS
SELECT $1, count(*) FROM prices p WHERE (p.valid_from, p.valid_to) OVERLAPS ($1, $2)

--- plain: dates of a partitioned table
SELECT m.day, m.sensor, avg(m.value) FROM measures m WHERE m.day >= $1::date AND m.day < $2::date GROUP BY m.day, m.sensor

--- plain: a week that looks back
SELECT $1, avg(s.amount) FROM sales s WHERE s.at >= $1 - interval '7 days' AND s.at < $2

--- plain: the bounds on the other side
SELECT s.at, s.amount FROM sales s WHERE $1 <= s.at AND $2 > s.at

--- plain: an expression of the column
SELECT s.at, s.amount FROM sales s WHERE s.at + interval '1 hour' >= $1 AND s.at + interval '1 hour' < $2

--- plain: either column
SELECT $1, count(*) FROM sales s WHERE coalesce(s.loaded_at, s.at) >= $1 AND coalesce(s.loaded_at, s.at) < $2

--- plain: how far from the bounds
SELECT s.at, s.amount FROM sales s WHERE s.at - $1 >= interval '0' AND interval '0' < $2 - s.at

--- plain: what overlaps the window, cut to it
SELECT greatest(p.valid_from, $1), p.item FROM prices p WHERE p.valid_from < $2 AND coalesce(p.valid_to, 'infinity') > $1

--- plain: each arm of an OR
SELECT $1, count(*) FROM sales s WHERE (s.at >= $1 AND s.at < $2 AND s.item = 1) OR (s.at >= $1 AND s.at < $2 AND s.item = 2)

--- plain: casts and formats that are pinned
SELECT $1, s.at::date::text, to_char(s.at, 'YYYY-MM-DD HH24:MI'), s.at::text, to_char(s.amount, 'FM999.00'), s.period::text, s.doc::text
FROM sales s WHERE s.at >= $1 AND s.at < $2

--- plain: text search with its configuration
SELECT $1, s.id FROM sales s WHERE s.at >= $1 AND s.at < $2 AND to_tsvector('simple', s.note) @@ to_tsquery('simple', 'good')

--- plain: words that only look like the clock
SELECT $1, s.note = 'now', s.note LIKE 'today%', 'now'::mood, '{now}'::text[] FROM sales s WHERE s.at >= $1 AND s.at < $2

--- plain: age() between two times
SELECT $1, max(age($2, s.at)) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- plain: a setting that is pinned
SELECT $1, count(*), current_setting('TimeZone') FROM sales s WHERE s.at >= $1 AND s.at < $2

--- plain: the schema that names are found in
SELECT $1, count(*), current_schema FROM sales s WHERE s.at >= $1 AND s.at < $2

--- plain: days that are listed
SELECT m.day, m.value FROM measures m
WHERE m.day = ANY (ARRAY(SELECT generate_series($1, $2 - interval '1 day', interval '1 day')::date))

--- plain: groups of the window
SELECT date_trunc('day', s.at), sum(s.amount) FROM sales s
GROUP BY 1 HAVING date_trunc('day', s.at) >= $1 AND date_trunc('day', s.at) < $2 AND count(*) > 1

--- plain: groups of the window, of an outer join
SELECT r.at, count(s.id) FROM sales s LEFT JOIN refunds r ON r.at = s.at GROUP BY r.at HAVING r.at >= $1 AND r.at < $2

--- plain: groups of the days that are listed
SELECT m.day, sum(m.value) FROM measures m GROUP BY m.day
HAVING m.day IN (SELECT d::date FROM generate_series($1, $2 - interval '1 day', interval '1 day') d)

--- plain: rows that are compared
SELECT s.at, s.id FROM sales s WHERE (s.at, s.id) >= ($1, 0) AND (s.at, s.id) < ($2, 0)

--- plain: what is outside, negated
SELECT s.at, s.id FROM sales s WHERE NOT (s.at < $1 OR NOT s.at < $2)

--- plpgsql: a message with a word of the clock
-- setup
CREATE FUNCTION noted(numeric) RETURNS numeric LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN RAISE DEBUG 'now processing %', $1; RETURN $1; END $$;
-- query
SELECT s.at, noted(s.amount) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- plain: a series from the bounds
SELECT d, 1 FROM generate_series($1, $2 - interval '1 hour', '1 hour') d

--- plain: no table at all
SELECT $1, extract(epoch FROM $2 - $1)

--- joins: two facts of one window
SELECT $1, sum(s.amount - r.amount) FROM sales s JOIN refunds r ON r.sale = s.id AND r.at >= $1 AND r.at < $2
WHERE s.at >= $1 AND s.at < $2

--- joins: through an equality of the window's column
SELECT s.at, sum(r.amount) FROM sales s JOIN refunds r ON r.at = s.at WHERE s.at >= $1 AND s.at < $2 GROUP BY s.at

--- joins: through a chain of equalities
SELECT d.day, count(*) FROM days d JOIN sales s ON date_trunc('day', s.at) = d.day JOIN refunds r ON date_trunc('day', r.at) = d.day
WHERE d.day >= $1 AND d.day < $2 GROUP BY 1

--- joins: through an interval between columns
SELECT $1, count(*) FROM sales s JOIN refunds r ON r.at >= s.at AND r.at < s.at + interval '1 hour' WHERE s.at >= $1 AND s.at < $2

--- joins: what was valid then
SELECT s.at, s.amount * p.price FROM sales s JOIN prices p ON p.item = s.item AND p.valid_from <= s.at AND p.valid_to > s.at
WHERE s.at >= $1 AND s.at < $2

--- joins: LEFT JOIN with the window on both sides
SELECT s.at, r.amount FROM sales s LEFT JOIN refunds r ON r.sale = s.id AND r.at >= $1 AND r.at < $2 WHERE s.at >= $1 AND s.at < $2

--- joins: LEFT JOIN through the column
SELECT s.at, r.amount FROM sales s LEFT JOIN refunds r ON r.at = s.at WHERE s.at >= $1 AND s.at < $2

--- joins: LEFT JOIN that its condition makes an inner one
SELECT r.at, s.amount FROM sales s LEFT JOIN refunds r ON r.at = s.at WHERE r.at >= $1 AND r.at < $2

--- joins: USING and FULL JOIN
SELECT at, sum(s.amount), sum(r.amount) FROM sales s FULL JOIN refunds r USING (at) WHERE at >= $1 AND at < $2 GROUP BY at

--- joins: either side of a full join
-- dims refunds
SELECT coalesce(s.at, r.at), s.amount, r.amount FROM sales s FULL JOIN refunds r ON r.sale = s.id
WHERE coalesce(s.at, r.at) >= $1 AND coalesce(s.at, r.at) < $2

--- joins: either side of a full join on the moment
SELECT date_trunc('day', coalesce(s.at, r.at)), count(*) FROM sales s FULL JOIN refunds r ON r.at = s.at AND r.sale = s.id
WHERE coalesce(s.at, r.at) >= $1 AND coalesce(s.at, r.at) < $2 GROUP BY 1

--- joins: either side of a full join, in a CTE
-- dims refunds
WITH both_sides AS (SELECT coalesce(s.at, r.at) AS at, s.amount FROM sales s FULL JOIN refunds r ON r.sale = s.id)
SELECT b.at, b.amount FROM both_sides b WHERE b.at >= $1 AND b.at < $2

--- joins: the local day of each store
-- dims stores
SELECT $1, st.name, sum(s.amount) FROM sales s JOIN stores st ON st.id = s.store
WHERE (s.at AT TIME ZONE st.zone)::date >= $1::date AND date_trunc('day', s.at, st.zone) < $2 GROUP BY st.name

--- joins: a series of hours with what there is in each
SELECT h, count(s.id) FROM generate_series($1, $2 - interval '1 hour', '1 hour') h LEFT JOIN sales s ON date_trunc('hour', s.at) = h GROUP BY h

--- joins: LATERAL
SELECT s.at, l.total FROM sales s, LATERAL (SELECT sum(r.amount) AS total FROM refunds r WHERE r.at = s.at) l WHERE s.at >= $1 AND s.at < $2

--- joins: IN and EXISTS
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2
    AND s.at IN (SELECT r.at FROM refunds r) AND EXISTS (SELECT FROM prices p WHERE p.valid_from <= s.at AND p.valid_to > s.at)

--- joins: the window by way of IN
SELECT $1, count(*) FROM sales s WHERE date_trunc('day', s.at) IN (SELECT d.day FROM days d WHERE d.day >= $1 AND d.day < $2)

--- subqueries: the condition outside of a subquery that groups
SELECT t.day, t.total FROM (SELECT date_trunc('day', s.at) AS day, sum(s.amount) AS total FROM sales s GROUP BY 1) t WHERE t.day >= $1 AND t.day < $2

--- subqueries: the condition outside of DISTINCT
SELECT t.at, t.item FROM (SELECT DISTINCT s.at, s.item FROM sales s) t WHERE t.at >= $1 AND t.at < $2

--- subqueries: CTEs, one behind the other
WITH sold AS (SELECT s.at, s.item, s.amount FROM sales s), dear AS (SELECT sold.at, sold.amount FROM sold WHERE sold.amount > 100)
SELECT dear.at, sum(dear.amount) FROM dear WHERE dear.at >= $1 AND dear.at < $2 GROUP BY dear.at

--- subqueries: a CTE that is read twice
WITH sold AS (SELECT s.at, s.item, s.amount FROM sales s WHERE s.at >= $1 AND s.at < $2)
SELECT a.at, a.amount / b.total FROM sold a JOIN (SELECT item, sum(amount) AS total FROM sold GROUP BY item) b ON b.item = a.item

--- subqueries: the bounds as a CTE
WITH bounds AS (SELECT $1 AS since, $2 AS until)
SELECT s.at, s.amount FROM sales s, bounds b WHERE s.at >= b.since AND s.at < b.until

--- subqueries: the bounds as scalars
WITH bounds AS (SELECT $1 AS since, $2 AS until)
SELECT s.at, s.amount FROM sales s WHERE s.at >= (SELECT since FROM bounds) AND s.at < (SELECT until FROM bounds)

--- subqueries: the bounds as VALUES
SELECT s.at, s.amount FROM sales s JOIN (VALUES ($1, $2)) AS b (since, until) ON s.at >= b.since AND s.at < b.until

--- subqueries: UNION ALL with the condition outside
SELECT m.at, sum(m.amount) FROM (SELECT s.at, s.amount FROM sales s UNION ALL SELECT r.at, -r.amount FROM refunds r) m
WHERE m.at >= $1 AND m.at < $2 GROUP BY m.at

--- subqueries: EXCEPT
SELECT s.at, s.id FROM sales s WHERE s.at >= $1 AND s.at < $2 EXCEPT SELECT r.at, r.sale FROM refunds r WHERE r.at >= $1 AND r.at < $2

--- subqueries: recursion over days
WITH RECURSIVE hours AS (
    SELECT $1 AS h UNION ALL SELECT hours.h + interval '1 hour' FROM hours WHERE hours.h + interval '1 hour' < $2
)
SELECT hours.h, count(s.id) FROM hours LEFT JOIN sales s ON s.at >= hours.h AND s.at < hours.h + interval '1 hour' GROUP BY hours.h

--- views: one
SELECT p.at, sum(p.amount) FROM paid p WHERE p.at >= $1 AND p.at < $2 GROUP BY p.at

--- views: one that groups
SELECT d.day, d.total FROM daily d WHERE d.day >= $1 AND d.day < $2

--- views: one that unites
SELECT a.at, a.amount FROM all_moves a WHERE a.at >= $1 AND a.at < $2

--- views: window functions within the window's own rows
SELECT l.at, l.before FROM lagged_in_store l WHERE l.at >= $1 AND l.at < $2

--- functions: SQL that nobody declared, inside and out
SELECT $1, sum(net(s.amount)), sum(net_of_net(s.amount)), sum(gross(s.amount)), total(s.amount) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- functions: PL/pgSQL that is declared
SELECT $1, sum(plain_double(s.amount)) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- functions: the window goes in by its arguments
SELECT b.at, b.amount FROM sold_between($1, $2) b

--- functions: the window goes in by named arguments, and the rest outside
SELECT f.at, f.amount FROM sold_since(since => $1) f WHERE f.at < $2

--- functions: what was valid at a moment of the window
SELECT s.at, price_at(s.item, s.at) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- functions: a default that the call does not need
SELECT $1, stamped(s.amount, s.at) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- order: LIMIT with ORDER BY
SELECT s.at, s.id FROM sales s WHERE s.at >= $1 AND s.at < $2 ORDER BY s.amount DESC, s.id LIMIT 10

--- order: LIMIT where it does not matter
SELECT s.at, s.id FROM sales s WHERE s.at >= $1 AND s.at < $2
    AND EXISTS (SELECT 1 FROM refunds r WHERE r.at >= $1 AND r.at < $2 AND r.sale = s.id LIMIT 1)
    AND s.amount > (SELECT avg(r.amount) FROM refunds r WHERE r.at >= $1 AND r.at < $2 LIMIT 1)

--- order: DISTINCT ON with more
SELECT DISTINCT ON (s.item) s.at, s.item, s.amount FROM sales s WHERE s.at >= $1 AND s.at < $2 ORDER BY s.item, s.at DESC, s.id

--- order: DISTINCT ON all that there is
SELECT DISTINCT ON (s.at, s.item) s.at, s.item FROM sales s WHERE s.at >= $1 AND s.at < $2

--- order: aggregates with their order
SELECT $1, array_agg(s.id ORDER BY s.id), string_agg(s.note, ',' ORDER BY s.id), jsonb_agg(s.id ORDER BY s.id), first(s.note ORDER BY s.at, s.id)
FROM sales s WHERE s.at >= $1 AND s.at < $2

--- order: aggregates of distinct values
SELECT $1, array_agg(DISTINCT s.item), string_agg(DISTINCT s.note, ',') FROM sales s WHERE s.at >= $1 AND s.at < $2

--- order: aggregates that need none
SELECT $1, count(*), max(s.price), bit_and(s.item), every(s.amount > 0), percentile_cont(0.5) WITHIN GROUP (ORDER BY s.price), mode() WITHIN GROUP (ORDER BY s.item)
FROM sales s WHERE s.at >= $1 AND s.at < $2

--- order: of a subquery
SELECT $1, array_agg(t.id) FROM (SELECT s.id FROM sales s WHERE s.at >= $1 AND s.at < $2 ORDER BY s.id) t

--- order: ARRAY of a subquery that has one
SELECT s.at, ARRAY(SELECT r.amount FROM refunds r WHERE r.at >= $1 AND r.at < $2 AND r.sale = s.id ORDER BY r.amount) FROM sales s WHERE s.at >= $1 AND s.at < $2

--- order: ARRAY of a subquery that is only searched
SELECT s.at, s.amount FROM sales s
WHERE s.at >= $1 AND s.at < $2 AND s.amount <> ALL (ARRAY(SELECT r.amount FROM refunds r WHERE r.at >= $1 AND r.at < $2))

--- order: window functions
SELECT s.at, row_number() OVER (ORDER BY s.at, s.id), lag(s.amount) OVER (PARTITION BY s.item ORDER BY s.at, s.id),
    sum(s.amount) OVER (PARTITION BY s.item), rank() OVER (ORDER BY s.amount), count(*) OVER ()
FROM sales s WHERE s.at >= $1 AND s.at < $2

--- order: floats in their order, and as numbers
SELECT $1, sum(s.price ORDER BY s.id), sum(s.price::numeric), max(s.price), sum(s.price) OVER (ORDER BY s.id)
FROM sales s WHERE s.at >= $1 AND s.at < $2 GROUP BY s.id, s.price

--- past: its own target, with depends_on_past
-- past
SELECT $1, count(*) + coalesce(max(f.a::int), 0) FROM facts f WHERE f.day = $1 - ($2 - $1)

--- past: its own target, up to now
-- past
SELECT $1, count(*), $2 FROM facts f WHERE f.day < $1

--- demo: delays of a year of flights
-- setup
CREATE TABLE flights (sched_dep timestamptz NOT NULL, dep_time int, dep_delay int, carrier text);
-- query
SELECT ($1 AT TIME ZONE 'America/New_York')::date AS day, carrier,
       count(*) AS flights, count(*) FILTER (WHERE dep_time IS NULL) AS cancelled,
       round(avg(dep_delay), 1) AS avg_delay
FROM flights WHERE sched_dep >= $1 AND sched_dep < $2 GROUP BY carrier

--- README: a count that gives no row where there is none
SELECT $1, count(*) FROM sales s WHERE s.at >= $1 AND s.at < $2 HAVING count(*) > 0
