-- gpu-bdb q23 · Which items have an erratic stock in two months on end?
-- Reads   inventory, date_dim
-- Knobs   $year, $month (and the one after it), $coefficient (of variation, at least)
-- Ties    none: warehouse and item are distinct
WITH monthly AS (
    SELECT
        inv_warehouse_sk,
        inv_item_sk,
        d_moy,
        avg(CAST(inv_quantity_on_hand AS DOUBLE)) AS mean,
        stddev_samp(CAST(inv_quantity_on_hand AS DOUBLE)) AS deviation
    FROM inventory
    JOIN date_dim ON inv_date_sk = d_date_sk
    WHERE d_year = $year AND d_moy IN ($month, $month + 1)
    GROUP BY inv_warehouse_sk, inv_item_sk, d_moy
), erratic AS (
    SELECT inv_warehouse_sk, inv_item_sk, d_moy, deviation / mean AS cov
    FROM monthly
    WHERE mean > 0 AND deviation / mean >= $coefficient
)
SELECT
    first.inv_warehouse_sk,
    first.inv_item_sk,
    first.d_moy,
    first.cov,
    second.d_moy AS inv2_d_moy,
    second.cov AS inv2_cov
FROM erratic AS first
JOIN erratic AS second
    ON first.inv_warehouse_sk = second.inv_warehouse_sk AND first.inv_item_sk = second.inv_item_sk
WHERE first.d_moy = $month AND second.d_moy = $month + 1
ORDER BY first.inv_warehouse_sk, first.inv_item_sk
