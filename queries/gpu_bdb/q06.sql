-- gpu-bdb q06 · Which customers moved their spending from stores to the web?
-- Reads   store_sales, web_sales, date_dim, customer
-- Knobs   $year (and the one after it), $limit
-- Ties    broken by the customer key
WITH store AS (
    SELECT
        ss_customer_sk AS customer_sk,
        CAST(sum(CASE WHEN d_year = $year THEN (ss_ext_list_price - ss_ext_wholesale_cost - ss_ext_discount_amt + ss_ext_sales_price) / 2.0 ELSE 0.0 END) AS DOUBLE) AS first_year,
        CAST(sum(CASE WHEN d_year = $year + 1 THEN (ss_ext_list_price - ss_ext_wholesale_cost - ss_ext_discount_amt + ss_ext_sales_price) / 2.0 ELSE 0.0 END) AS DOUBLE) AS second_year
    FROM store_sales
    JOIN date_dim ON ss_sold_date_sk = d_date_sk
    WHERE d_year IN ($year, $year + 1)
    GROUP BY ss_customer_sk
), web AS (
    SELECT
        ws_bill_customer_sk AS customer_sk,
        CAST(sum(CASE WHEN d_year = $year THEN (ws_ext_list_price - ws_ext_wholesale_cost - ws_ext_discount_amt + ws_ext_sales_price) / 2.0 ELSE 0.0 END) AS DOUBLE) AS first_year,
        CAST(sum(CASE WHEN d_year = $year + 1 THEN (ws_ext_list_price - ws_ext_wholesale_cost - ws_ext_discount_amt + ws_ext_sales_price) / 2.0 ELSE 0.0 END) AS DOUBLE) AS second_year
    FROM web_sales
    JOIN date_dim ON ws_sold_date_sk = d_date_sk
    WHERE d_year IN ($year, $year + 1)
    GROUP BY ws_bill_customer_sk
)
SELECT
    web.second_year / web.first_year AS web_sales_increase_ratio,
    c_customer_sk,
    c_first_name,
    c_last_name,
    c_preferred_cust_flag,
    c_birth_country,
    c_login,
    c_email_address
FROM store
JOIN web ON store.customer_sk = web.customer_sk
JOIN customer ON c_customer_sk = web.customer_sk
WHERE store.first_year > 0
    AND web.first_year > 0
    AND web.second_year / web.first_year > store.second_year / store.first_year
ORDER BY web_sales_increase_ratio DESC, c_customer_sk, c_first_name, c_last_name, c_preferred_cust_flag, c_birth_country, c_login
LIMIT $limit
