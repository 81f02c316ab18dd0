-- gpu-bdb q15 · Which categories have flat or falling sales in a store?
-- Reads   store_sales, item, date_dim
-- Knobs   $store, $from_date, $to_date (both inclusive)
-- Ties    none: categories are distinct
WITH daily AS (
    SELECT
        i_category_id AS cat,
        CAST(ss_sold_date_sk AS DOUBLE) AS day,
        CAST(sum(ss_net_paid) AS DOUBLE) AS paid
    FROM store_sales
    JOIN item ON ss_item_sk = i_item_sk
    JOIN date_dim ON ss_sold_date_sk = d_date_sk
    WHERE ss_store_sk = $store AND i_category_id IS NOT NULL AND d_date BETWEEN $from_date AND $to_date
    GROUP BY i_category_id, ss_sold_date_sk
), fitted AS (
    SELECT cat, regr_slope(paid, day) AS slope, regr_intercept(paid, day) AS intercept
    FROM daily
    GROUP BY cat
)
SELECT cat, slope, intercept
FROM fitted
WHERE slope <= 0
ORDER BY cat
