-- gpu-bdb q13 · Whose spending on the web grew faster than in stores?
-- Reads   store_sales, web_sales, date_dim, customer
-- Knobs   $year (and the one after it), $limit
-- Ties    broken by the customer key
WITH store AS (
    SELECT
        ss_customer_sk AS customer_sk,
        CAST(sum(CASE WHEN d_year = $year THEN ss_net_paid ELSE 0.0 END) AS DOUBLE) AS first_year,
        CAST(sum(CASE WHEN d_year = $year + 1 THEN ss_net_paid ELSE 0.0 END) AS DOUBLE) AS second_year
    FROM store_sales
    JOIN date_dim ON ss_sold_date_sk = d_date_sk
    WHERE d_year IN ($year, $year + 1)
    GROUP BY ss_customer_sk
), web AS (
    SELECT
        ws_bill_customer_sk AS customer_sk,
        CAST(sum(CASE WHEN d_year = $year THEN ws_net_paid ELSE 0.0 END) AS DOUBLE) AS first_year,
        CAST(sum(CASE WHEN d_year = $year + 1 THEN ws_net_paid ELSE 0.0 END) AS DOUBLE) AS second_year
    FROM web_sales
    JOIN date_dim ON ws_sold_date_sk = d_date_sk
    WHERE d_year IN ($year, $year + 1)
    GROUP BY ws_bill_customer_sk
)
SELECT
    c_customer_sk,
    c_first_name,
    c_last_name,
    store.second_year / store.first_year AS "storeSalesIncreaseRatio",
    web.second_year / web.first_year AS "webSalesIncreaseRatio"
FROM store
JOIN web ON store.customer_sk = web.customer_sk
JOIN customer ON c_customer_sk = web.customer_sk
WHERE store.first_year > 0
    AND web.first_year > 0
    AND web.second_year / web.first_year > store.second_year / store.first_year
ORDER BY "webSalesIncreaseRatio" DESC, c_customer_sk, c_first_name, c_last_name
LIMIT $limit
