-- What the queries of the corpus read. All of them fill facts, whose columns take any value.
CREATE TABLE facts (
    day timestamptz NOT NULL, a text, b text, c text, d text, e text, f text, g text, h text, i text
);

-- A shop.
CREATE TABLE sales (
    id bigint PRIMARY KEY, at timestamptz NOT NULL, loaded_at timestamptz, item int, store int, amount numeric, price float8,
    ratio real, cost money, note text, page xml, doc jsonb, tags text[], period tstzrange
);
CREATE TABLE refunds (at timestamptz NOT NULL, sale bigint, amount numeric);
CREATE TABLE items (id int PRIMARY KEY, name text, price numeric, added timestamptz);
CREATE TABLE stores (id int PRIMARY KEY, name text, country text, zone text);
CREATE TABLE prices (item int, valid_from timestamptz, valid_to timestamptz, price numeric);
CREATE TABLE days (day timestamptz PRIMARY KEY, is_holiday boolean);
CREATE TABLE measures (day date NOT NULL, sensor int, value numeric) PARTITION BY RANGE (day);
CREATE TABLE measures_2024 PARTITION OF measures FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE SEQUENCE numbers;
CREATE TYPE mood AS ENUM ('sad', 'now');

CREATE VIEW paid AS SELECT s.id, s.at, s.item, s.store, s.amount FROM sales s WHERE s.amount > 0;
CREATE VIEW paid_named AS SELECT p.at, p.amount, i.name FROM paid p JOIN items i ON i.id = p.item;
CREATE VIEW daily AS SELECT date_trunc('day', p.at, 'UTC') AS day, sum(p.amount) AS total FROM paid p GROUP BY 1;
CREATE VIEW all_moves AS
    SELECT s.at, s.amount FROM sales s UNION ALL SELECT r.at, -r.amount FROM refunds r;
CREATE VIEW recent AS SELECT s.at, s.amount FROM sales s WHERE s.at > now() - interval '7 days';
CREATE VIEW recent_named AS SELECT r.at, r.amount FROM recent r;
CREATE VIEW mine AS SELECT s.at, s.amount FROM sales s WHERE s.note = current_user;
CREATE VIEW top_ten AS SELECT s.at, s.amount FROM sales s LIMIT 10;
CREATE VIEW lagged AS SELECT s.at, lag(s.amount) OVER (ORDER BY s.at, s.id) AS before FROM sales s;
CREATE VIEW lagged_in_store AS
    SELECT s.at, lag(s.amount) OVER (PARTITION BY s.at ORDER BY s.id) AS before FROM sales s;
CREATE MATERIALIZED VIEW cached AS SELECT s.at, s.amount FROM sales s WITH NO DATA;

-- SQL functions are VOLATILE unless they say otherwise, as most people leave it.
CREATE FUNCTION net(numeric) RETURNS numeric LANGUAGE sql AS 'SELECT $1 * 0.8';
CREATE FUNCTION net_of_net(numeric) RETURNS numeric LANGUAGE sql STABLE AS 'SELECT net(net($1))';
CREATE FUNCTION gross(amount numeric, tax numeric DEFAULT 0.2) RETURNS numeric LANGUAGE sql IMMUTABLE RETURN amount * (1 + tax);
CREATE FUNCTION age_of(timestamptz) RETURNS interval LANGUAGE sql STABLE AS 'SELECT now() - $1';
CREATE FUNCTION age_in_days(timestamptz) RETURNS int LANGUAGE sql AS 'SELECT extract(day FROM age_of($1))::int';
CREATE FUNCTION since_today(timestamptz) RETURNS interval LANGUAGE sql STABLE AS 'SELECT $1 - timestamptz ''today''';
CREATE FUNCTION "Quoted Now"() RETURNS timestamptz LANGUAGE sql STABLE RETURN CURRENT_TIMESTAMP;
CREATE FUNCTION stamped(amount numeric, at timestamptz DEFAULT now()) RETURNS text LANGUAGE sql STABLE
    AS 'SELECT amount::text || at::text';
CREATE FUNCTION lying_age(timestamptz) RETURNS interval LANGUAGE sql IMMUTABLE AS 'SELECT age($1)';
CREATE FUNCTION lying_dice() RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN (random() * 6)::int; END';
CREATE FUNCTION plain_double(numeric) RETURNS numeric LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN $1 * 2; END';
CREATE FUNCTION careless_double(numeric) RETURNS numeric LANGUAGE plpgsql AS 'BEGIN RETURN $1 * 2; END';
CREATE FUNCTION calls_dice(numeric) RETURNS numeric LANGUAGE plpgsql STABLE AS 'BEGIN RETURN $1 * lying_dice(); END';
CREATE FUNCTION today_text() RETURNS date LANGUAGE plpgsql STABLE AS 'DECLARE d date := ''today''; BEGIN RETURN d; END';
CREATE FUNCTION price_of(wanted int) RETURNS numeric LANGUAGE plpgsql STABLE AS $$
    DECLARE found numeric;
    BEGIN
        SELECT i.price INTO found FROM items i WHERE i.id = wanted;
        RETURN found;
    END $$;
