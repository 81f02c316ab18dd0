-- gpu-bdb q07 · In which states do people buy things that are dear for their category?
-- Reads   item, store_sales, date_dim, customer, customer_address
-- Knobs   $price_ratio (to the category's average), $year, $month, $min_count, $limit
-- Ties    broken by the state
WITH pricey AS (
    SELECT i_item_sk
    FROM item
    JOIN (SELECT i_category AS category, avg(i_current_price) AS avg_price FROM item GROUP BY i_category)
        ON category = i_category
    WHERE i_current_price > avg_price * $price_ratio
)
SELECT ca_state, count(*) AS cnt
FROM store_sales
JOIN date_dim ON ss_sold_date_sk = d_date_sk
JOIN pricey ON i_item_sk = ss_item_sk
JOIN customer ON c_customer_sk = ss_customer_sk
JOIN customer_address ON ca_address_sk = c_current_addr_sk
WHERE d_year = $year AND d_moy = $month AND ca_state IS NOT NULL
GROUP BY ca_state
HAVING count(*) >= $min_count
ORDER BY cnt DESC, ca_state
LIMIT $limit
