-- The 22 questions of TPC-H, asked of a day. Their texts are of our own. What they join beside orders and line items has no
-- time: that such a table can be edited later is true, so each is found, by its name, and nothing else is.

--- H1: price summary by status
SELECT $1, l_returned, l_status, sum(l_quantity), sum(l_price), sum(l_price * (1 - l_discount)), sum(l_price * (1 - l_discount) * (1 + l_tax)), avg(l_quantity), count(*)
FROM lineitem WHERE l_shipped >= $1 AND l_shipped < $2 GROUP BY l_returned, l_status

--- H2: the cheapest supplier of what was shipped
-- dims part partsupp supplier nation region
SELECT $1, s_name, n_name, p_key, ps_cost
FROM part JOIN partsupp ON ps_part = p_key JOIN supplier ON s_key = ps_supplier JOIN nation ON n_key = s_nation JOIN region ON r_key = n_region
WHERE r_name = 'EUROPE' AND p_size = 15
  AND EXISTS (SELECT FROM lineitem WHERE l_part = p_key AND l_shipped >= $1 AND l_shipped < $2)
  AND ps_cost = (SELECT min(ps.ps_cost) FROM partsupp ps JOIN supplier s ON s.s_key = ps.ps_supplier WHERE ps.ps_part = p_key)
ORDER BY s_balance DESC, n_name, s_name, p_key LIMIT 100

--- H3: unshipped orders of the greatest value
-- dims customer lineitem
SELECT $1, l_order, sum(l_price * (1 - l_discount)) AS revenue, o_date, o_priority
FROM customer JOIN orders ON o_customer = c_key JOIN lineitem ON l_order = o_key
WHERE c_segment = 'BUILDING' AND o_date >= $1 AND o_date < $2
GROUP BY l_order, o_date, o_priority ORDER BY revenue DESC, o_date, l_order LIMIT 10

--- H4: orders with a late line, by priority
SELECT $1, o_priority, count(*) FROM orders
WHERE o_date >= $1 AND o_date < $2
  AND EXISTS (SELECT FROM lineitem WHERE l_order = o_key AND l_committed < l_received AND l_shipped >= $1 AND l_shipped < $2 + interval '90 days')
GROUP BY o_priority

--- H5: revenue by local suppliers
-- dims customer lineitem supplier nation region
SELECT $1, n_name, sum(l_price * (1 - l_discount))
FROM customer, orders, lineitem, supplier, nation, region
WHERE c_key = o_customer AND l_order = o_key AND l_supplier = s_key AND c_nation = s_nation AND s_nation = n_key AND n_region = r_key
  AND r_name = 'ASIA' AND o_date >= $1 AND o_date < $2
GROUP BY n_name

--- H6: revenue that discounts cost
SELECT $1, sum(l_price * l_discount) FROM lineitem
WHERE l_shipped >= $1 AND l_shipped < $2 AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24

--- H7: shipping between two nations
-- dims supplier orders customer nation
SELECT $1, supp_nation, cust_nation, sum(volume)
FROM (
    SELECT n1.n_name AS supp_nation, n2.n_name AS cust_nation, l_price * (1 - l_discount) AS volume, l_shipped
    FROM supplier, lineitem, orders, customer, nation n1, nation n2
    WHERE s_key = l_supplier AND o_key = l_order AND c_key = o_customer AND s_nation = n1.n_key AND c_nation = n2.n_key
) shipping
WHERE l_shipped >= $1 AND l_shipped < $2 GROUP BY supp_nation, cust_nation

--- H8: market share
-- dims part supplier lineitem customer nation region
SELECT $1, sum(CASE WHEN nation = 'BRAZIL' THEN volume ELSE 0 END) / nullif(sum(volume), 0)
FROM (
    SELECT o_date, l_price * (1 - l_discount) AS volume, n2.n_name AS nation
    FROM part JOIN lineitem ON l_part = p_key JOIN supplier ON s_key = l_supplier JOIN orders ON o_key = l_order
    JOIN customer ON c_key = o_customer JOIN nation n1 ON n1.n_key = c_nation JOIN region ON r_key = n1.n_region
    JOIN nation n2 ON n2.n_key = s_nation
) all_nations
WHERE o_date BETWEEN $1 AND $2

