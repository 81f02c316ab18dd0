-- Questions of a retailer in the shapes of decision support: ranks over ROLLUP sums, windows over aggregates, year over year, sets of
-- three, correlated averages. Each begins with its name; each has an order that no two rows share.

-- name: sums by rollup, ranked within their level
SELECT i_category, i_class, total, level,
       rank() OVER (PARTITION BY level, CASE WHEN level = 0 THEN i_category END ORDER BY total DESC) AS place
FROM (SELECT i_category, i_class, sum(ss_net_paid) AS total, grouping(i_category) + grouping(i_class) AS level
      FROM store_sales JOIN item ON ss_item_sk = i_item_sk
      GROUP BY ROLLUP (i_category, i_class)) AS sums
ORDER BY level DESC, i_category, place, i_class LIMIT 100;

-- name: profit over sales by rollup, the lowest first
SELECT gross, i_category, i_class, level, rank() OVER (PARTITION BY level ORDER BY gross) AS place
FROM (SELECT sum(ss_net_profit) / sum(ss_ext_sales_price) AS gross, i_category, i_class, grouping(i_category, i_class) AS level
      FROM store_sales JOIN date_dim ON ss_sold_date_sk = d_date_sk JOIN item ON ss_item_sk = i_item_sk
      WHERE d_year = 2003 GROUP BY ROLLUP (i_category, i_class)) AS margins
ORDER BY level DESC, place, i_category, i_class LIMIT 60;

-- name: ranks over a cube of states and categories
SELECT s_state, i_category, total, dense_rank() OVER (PARTITION BY level ORDER BY total DESC NULLS LAST) AS place
FROM (SELECT s_state, i_category, sum(ss_quantity) AS total, grouping(s_state) * 2 + grouping(i_category) AS level
      FROM store_sales JOIN store ON ss_store_sk = s_store_sk JOIN item ON ss_item_sk = i_item_sk
      GROUP BY CUBE (s_state, i_category)) AS sums
ORDER BY total DESC, s_state, i_category LIMIT 80;

-- name: grouping sets by hand, numbered
SELECT d_year, d_qoy, total, row_number() OVER (ORDER BY total DESC, d_year, d_qoy) AS n
FROM (SELECT d_year, d_qoy, sum(ws_quantity) AS total FROM web_sales JOIN date_dim ON ws_sold_date_sk = d_date_sk
      GROUP BY GROUPING SETS ((d_year, d_qoy), (d_year), ())) AS sums
ORDER BY n;

-- name: the best ten items of each category by a window over an aggregate
SELECT i_category, i_item_sk, total, place
FROM (SELECT i_category, i_item_sk, sum(ss_quantity) AS total,
             rank() OVER (PARTITION BY i_category ORDER BY sum(ss_quantity) DESC, i_item_sk) AS place
      FROM store_sales JOIN item ON ss_item_sk = i_item_sk GROUP BY i_category, i_item_sk) AS ranked
WHERE place <= 10 ORDER BY i_category, place, i_item_sk;

-- name: a class's share of its category's sales
SELECT i_category, i_class, sum(ws_ext_sales_price) AS revenue,
       sum(ws_ext_sales_price) * 100 / sum(sum(ws_ext_sales_price)) OVER (PARTITION BY i_category) AS share
FROM web_sales JOIN item ON ws_item_sk = i_item_sk GROUP BY i_category, i_class
ORDER BY i_category, i_class;

-- name: an item's share of its class in a month
SELECT i_item_sk, i_class, i_category, revenue, revenue * 100 / sum(revenue) OVER (PARTITION BY i_class) AS share
FROM (SELECT i_item_sk, i_class, i_category, sum(ss_ext_sales_price) AS revenue
      FROM store_sales JOIN item ON ss_item_sk = i_item_sk JOIN date_dim ON ss_sold_date_sk = d_date_sk
      WHERE d_year = 2002 AND d_moy BETWEEN 2 AND 3 GROUP BY i_item_sk, i_class, i_category) AS revenues
ORDER BY i_category, i_class, i_item_sk LIMIT 100;

-- name: months that differ from the year's average
SELECT i_category, d_year, d_moy, total, average
FROM (SELECT i_category, d_year, d_moy, sum(ss_sales_price) AS total,
             avg(sum(ss_sales_price)) OVER (PARTITION BY i_category, d_year) AS average
      FROM item JOIN store_sales ON ss_item_sk = i_item_sk JOIN date_dim ON ss_sold_date_sk = d_date_sk
      WHERE d_year IN (2001, 2002) GROUP BY i_category, d_year, d_moy) AS months
WHERE average > 0 AND abs(total - average) / average > 0.1
ORDER BY i_category, d_year, d_moy LIMIT 100;

