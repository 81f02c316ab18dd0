-- gpu-bdb q16 · What did web sales less refunds come to before and after a day, by warehouse state and item?
-- Reads   web_sales, web_returns, date_dim, item, warehouse
-- Knobs   $date, $from_date, $to_date (both inclusive), $limit
-- Ties    none: groups are distinct. An item may be on an order, and come back, more than once: rows multiply.
WITH days AS (
    SELECT d_date_sk, d_date < $date AS is_before
    FROM date_dim
    WHERE d_date BETWEEN $from_date AND $to_date
)
SELECT
    w_state,
    i_item_id,
    sum(CASE WHEN is_before THEN ws_sales_price - coalesce(wr_refunded_cash, 0) ELSE 0.0 END) AS sales_before,
    sum(CASE WHEN is_before THEN 0.0 ELSE ws_sales_price - coalesce(wr_refunded_cash, 0) END) AS sales_after
FROM web_sales
JOIN days ON ws_sold_date_sk = d_date_sk
LEFT JOIN web_returns ON ws_order_number = wr_order_number AND ws_item_sk = wr_item_sk
JOIN item ON i_item_sk = ws_item_sk
JOIN warehouse ON w_warehouse_sk = ws_warehouse_sk
GROUP BY w_state, i_item_id
ORDER BY w_state, i_item_id
LIMIT $limit