--- H9: profit by nation
-- dims part supplier lineitem partsupp nation
SELECT $1, nation, sum(amount)
FROM (
    SELECT n_name AS nation, o_date, l_price * (1 - l_discount) - ps_cost * l_quantity AS amount
    FROM part, supplier, lineitem, partsupp, orders, nation
    WHERE s_key = l_supplier AND ps_supplier = l_supplier AND ps_part = l_part AND p_key = l_part AND o_key = l_order AND n_key = s_nation
      AND p_name LIKE '%green%' AND o_date >= $1 AND o_date < $2
) profit GROUP BY nation

--- H10: customers who returned goods
-- dims customer lineitem nation
SELECT $1, c_key, c_name, sum(l_price * (1 - l_discount)) AS revenue, n_name
FROM customer JOIN orders ON o_customer = c_key JOIN lineitem ON l_order = o_key JOIN nation ON n_key = c_nation
WHERE o_date >= $1 AND o_date < $2 AND l_returned = 'R'
GROUP BY c_key, c_name, n_name ORDER BY revenue DESC, c_key LIMIT 20

--- H11: important stock among what was shipped
-- dims partsupp supplier nation
SELECT $1, ps_part, sum(ps_cost * ps_available)
FROM partsupp JOIN supplier ON s_key = ps_supplier JOIN nation ON n_key = s_nation
WHERE n_name = 'GERMANY' AND ps_part IN (SELECT l_part FROM lineitem WHERE l_shipped >= $1 AND l_shipped < $2)
GROUP BY ps_part
HAVING sum(ps_cost * ps_available) > (SELECT sum(ps.ps_cost * ps.ps_available) * 0.0001 FROM partsupp ps)

--- H12: modes of shipping and priorities
-- dims orders
SELECT $1, l_mode, sum(CASE WHEN o_priority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END)
FROM orders JOIN lineitem ON l_order = o_key
WHERE l_mode IN ('MAIL', 'SHIP') AND l_committed < l_received AND l_shipped < l_committed AND l_received >= $1 AND l_received < $2
GROUP BY l_mode

--- H13: how many orders customers have
-- dims customer
SELECT $1, orders_of, count(*)
FROM (
    SELECT c_key, count(o_key) AS orders_of
    FROM customer LEFT JOIN orders ON o_customer = c_key AND o_date >= $1 AND o_date < $2 AND o_comment NOT LIKE '%special%'
    GROUP BY c_key
) c GROUP BY orders_of

--- H14: the share of promotions
-- dims part
SELECT $1, 100 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_price * (1 - l_discount) ELSE 0 END) / nullif(sum(l_price * (1 - l_discount)), 0)
FROM lineitem JOIN part ON p_key = l_part WHERE l_shipped >= $1 AND l_shipped < $2

--- H15: the best supplier, by a CTE
-- dims supplier
WITH revenue AS (
    SELECT l_supplier AS supplier, sum(l_price * (1 - l_discount)) AS total FROM lineitem
    WHERE l_shipped >= $1 AND l_shipped < $2 GROUP BY l_supplier
)
SELECT $1, s_key, s_name, total FROM supplier JOIN revenue ON supplier = s_key WHERE total = (SELECT max(total) FROM revenue)

--- H15: the best supplier, by a view
-- dims supplier
SELECT r.day, s_key, s_name, r.revenue FROM supplier JOIN line_revenue r ON r.supplier = s_key
WHERE r.day >= $1 AND r.day < $2 AND r.revenue = (SELECT max(o.revenue) FROM line_revenue o WHERE o.day = r.day)

