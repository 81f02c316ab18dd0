-- gpu-bdb q29 · Which categories are bought together in web orders?
-- Reads   web_sales, item
-- Knobs   $limit
-- Ties    broken by both category ids
WITH basket AS (
    SELECT DISTINCT ws_order_number AS order_number, i_category_id AS category_id
    FROM web_sales
    JOIN item ON ws_item_sk = i_item_sk
    WHERE i_category_id IS NOT NULL
)
SELECT
    CAST(a.category_id AS BIGINT) AS category_id_1,
    CAST(b.category_id AS BIGINT) AS category_id_2,
    count(*) AS cnt
FROM basket AS a
JOIN basket AS b ON a.order_number = b.order_number AND a.category_id < b.category_id
GROUP BY a.category_id, b.category_id
ORDER BY cnt DESC, category_id_1, category_id_2
LIMIT $limit
