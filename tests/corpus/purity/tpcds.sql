-- Questions in the manner of TPC-DS, asked of a day: facts refer to days by a key, and the days restrict them. The fact tables
-- themselves have no time: that rows of them may come later is true, so each is found where only its key leads to the day.

--- D1: customers who return more than others
-- dims store_returns
WITH returned AS (
    SELECT sr_customer, sr_item, sum(sr_amount) AS total FROM store_returns JOIN date_dim ON d_key = sr_day
    WHERE d_date >= $1 AND d_date < $2 GROUP BY sr_customer, sr_item
)
SELECT $1, r.sr_customer FROM returned r
WHERE r.total > (SELECT avg(o.total) * 1.2 FROM returned o WHERE o.sr_item = r.sr_item) ORDER BY r.sr_customer LIMIT 100

--- D3: brands by sales
-- dims store_sales item
SELECT d_date, i_brand, sum(ss_price) FROM date_dim JOIN store_sales ON ss_day = d_key JOIN item ON i_key = ss_item
WHERE d_date >= $1 AND d_date < $2 AND i_category = 'Books' GROUP BY d_date, i_brand

--- D7: averages by item
-- dims store_sales item
SELECT $1, i_name, avg(ss_quantity), avg(ss_price)
FROM store_sales, date_dim, item WHERE ss_day = d_key AND ss_item = i_key AND d_date BETWEEN $1 AND $2 GROUP BY i_name

--- D8: stores on a weekday
-- dims store_sales store
SELECT $1, st_name, sum(ss_profit) FILTER (WHERE d_weekday = 'Sunday'), sum(ss_profit)
FROM store_sales JOIN date_dim ON d_key = ss_day AND d_date >= $1 AND d_date < $2 JOIN store ON st_key = ss_store GROUP BY st_name

--- D27: a cube of states and categories
-- dims store_sales store item
SELECT $1, i_category, st_state, grouping(i_category, st_state), avg(ss_quantity)
FROM store_sales JOIN date_dim ON d_key = ss_day JOIN store ON st_key = ss_store JOIN item ON i_key = ss_item
WHERE d_date >= $1 AND d_date < $2 GROUP BY ROLLUP (i_category, st_state)

--- D36: items ranked in their category
-- dims store_sales item
SELECT t.d_date, t.i_name, rank() OVER (PARTITION BY t.i_category ORDER BY t.profit DESC)
FROM (
    SELECT d_date, i_category, i_name, sum(ss_profit) AS profit FROM store_sales JOIN date_dim ON d_key = ss_day JOIN item ON i_key = ss_item
    GROUP BY d_date, i_category, i_name
) t WHERE t.d_date >= $1 AND t.d_date < $2

--- D38: customers of both channels
-- dims store_sales web_sales
SELECT $1, count(*) FROM (
    SELECT ss_customer FROM store_sales JOIN date_dim ON d_key = ss_day WHERE d_date >= $1 AND d_date < $2
    INTERSECT
    SELECT ws_customer FROM web_sales JOIN date_dim ON d_key = ws_day WHERE d_date >= $1 AND d_date < $2
) both_channels

--- D50: how long until it is returned
-- dims store_sales store_returns
SELECT $1, count(*) FILTER (WHERE r.d_date - s.d_date <= 30), count(*)
FROM store_sales JOIN store_returns ON sr_ticket = ss_ticket AND sr_item = ss_item
JOIN date_dim s ON s.d_key = ss_day JOIN date_dim r ON r.d_key = sr_day
WHERE r.d_date >= $1 AND r.d_date < $2 AND s.d_date >= $1 - interval '90 days' AND s.d_date < $2

--- D67: the best of each category
-- dims store_sales item
SELECT * FROM (
    SELECT d_date, i_category, i_name, sum(ss_price), row_number() OVER (PARTITION BY d_date, i_category ORDER BY sum(ss_price) DESC, i_name) AS place
    FROM store_sales JOIN date_dim ON d_key = ss_day JOIN item ON i_key = ss_item GROUP BY d_date, i_category, i_name
) t WHERE t.d_date >= $1 AND t.d_date < $2 AND t.place <= 10

--- D96: customers without a web sale
-- dims store_sales web_sales
SELECT $1, count(DISTINCT ss_customer) FROM store_sales JOIN date_dim ON d_key = ss_day
WHERE d_date >= $1 AND d_date < $2 AND NOT EXISTS (SELECT FROM web_sales WHERE ws_customer = ss_customer)

--- D97: overlap of the channels
-- dims store_sales web_sales
WITH shops AS (
    SELECT ss_customer AS customer, ss_item AS item FROM store_sales JOIN date_dim ON d_key = ss_day WHERE d_date >= $1 AND d_date < $2 GROUP BY 1, 2
), web AS (
    SELECT ws_customer AS customer, ws_item AS item FROM web_sales JOIN date_dim ON d_key = ws_day WHERE d_date >= $1 AND d_date < $2 GROUP BY 1, 2
)
SELECT $1, count(*) FILTER (WHERE w.customer IS NULL), count(*) FILTER (WHERE s.customer IS NULL), count(*)
FROM shops s FULL JOIN web w ON w.customer = s.customer AND w.item = s.item