-- name: the month before and after by lag and lead
SELECT i_category, d_year, d_moy, total, lag(total) OVER w AS before, lead(total) OVER w AS after
FROM (SELECT i_category, d_year, d_moy, sum(ss_quantity) AS total
      FROM item JOIN store_sales ON ss_item_sk = i_item_sk JOIN date_dim ON ss_sold_date_sk = d_date_sk
      GROUP BY i_category, d_year, d_moy) AS months
WINDOW w AS (PARTITION BY i_category ORDER BY d_year, d_moy)
ORDER BY i_category, d_year, d_moy LIMIT 120;

-- name: year over year by lag
SELECT s_store_sk, d_year, total, total - lag(total) OVER (PARTITION BY s_store_sk ORDER BY d_year) AS growth
FROM (SELECT s_store_sk, d_year, sum(ss_quantity) AS total
      FROM store_sales JOIN store ON ss_store_sk = s_store_sk JOIN date_dim ON ss_sold_date_sk = d_date_sk
      GROUP BY s_store_sk, d_year) AS years
ORDER BY s_store_sk, d_year;

-- name: year over year by joining a total with itself
WITH years AS (SELECT i_category, d_year, sum(ws_ext_sales_price) AS total
               FROM web_sales JOIN item ON ws_item_sk = i_item_sk JOIN date_dim ON ws_sold_date_sk = d_date_sk
               GROUP BY i_category, d_year)
SELECT now.i_category, now.d_year, now.total, past.total AS before, now.total / past.total AS ratio
FROM years AS now JOIN years AS past ON now.i_category = past.i_category AND now.d_year = past.d_year + 1
ORDER BY now.i_category, now.d_year;

-- name: weeks of a year beside the same weeks of the next
WITH weeks AS (SELECT d_week_seq, sum(CASE WHEN d_day_name = 'Sunday' THEN ws_quantity END) AS sun,
                      sum(CASE WHEN d_day_name = 'Monday' THEN ws_quantity END) AS mon, sum(ws_quantity) AS total
               FROM web_sales JOIN date_dim ON ws_sold_date_sk = d_date_sk GROUP BY d_week_seq)
SELECT a.d_week_seq, a.sun, b.sun AS next_sun, a.mon, b.mon AS next_mon, round(a.total * 1.0 / b.total, 2) AS ratio
FROM weeks AS a JOIN weeks AS b ON a.d_week_seq = b.d_week_seq - 53
ORDER BY a.d_week_seq LIMIT 100;

-- name: running and cumulative sums by day
SELECT d_date_sk, total, sum(total) OVER (ORDER BY d_date_sk ROWS UNBOUNDED PRECEDING) AS so_far,
       sum(total) OVER (ORDER BY d_date_sk ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) AS week
FROM (SELECT d_date_sk, sum(ss_quantity) AS total FROM store_sales JOIN date_dim ON ss_sold_date_sk = d_date_sk
      WHERE d_year = 2001 GROUP BY d_date_sk) AS days
ORDER BY d_date_sk;

