-- gpu-bdb q01 · Which items of certain categories are often bought on the same ticket in certain stores?
-- Reads   store_sales, item
-- Knobs   $categories, $stores, $min_count (more than), $limit
-- Ties    broken by both item keys, as numbers
WITH basket AS (
    SELECT DISTINCT ss_ticket_number AS ticket, ss_item_sk AS item_sk
    FROM store_sales
    JOIN item ON i_item_sk = ss_item_sk
    WHERE i_category_id IN ($categories) AND ss_store_sk IN ($stores)
)
SELECT a.item_sk AS item_sk_1, b.item_sk AS item_sk_2, count(*) AS cnt
FROM basket AS a
JOIN basket AS b ON a.ticket = b.ticket AND a.item_sk < b.item_sk
GROUP BY a.item_sk, b.item_sk
HAVING count(*) > $min_count
ORDER BY cnt DESC, item_sk_1, item_sk_2
LIMIT $limit