CREATE FUNCTION any_count(named text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
    DECLARE n bigint;
    BEGIN
        EXECUTE format('SELECT count(*) FROM %I', named) INTO n;
        RETURN n;
    END $$;
CREATE FUNCTION sold_between(timestamptz, timestamptz) RETURNS SETOF sales LANGUAGE sql STABLE
    AS 'SELECT * FROM sales s WHERE s.at >= $1 AND s.at < $2';
CREATE FUNCTION sold_since(since timestamptz) RETURNS SETOF sales LANGUAGE sql STABLE
    AS 'SELECT * FROM sales s WHERE s.at >= since';
CREATE FUNCTION count_of_sales() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM sales';
CREATE FUNCTION price_at(wanted int, moment timestamptz) RETURNS numeric LANGUAGE sql STABLE AS
    'SELECT p.price FROM prices p WHERE p.item = wanted AND p.valid_from <= moment AND p.valid_to > moment';
CREATE FUNCTION note_it(text) RETURNS void LANGUAGE sql AS 'INSERT INTO items (id, name) VALUES (0, $1)';
CREATE FUNCTION keep_first(text, text) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS 'SELECT $1';
CREATE AGGREGATE first(text) (SFUNC = keep_first, STYPE = text);
CREATE FUNCTION add(numeric, numeric) RETURNS numeric LANGUAGE sql IMMUTABLE AS 'SELECT coalesce($1, 0) + coalesce($2, 0)';
CREATE AGGREGATE total(numeric) (SFUNC = add, STYPE = numeric, INITCOND = '0');
CREATE FUNCTION near_now(timestamptz, interval) RETURNS boolean LANGUAGE sql STABLE AS 'SELECT $1 > now() - $2';
CREATE OPERATOR ~> (LEFTARG = timestamptz, RIGHTARG = interval, FUNCTION = near_now);

-- Another server, as far as it takes to name one.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'dblink') THEN
        CREATE EXTENSION dblink;
    ELSE
        CREATE FUNCTION dblink(text, text) RETURNS SETOF record LANGUAGE plpgsql AS 'BEGIN END';
    END IF;
END $$;
CREATE FOREIGN DATA WRAPPER elsewhere;
CREATE SERVER afar FOREIGN DATA WRAPPER elsewhere;
CREATE FOREIGN TABLE far_sales (at timestamptz, amount numeric) SERVER afar;

-- Rows that not everybody sees.
CREATE TABLE tenants_sales (at timestamptz, tenant text, amount numeric);
ALTER TABLE tenants_sales ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON tenants_sales USING (tenant = current_setting('app.tenant'));

-- A wholesaler, in the manner of TPC-H.
CREATE TABLE region (r_key int PRIMARY KEY, r_name text);
CREATE TABLE nation (n_key int PRIMARY KEY, n_name text, n_region int);
CREATE TABLE supplier (s_key int PRIMARY KEY, s_name text, s_nation int, s_balance numeric, s_comment text);
CREATE TABLE customer (c_key int PRIMARY KEY, c_name text, c_nation int, c_phone text, c_balance numeric, c_segment text);
CREATE TABLE part (p_key int PRIMARY KEY, p_name text, p_brand text, p_type text, p_size int, p_container text, p_maker text);
CREATE TABLE partsupp (ps_part int, ps_supplier int, ps_available int, ps_cost numeric);
CREATE TABLE orders (
    o_key int PRIMARY KEY, o_customer int, o_status text, o_total numeric, o_date date, o_priority text, o_comment text
);
CREATE TABLE lineitem (
    l_order int, l_line int, l_part int, l_supplier int, l_quantity numeric, l_price numeric, l_discount numeric, l_tax numeric,
    l_returned text, l_status text, l_shipped date, l_committed date, l_received date, l_instructions text, l_mode text
);
CREATE VIEW line_revenue AS
    SELECT l.l_supplier AS supplier, l.l_shipped AS day, sum(l.l_price * (1 - l.l_discount)) AS revenue
    FROM lineitem l GROUP BY l.l_supplier, l.l_shipped;

-- A retailer, in the manner of TPC-DS: facts refer to days by their key.
CREATE TABLE date_dim (d_key int PRIMARY KEY, d_date date, d_month int, d_year int, d_weekday text);
CREATE TABLE item (i_key int PRIMARY KEY, i_name text, i_brand text, i_category text, i_price numeric);
CREATE TABLE store (st_key int PRIMARY KEY, st_name text, st_state text);
CREATE TABLE store_sales (
    ss_day int, ss_item int, ss_store int, ss_customer int, ss_ticket int, ss_quantity int, ss_price numeric, ss_profit numeric
);
CREATE TABLE store_returns (sr_day int, sr_item int, sr_customer int, sr_ticket int, sr_amount numeric);
CREATE TABLE web_sales (ws_day int, ws_item int, ws_customer int, ws_price numeric);