--- H16: suppliers by the parts that were ordered
-- dims partsupp part supplier lineitem
SELECT $1, p_brand, p_type, p_size, count(DISTINCT ps_supplier)
FROM partsupp JOIN part ON p_key = ps_part
WHERE p_brand <> 'Brand#45' AND ps_supplier NOT IN (SELECT s_key FROM supplier WHERE s_comment LIKE '%complaints%')
  AND EXISTS (SELECT FROM lineitem JOIN orders ON o_key = l_order WHERE l_part = p_key AND o_date >= $1 AND o_date < $2)
GROUP BY p_brand, p_type, p_size

--- H17: small orders, against the average of all time
-- dims part lineitem
SELECT $1, sum(l_price) / 7.0
FROM lineitem JOIN part ON p_key = l_part
WHERE p_brand = 'Brand#23' AND l_shipped >= $1 AND l_shipped < $2
  AND l_quantity < (SELECT 0.2 * avg(o.l_quantity) FROM lineitem o WHERE o.l_part = p_key)

--- H18: large orders
-- dims customer lineitem
SELECT $1, c_name, c_key, o_key, o_total, sum(l_quantity)
FROM customer, orders, lineitem
WHERE o_key IN (SELECT l.l_order FROM lineitem l GROUP BY l.l_order HAVING sum(l.l_quantity) > 300)
  AND c_key = o_customer AND o_key = l_order AND o_date >= $1 AND o_date < $2
GROUP BY c_name, c_key, o_key, o_total ORDER BY o_total DESC, o_key LIMIT 100

--- H19: discounted revenue
-- dims part
SELECT $1, sum(l_price * (1 - l_discount))
FROM lineitem, part
WHERE l_shipped >= $1 AND l_shipped < $2 AND (
    (p_key = l_part AND p_brand = 'Brand#12' AND l_quantity BETWEEN 1 AND 11 AND p_size BETWEEN 1 AND 5)
    OR (p_key = l_part AND p_brand = 'Brand#23' AND l_quantity BETWEEN 10 AND 20 AND p_size BETWEEN 1 AND 10)
)

--- H20: suppliers with more than was sold
-- dims supplier nation partsupp part
SELECT $1, s_name FROM supplier JOIN nation ON n_key = s_nation
WHERE n_name = 'CANADA' AND s_key IN (
    SELECT ps_supplier FROM partsupp
    WHERE ps_part IN (SELECT p_key FROM part WHERE p_name LIKE 'forest%')
      AND ps_available > (
          SELECT 0.5 * sum(l_quantity) FROM lineitem
          WHERE l_part = ps_part AND l_supplier = ps_supplier AND l_shipped >= $1 AND l_shipped < $2))

--- H21: suppliers who kept orders waiting
-- dims supplier orders nation lineitem
SELECT $1, s_name, count(*)
FROM supplier, lineitem l1, orders, nation
WHERE s_key = l1.l_supplier AND o_key = l1.l_order AND o_status = 'F' AND l1.l_received > l1.l_committed
  AND l1.l_shipped >= $1 AND l1.l_shipped < $2 AND s_nation = n_key
  AND EXISTS (SELECT FROM lineitem l2 WHERE l2.l_order = l1.l_order AND l2.l_supplier <> l1.l_supplier)
  AND NOT EXISTS (SELECT FROM lineitem l3 WHERE l3.l_order = l1.l_order AND l3.l_supplier <> l1.l_supplier AND l3.l_received > l3.l_committed)
GROUP BY s_name ORDER BY count(*) DESC, s_name LIMIT 100

--- H22: customers who might buy
-- dims customer
SELECT $1, substring(c_phone FROM 1 FOR 2), count(*), sum(c_balance)
FROM customer
WHERE c_balance > (SELECT avg(c.c_balance) FROM customer c WHERE c.c_balance > 0)
  AND NOT EXISTS (SELECT FROM orders WHERE o_customer = c_key AND o_date >= $1 AND o_date < $2)
GROUP BY 2