-- name: the running maximum of two channels
WITH web AS (SELECT ws_item_sk AS item, d_date_sk AS day, sum(sum(ws_quantity)) OVER (PARTITION BY ws_item_sk ORDER BY d_date_sk
                    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS so_far
             FROM web_sales JOIN date_dim ON ws_sold_date_sk = d_date_sk WHERE d_year = 2002 GROUP BY ws_item_sk, d_date_sk),
     shop AS (SELECT ss_item_sk AS item, d_date_sk AS day, sum(sum(ss_quantity)) OVER (PARTITION BY ss_item_sk ORDER BY d_date_sk
                    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS so_far
             FROM store_sales JOIN date_dim ON ss_sold_date_sk = d_date_sk WHERE d_year = 2002 GROUP BY ss_item_sk, d_date_sk)
SELECT item, day, web_most, shop_most
FROM (SELECT item, day, max(web_so_far) OVER w AS web_most, max(shop_so_far) OVER w AS shop_most
      FROM (SELECT coalesce(web.item, shop.item) AS item, coalesce(web.day, shop.day) AS day, web.so_far AS web_so_far,
                   shop.so_far AS shop_so_far
            FROM web FULL JOIN shop ON web.item = shop.item AND web.day = shop.day) AS both
      WINDOW w AS (PARTITION BY item ORDER BY day ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)) AS most
WHERE web_most > shop_most ORDER BY item, day LIMIT 100;

-- name: customers of all three
SELECT count(*) AS customers FROM (
    SELECT DISTINCT c_last_name, c_first_name, d_date_sk FROM store_sales JOIN date_dim ON ss_sold_date_sk = d_date_sk
        JOIN customer ON ss_customer_sk = c_customer_sk
    INTERSECT SELECT DISTINCT c_last_name, c_first_name, d_date_sk FROM web_sales JOIN date_dim ON ws_sold_date_sk = d_date_sk
        JOIN customer ON ws_bill_customer_sk = c_customer_sk
    INTERSECT SELECT DISTINCT c_last_name, c_first_name, d_date_sk FROM web_clickstreams
        JOIN date_dim ON wcs_click_date_sk = d_date_sk JOIN customer ON wcs_user_sk = c_customer_sk) AS both;

-- name: items of two channels and not of returns
SELECT item FROM (
    SELECT ss_item_sk AS item FROM store_sales INTERSECT SELECT ws_item_sk FROM web_sales EXCEPT SELECT sr_item_sk FROM store_returns) AS kept
ORDER BY item LIMIT 100;

-- name: except twice
SELECT customer FROM (
    (SELECT ss_customer_sk AS customer FROM store_sales EXCEPT SELECT ws_bill_customer_sk FROM web_sales)
    EXCEPT SELECT sr_customer_sk FROM store_returns) AS left_over
ORDER BY customer LIMIT 100;

-- name: union of three with the channel's name
SELECT channel, i_category, sum(paid) AS paid, count(*) AS lines
FROM (SELECT 'store' AS channel, ss_item_sk AS item, ss_net_paid AS paid FROM store_sales
      UNION ALL SELECT 'web', ws_item_sk, ws_net_paid FROM web_sales
      UNION ALL SELECT 'returned', sr_item_sk, -sr_return_amt FROM store_returns) AS lines
JOIN item ON item = i_item_sk GROUP BY channel, i_category ORDER BY channel, i_category;

-- name: rollup over a union of channels
SELECT channel, store, grouping(store) AS of_all, sum(sales) AS sales, sum(returns) AS returns, sum(profit) AS profit
FROM (SELECT 'store' AS channel, ss_store_sk AS store, ss_ext_sales_price AS sales, 0.0 AS returns, ss_net_profit AS profit FROM store_sales
      UNION ALL SELECT 'store', sr_store_sk, 0.0, sr_return_amt, -sr_net_loss FROM store_returns
      UNION ALL SELECT 'web', ws_web_site_sk, ws_ext_sales_price, 0.0, ws_net_profit FROM web_sales) AS lines
GROUP BY ROLLUP (channel, store) ORDER BY channel, store, of_all LIMIT 100;

-- name: customers who return more than their store's average
WITH returned AS (SELECT sr_customer_sk AS customer, sr_store_sk AS store, sum(sr_return_amt) AS total
                  FROM store_returns JOIN date_dim ON sr_returned_date_sk = d_date_sk WHERE d_year = 2003
                  GROUP BY sr_customer_sk, sr_store_sk)
SELECT c_customer_id FROM returned AS r JOIN store ON r.store = s_store_sk JOIN customer ON r.customer = c_customer_sk
WHERE r.total > (SELECT avg(total) * 1.2 FROM returned AS s WHERE s.store = r.store)
ORDER BY c_customer_id, r.store LIMIT 100;

-- name: lines far below an item's average quantity
SELECT sum(ss_ext_sales_price) / 7.0 AS weekly FROM store_sales JOIN item ON i_item_sk = ss_item_sk
WHERE i_category_id < 4 AND ss_quantity < (SELECT 0.2 * avg(s.ss_quantity) FROM store_sales AS s WHERE s.ss_item_sk = i_item_sk);

-- name: discounts above the item's own average
SELECT sum(ws_ext_discount_amt) AS excess FROM web_sales JOIN item ON i_item_sk = ws_item_sk JOIN date_dim ON ws_sold_date_sk = d_date_sk
WHERE d_year = 2002 AND ws_ext_discount_amt >
    (SELECT 1.3 * avg(w.ws_ext_discount_amt) FROM web_sales AS w JOIN date_dim AS d ON w.ws_sold_date_sk = d.d_date_sk
     WHERE w.ws_item_sk = i_item_sk AND d.d_year = 2002);

-- name: items dearer than their category's average
SELECT i_category, count(*) AS items, avg(i_current_price) AS price FROM item AS i
WHERE i_current_price > 1.2 * (SELECT avg(j.i_current_price) FROM item AS j WHERE j.i_category = i.i_category)
GROUP BY i_category ORDER BY i_category;

-- name: customers with orders and no store visit
SELECT count(*) AS customers FROM customer WHERE
    EXISTS (SELECT 1 FROM web_sales WHERE ws_bill_customer_sk = c_customer_sk)
    AND NOT EXISTS (SELECT 1 FROM store_sales WHERE ss_customer_sk = c_customer_sk);

-- name: either channel by a disjunction of EXISTS
SELECT cd_gender, cd_education_status, count(*) AS customers, min(cd_dep_count) AS least, max(cd_dep_count) AS most, avg(cd_dep_count) AS mean
FROM customer JOIN customer_demographics ON cd_demo_sk = c_current_cdemo_sk
WHERE EXISTS (SELECT 1 FROM store_sales JOIN date_dim ON ss_sold_date_sk = d_date_sk WHERE ss_customer_sk = c_customer_sk AND d_year = 2002)
  AND (EXISTS (SELECT 1 FROM web_sales JOIN date_dim ON ws_sold_date_sk = d_date_sk WHERE ws_bill_customer_sk = c_customer_sk AND d_year = 2002)
       OR EXISTS (SELECT 1 FROM web_clickstreams WHERE wcs_user_sk = c_customer_sk))
GROUP BY cd_gender, cd_education_status ORDER BY cd_gender, cd_education_status;

-- name: orders from one warehouse that were never returned
SELECT count(DISTINCT ws_order_number) AS orders, sum(ws_ext_ship_cost) AS shipping, sum(ws_net_profit) AS profit
FROM web_sales AS w JOIN date_dim ON ws_ship_date_sk = d_date_sk
WHERE d_year = 2002 AND NOT EXISTS (SELECT 1 FROM web_returns WHERE wr_order_number = w.ws_order_number)
  AND EXISTS (SELECT 1 FROM web_sales AS o WHERE o.ws_order_number = w.ws_order_number AND o.ws_warehouse_sk <> w.ws_warehouse_sk);

-- name: bands of hours counted side by side
SELECT * FROM
    (SELECT count(*) AS morning FROM store_sales JOIN time_dim ON ss_sold_time_sk = t_time_sk WHERE t_hour BETWEEN 8 AND 11) AS a,
    (SELECT count(*) AS noon FROM store_sales JOIN time_dim ON ss_sold_time_sk = t_time_sk WHERE t_hour BETWEEN 12 AND 13) AS b,
    (SELECT count(*) AS evening FROM store_sales JOIN time_dim ON ss_sold_time_sk = t_time_sk WHERE t_hour >= 18) AS c;

-- name: scalar subqueries choose between averages
SELECT CASE WHEN (SELECT count(*) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 20) > 1000
            THEN (SELECT avg(ss_ext_discount_amt) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 20)
            ELSE (SELECT avg(ss_net_paid) FROM store_sales WHERE ss_quantity BETWEEN 1 AND 20) END AS low,
       CASE WHEN (SELECT count(*) FROM store_sales WHERE ss_quantity BETWEEN 21 AND 40) > 100000000
            THEN (SELECT avg(ss_ext_discount_amt) FROM store_sales WHERE ss_quantity BETWEEN 21 AND 40)
            ELSE (SELECT avg(ss_net_paid) FROM store_sales WHERE ss_quantity BETWEEN 21 AND 40) END AS high
FROM store WHERE s_store_sk = 1;

-- name: weekdays side by side
SELECT s_store_name, s_store_sk, sum(CASE WHEN d_day_name = 'Sunday' THEN ss_sales_price END) AS sun,
       sum(CASE WHEN d_day_name = 'Wednesday' THEN ss_sales_price END) AS wed,
       sum(CASE WHEN d_day_name = 'Saturday' THEN ss_sales_price END) AS sat
FROM date_dim JOIN store_sales ON d_date_sk = ss_sold_date_sk JOIN store ON s_store_sk = ss_store_sk
WHERE d_year = 2002 GROUP BY s_store_name, s_store_sk ORDER BY s_store_name, s_store_sk;

-- name: delays in bands by warehouse
SELECT substr(w_warehouse_name, 1, 20) AS warehouse, wp_type,
       sum(CASE WHEN ws_ship_date_sk - ws_sold_date_sk <= 30 THEN 1 ELSE 0 END) AS a_month,
       sum(CASE WHEN ws_ship_date_sk - ws_sold_date_sk > 30 AND ws_ship_date_sk - ws_sold_date_sk <= 60 THEN 1 ELSE 0 END) AS two,
       sum(CASE WHEN ws_ship_date_sk - ws_sold_date_sk > 60 THEN 1 ELSE 0 END) AS more
FROM web_sales JOIN warehouse ON ws_warehouse_sk = w_warehouse_sk JOIN web_page ON ws_web_page_sk = wp_web_page_sk
GROUP BY substr(w_warehouse_name, 1, 20), wp_type ORDER BY warehouse, wp_type;

-- name: stock before and after a day
SELECT w_warehouse_name, i_item_id, before, after FROM (
    SELECT w_warehouse_name, i_item_id, sum(CASE WHEN inv_date_sk < 37800 THEN inv_quantity_on_hand ELSE 0 END) AS before,
           sum(CASE WHEN inv_date_sk >= 37800 THEN inv_quantity_on_hand ELSE 0 END) AS after
    FROM inventory JOIN warehouse ON inv_warehouse_sk = w_warehouse_sk JOIN item ON i_item_sk = inv_item_sk
    GROUP BY w_warehouse_name, i_item_id) AS stock
WHERE before > 0 AND after * 1.0 / before BETWEEN 0.5 AND 1.5 ORDER BY w_warehouse_name, i_item_id LIMIT 100;

-- name: stock that varies from month to month
WITH stock AS (SELECT inv_item_sk, inv_warehouse_sk, d_moy, stddev(inv_quantity_on_hand) AS deviation, avg(inv_quantity_on_hand) AS mean
               FROM inventory JOIN date_dim ON inv_date_sk = d_date_sk WHERE d_year = 2001 GROUP BY inv_item_sk, inv_warehouse_sk, d_moy)
SELECT a.inv_item_sk, a.inv_warehouse_sk, a.d_moy, a.mean, a.deviation / a.mean AS cov, b.mean AS next_mean
FROM stock AS a JOIN stock AS b ON a.inv_item_sk = b.inv_item_sk AND a.inv_warehouse_sk = b.inv_warehouse_sk AND b.d_moy = a.d_moy + 1
WHERE a.mean > 0 AND a.deviation / a.mean > 0.3 ORDER BY a.inv_item_sk, a.inv_warehouse_sk, a.d_moy LIMIT 100;

-- name: stock by rollup of the product's hierarchy
SELECT i_category, i_brand, i_class, avg(inv_quantity_on_hand) AS stock
FROM inventory JOIN item ON inv_item_sk = i_item_sk GROUP BY ROLLUP (i_category, i_brand, i_class)
ORDER BY stock, i_category, i_brand, i_class LIMIT 100;

-- name: the worst and the best beside each other by place
WITH averages AS (SELECT ss_item_sk AS item, avg(ss_net_profit) AS profit FROM store_sales GROUP BY ss_item_sk HAVING count(*) > 3),
     ranked AS (SELECT item, rank() OVER (ORDER BY profit, item) AS low, rank() OVER (ORDER BY profit DESC, item) AS high FROM averages)
SELECT a.low AS place, x.i_product_name AS worst, y.i_product_name AS best
FROM ranked AS a JOIN ranked AS d ON a.low = d.high JOIN item AS x ON x.i_item_sk = a.item JOIN item AS y ON y.i_item_sk = d.item
WHERE a.low <= 10 ORDER BY place;

-- name: return ratios, ranked twice
SELECT item, return_ratio, currency_ratio, return_rank, currency_rank FROM (
    SELECT item, return_ratio, currency_ratio, rank() OVER (ORDER BY return_ratio, item) AS return_rank,
           rank() OVER (ORDER BY currency_ratio, item) AS currency_rank
    FROM (SELECT ws_item_sk AS item, sum(coalesce(wr_return_quantity, 0)) * 1.0 / sum(coalesce(ws_quantity, 0)) AS return_ratio,
                 sum(coalesce(wr_return_amt, 0)) / sum(coalesce(ws_net_paid, 0)) AS currency_ratio
          FROM web_sales LEFT JOIN web_returns ON ws_order_number = wr_order_number AND ws_item_sk = wr_item_sk
          WHERE ws_quantity > 0 AND ws_net_paid > 0 GROUP BY ws_item_sk HAVING sum(ws_quantity) > 30) AS ratios) AS ranks
WHERE return_rank <= 30 OR currency_rank <= 10 ORDER BY return_rank, currency_rank, item;

-- name: quartiles of customers by ntile
SELECT quarter, count(*) AS customers, min(total) AS least, max(total) AS most
FROM (SELECT ss_customer_sk, sum(ss_quantity) AS total, ntile(4) OVER (ORDER BY sum(ss_quantity), ss_customer_sk) AS quarter
      FROM store_sales WHERE ss_customer_sk IS NOT NULL GROUP BY ss_customer_sk) AS customers
GROUP BY quarter ORDER BY quarter;

-- name: the top share of stores by cume_dist
SELECT s_store_sk, total, cume_dist() OVER (ORDER BY total) AS share, percent_rank() OVER (ORDER BY total) AS part
FROM (SELECT s_store_sk, sum(ss_quantity) AS total FROM store_sales JOIN store ON ss_store_sk = s_store_sk GROUP BY s_store_sk) AS stores
ORDER BY total, s_store_sk;

-- name: first and last prices of an item
SELECT DISTINCT ws_item_sk, first_value(ws_list_price) OVER w AS first, last_value(ws_list_price) OVER w AS last
FROM web_sales WHERE ws_item_sk < 200
WINDOW w AS (PARTITION BY ws_item_sk ORDER BY ws_sold_date_sk, ws_sold_time_sk, ws_order_number, ws_list_price
             ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
ORDER BY ws_item_sk;

-- name: the third dearest of each brand
SELECT i_brand, i_item_sk, i_current_price FROM (
    SELECT i_brand, i_item_sk, i_current_price, row_number() OVER (PARTITION BY i_brand ORDER BY i_current_price DESC, i_item_sk) AS n FROM item) AS ranked
WHERE n = 3 ORDER BY i_brand, i_item_sk LIMIT 100;

-- name: moving averages by range
SELECT d_date_sk, total, avg(total) OVER (ORDER BY d_date_sk RANGE BETWEEN 3 PRECEDING AND 3 FOLLOWING) AS around,
       count(*) OVER (ORDER BY d_date_sk RANGE BETWEEN 3 PRECEDING AND 3 FOLLOWING) AS days
FROM (SELECT d_date_sk, sum(ws_quantity) AS total FROM web_sales JOIN date_dim ON ws_sold_date_sk = d_date_sk
      WHERE d_year = 2004 GROUP BY d_date_sk) AS days
ORDER BY d_date_sk;

-- name: tickets of large baskets
SELECT c_last_name, c_first_name, ss_ticket_number, lines FROM (
    SELECT ss_ticket_number, ss_customer_sk, count(*) AS lines FROM store_sales JOIN household_demographics ON ss_hdemo_sk = hd_demo_sk
    WHERE hd_vehicle_count > 0 GROUP BY ss_ticket_number, ss_customer_sk) AS tickets
JOIN customer ON ss_customer_sk = c_customer_sk WHERE lines BETWEEN 10 AND 14
ORDER BY c_last_name, c_first_name, ss_ticket_number LIMIT 100;

-- name: who sends to another city
SELECT c_last_name, home, sent_city, ws_order_number, paid FROM (
    SELECT ws_order_number, ws_bill_customer_sk, bill.ca_city AS home, ship.ca_city AS sent_city, sum(ws_net_paid) AS paid
    FROM web_sales JOIN customer_address AS bill ON ws_bill_addr_sk = bill.ca_address_sk
    JOIN customer_address AS ship ON ws_ship_addr_sk = ship.ca_address_sk JOIN date_dim ON ws_sold_date_sk = d_date_sk
    WHERE d_dow IN (0, 6) GROUP BY ws_order_number, ws_bill_customer_sk, bill.ca_city, ship.ca_city) AS sent
JOIN customer ON ws_bill_customer_sk = c_customer_sk
WHERE home <> sent_city ORDER BY c_last_name, ws_order_number, sent_city, home LIMIT 100;

-- name: frequent customers of the web by a HAVING over a join
SELECT c_customer_sk, count(DISTINCT ws_order_number) AS orders, sum(ws_net_paid) AS paid
FROM customer JOIN web_sales ON ws_bill_customer_sk = c_customer_sk GROUP BY c_customer_sk
HAVING count(DISTINCT ws_order_number) >= 3 ORDER BY orders DESC, c_customer_sk LIMIT 100;

-- name: the greatest customers are those above half of the greatest
WITH totals AS (SELECT ss_customer_sk AS customer, sum(ss_quantity * ss_sales_price) AS total FROM store_sales GROUP BY ss_customer_sk)
SELECT count(*) AS customers, sum(total) AS total FROM totals WHERE total > 0.5 * (SELECT max(total) FROM totals);

-- name: items sold on more than three days of a week
WITH often AS (SELECT ss_item_sk AS item, d_week_seq, count(DISTINCT d_date_sk) AS days FROM store_sales
               JOIN date_dim ON ss_sold_date_sk = d_date_sk GROUP BY ss_item_sk, d_week_seq HAVING count(DISTINCT d_date_sk) > 2)
SELECT item, count(*) AS weeks FROM often GROUP BY item ORDER BY weeks DESC, item LIMIT 50;

-- name: the channel's growth per customer
WITH years AS (
    SELECT c_customer_id AS id, d_year, sum(ss_net_paid) AS paid, 's' AS channel FROM customer JOIN store_sales ON c_customer_sk = ss_customer_sk
        JOIN date_dim ON ss_sold_date_sk = d_date_sk WHERE d_year IN (2001, 2002) GROUP BY c_customer_id, d_year
    UNION ALL
    SELECT c_customer_id, d_year, sum(ws_net_paid), 'w' FROM customer JOIN web_sales ON c_customer_sk = ws_bill_customer_sk
        JOIN date_dim ON ws_sold_date_sk = d_date_sk WHERE d_year IN (2001, 2002) GROUP BY c_customer_id, d_year)
SELECT s2.id FROM years AS s1 JOIN years AS s2 ON s1.id = s2.id JOIN years AS w1 ON s1.id = w1.id JOIN years AS w2 ON s1.id = w2.id
WHERE s1.channel = 's' AND s2.channel = 's' AND w1.channel = 'w' AND w2.channel = 'w' AND s1.d_year = 2001 AND s2.d_year = 2002
  AND w1.d_year = 2001 AND w2.d_year = 2002 AND s1.paid > 0 AND w1.paid > 0 AND w2.paid / w1.paid > s2.paid / s1.paid
ORDER BY s2.id LIMIT 100;

-- name: brands by month and manager
SELECT d_year, i_brand_id, i_brand, sum(ss_ext_sales_price) AS total FROM date_dim JOIN store_sales ON d_date_sk = ss_sold_date_sk
JOIN item ON ss_item_sk = i_item_sk WHERE d_moy = 11 AND i_manager_id BETWEEN 1 AND 40
GROUP BY d_year, i_brand, i_brand_id ORDER BY d_year, total DESC, i_brand_id, i_brand LIMIT 100;

-- name: averages by demographics, all in a rollup
SELECT i_category, ca_state, cd_gender, avg(ss_quantity) AS quantity, avg(ss_list_price) AS price, avg(ss_coupon_amt) AS coupon, count(*) AS lines
FROM store_sales JOIN customer_demographics ON ss_cdemo_sk = cd_demo_sk JOIN customer_address ON ss_addr_sk = ca_address_sk
JOIN item ON ss_item_sk = i_item_sk WHERE cd_marital_status = 'M' GROUP BY ROLLUP (i_category, ca_state, cd_gender)
ORDER BY i_category NULLS FIRST, ca_state NULLS FIRST, cd_gender NULLS FIRST LIMIT 100;

-- name: conditions in disjunction over three dimensions
SELECT avg(ss_quantity) AS quantity, avg(ss_ext_sales_price) AS price, sum(ss_ext_wholesale_cost) AS cost, count(*) AS lines
FROM store_sales JOIN customer_demographics ON cd_demo_sk = ss_cdemo_sk JOIN household_demographics ON ss_hdemo_sk = hd_demo_sk
JOIN customer_address ON ss_addr_sk = ca_address_sk
WHERE ((cd_marital_status = 'M' AND cd_education_status = 'College' AND ss_sales_price BETWEEN 50.0 AND 150.0 AND hd_dep_count = 3)
    OR (cd_marital_status = 'S' AND ss_sales_price BETWEEN 10.0 AND 100.0 AND hd_dep_count = 1)
    OR (cd_marital_status = 'W' AND ss_sales_price > 20.0))
  AND (ca_state IN ('TX', 'OH', 'CA') OR ca_state LIKE 'N%');

-- name: cities by zip without their names
SELECT ca_zip, sum(ws_sales_price) AS total FROM web_sales JOIN customer ON ws_bill_customer_sk = c_customer_sk
JOIN customer_address ON c_current_addr_sk = ca_address_sk
WHERE substr(ca_zip, 1, 2) IN ('85', '86', '88', '30', '31') OR ca_state IN ('CA', 'WA', 'GA') OR ws_sales_price > 150
GROUP BY ca_zip ORDER BY ca_zip LIMIT 100;

-- name: an item sold in one channel, returned, and bought in the other
SELECT i_item_id, count(*) AS times, stddev_samp(ss_quantity) AS sold, stddev_samp(sr_return_quantity) AS returned
FROM store_sales JOIN store_returns ON ss_customer_sk = sr_customer_sk AND ss_item_sk = sr_item_sk AND ss_ticket_number = sr_ticket_number
JOIN item ON ss_item_sk = i_item_sk GROUP BY i_item_id HAVING count(*) > 1 ORDER BY i_item_id LIMIT 100;

-- name: what was sold and what came back by day, side by side
WITH sold AS (SELECT ss_sold_date_sk AS day, sum(ss_net_profit) AS profit FROM store_sales GROUP BY ss_sold_date_sk),
     back AS (SELECT sr_returned_date_sk AS day, sum(sr_net_loss) AS loss FROM store_returns GROUP BY sr_returned_date_sk)
SELECT coalesce(sold.day, back.day) AS day, coalesce(profit, 0) - coalesce(loss, 0) AS result FROM sold FULL JOIN back ON sold.day = back.day
ORDER BY day LIMIT 200;

-- name: the days between visits of a customer
SELECT gap, count(*) AS times FROM (
    SELECT ss_customer_sk, day - lag(day) OVER (PARTITION BY ss_customer_sk ORDER BY day) AS gap
    FROM (SELECT DISTINCT ss_customer_sk, ss_sold_date_sk AS day FROM store_sales WHERE ss_customer_sk < 500) AS visits) AS gaps
WHERE gap IS NOT NULL GROUP BY gap ORDER BY times DESC, gap LIMIT 50;

-- name: cohorts by their first year
WITH firsts AS (SELECT ss_customer_sk AS customer, min(d_year) AS first FROM store_sales JOIN date_dim ON ss_sold_date_sk = d_date_sk
                GROUP BY ss_customer_sk)
SELECT first, d_year, count(DISTINCT ss_customer_sk) AS customers, sum(ss_quantity) AS bought
FROM store_sales JOIN date_dim ON ss_sold_date_sk = d_date_sk JOIN firsts ON ss_customer_sk = customer
GROUP BY first, d_year ORDER BY first, d_year;

-- name: a filter on a rank of a join of aggregates
WITH web AS (SELECT ws_item_sk AS item, sum(ws_quantity) AS bought FROM web_sales GROUP BY ws_item_sk),
     shop AS (SELECT ss_item_sk AS item, sum(ss_quantity) AS bought FROM store_sales GROUP BY ss_item_sk)
SELECT * FROM (SELECT i_category, web.item, web.bought AS online, shop.bought AS offline,
                      row_number() OVER (PARTITION BY i_category ORDER BY web.bought - shop.bought DESC, web.item) AS n
               FROM web JOIN shop ON web.item = shop.item JOIN item ON web.item = i_item_sk) AS ranked
WHERE n <= 3 ORDER BY i_category, n;

-- name: sums of a sum over two windows of different orders
SELECT d_year, d_qoy, total, sum(total) OVER (PARTITION BY d_year ORDER BY d_qoy) AS of_year,
       sum(total) OVER (PARTITION BY d_qoy ORDER BY d_year) AS of_quarter, max(total) OVER () AS most
FROM (SELECT d_year, d_qoy, sum(ws_quantity) AS total FROM web_sales JOIN date_dim ON ws_sold_date_sk = d_date_sk GROUP BY d_year, d_qoy) AS quarters
ORDER BY d_year, d_qoy;

-- name: reviews against the average of their item
SELECT i_category, count(*) AS reviews, avg(pr_review_rating) AS rating FROM product_reviews AS p JOIN item ON pr_item_sk = i_item_sk
WHERE pr_review_rating < (SELECT avg(q.pr_review_rating) FROM product_reviews AS q WHERE q.pr_item_sk = p.pr_item_sk)
GROUP BY i_category ORDER BY i_category;

-- name: clicks before the first sale of a visitor
WITH first_sale AS (SELECT wcs_user_sk AS visitor, min(wcs_click_date_sk * 86400 + wcs_click_time_sk) AS at FROM web_clickstreams
                    WHERE wcs_sales_sk IS NOT NULL AND wcs_user_sk IS NOT NULL GROUP BY wcs_user_sk)
SELECT count(*) AS visitors, avg(clicks) AS clicks, max(clicks) AS most FROM (
    SELECT wcs_user_sk, count(*) AS clicks FROM web_clickstreams JOIN first_sale ON wcs_user_sk = visitor
    WHERE wcs_click_date_sk * 86400 + wcs_click_time_sk < at GROUP BY wcs_user_sk) AS counted;

-- name: not in, over keys that may be NULL
SELECT count(*) AS lines FROM web_sales
WHERE ws_promo_sk NOT IN (SELECT p_promo_sk FROM promotion WHERE p_channel_email = 'Y' OR p_channel_tv = 'Y');

-- name: all over again for the last year only
SELECT i_category, d_moy, total, total - avg(total) OVER (PARTITION BY i_category) AS off,
       rank() OVER (PARTITION BY d_moy ORDER BY total DESC, i_category) AS place
FROM (SELECT i_category, d_moy, sum(ss_quantity) AS total FROM store_sales JOIN item ON ss_item_sk = i_item_sk
      JOIN date_dim ON ss_sold_date_sk = d_date_sk WHERE d_year = 2005 GROUP BY i_category, d_moy) AS months
ORDER BY d_moy, place;
