-- gpu-bdb q22 · Where did the stock of some items stay much the same over a price change?
-- Reads   inventory, item, warehouse, date_dim
-- Knobs   $date, $from_date, $to_date, $min_price, $max_price, $min_ratio, $max_ratio (all inclusive), $limit
-- Ties    none: groups are distinct
WITH days AS (
    SELECT d_date_sk, d_date < $date AS is_before
    FROM date_dim
    WHERE d_date BETWEEN $from_date AND $to_date
), stock AS (
    SELECT
        w_warehouse_name,
        i_item_id,
        sum(CASE WHEN is_before THEN inv_quantity_on_hand ELSE 0 END) AS inv_before,
        sum(CASE WHEN is_before THEN 0 ELSE inv_quantity_on_hand END) AS inv_after
    FROM inventory
    JOIN item ON i_item_sk = inv_item_sk
    JOIN warehouse ON w_warehouse_sk = inv_warehouse_sk
    JOIN days ON d_date_sk = inv_date_sk
    WHERE i_current_price BETWEEN $min_price AND $max_price
    GROUP BY w_warehouse_name, i_item_id
)
SELECT w_warehouse_name, i_item_id, inv_before, inv_after
FROM stock
WHERE inv_before > 0 AND CAST(inv_after AS DOUBLE) / inv_before BETWEEN $min_ratio AND $max_ratio
ORDER BY w_warehouse_name, i_item_id
LIMIT $limit
