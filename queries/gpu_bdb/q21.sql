-- gpu-bdb q21 · What was bought in a store, returned, and bought again on the web by the same customer?
-- Reads   store_sales, store_returns, web_sales, date_dim, store, item
-- Knobs   $year, $month (sold), $return_months (the first so many of the year), $web_years (from that year), $limit
-- Ties    none: groups are distinct. Rows that match more than once count more than once.
WITH returned AS (
    SELECT sr_item_sk, sr_customer_sk, sr_ticket_number, sr_return_quantity
    FROM store_returns
    JOIN date_dim ON sr_returned_date_sk = d_date_sk
    WHERE d_year = $year AND d_moy BETWEEN 1 AND $return_months
), web AS (
    SELECT ws_item_sk, ws_bill_customer_sk, ws_quantity
    FROM web_sales
    JOIN date_dim ON ws_sold_date_sk = d_date_sk
    WHERE d_year BETWEEN $year AND $year + $web_years - 1
), sold AS (
    SELECT ss_item_sk, ss_store_sk, ss_customer_sk, ss_ticket_number, ss_quantity
    FROM store_sales
    JOIN date_dim ON ss_sold_date_sk = d_date_sk
    WHERE d_year = $year AND d_moy = $month
)
SELECT
    i_item_id,
    btrim(i_item_desc) AS i_item_desc,
    s_store_id,
    s_store_name,
    CAST(sum(ss_quantity) AS BIGINT) AS store_sales_quantity,
    CAST(sum(sr_return_quantity) AS BIGINT) AS store_returns_quantity,
    CAST(sum(ws_quantity) AS BIGINT) AS web_sales_quantity
FROM sold
JOIN returned
    ON ss_ticket_number = sr_ticket_number AND ss_item_sk = sr_item_sk AND ss_customer_sk = sr_customer_sk
JOIN web ON sr_item_sk = ws_item_sk AND sr_customer_sk = ws_bill_customer_sk
JOIN store ON s_store_sk = ss_store_sk
JOIN item ON i_item_sk = ss_item_sk
GROUP BY i_item_id, i_item_desc, s_store_id, s_store_name
ORDER BY i_item_id, i_item_desc, s_store_id, s_store_name
LIMIT $limit
