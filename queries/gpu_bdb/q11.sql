-- gpu-bdb q11 · Do items with many reviews have better ones?
-- Reads   product_reviews, web_sales, date_dim
-- Knobs   $from_date, $to_date (of web sales, both inclusive)
-- Ties    none: one row
WITH reviewed AS (
    SELECT
        pr_item_sk,
        CAST(count(*) AS DOUBLE) AS reviews_count,
        avg(CAST(pr_review_rating AS DOUBLE)) AS avg_rating
    FROM product_reviews
    WHERE pr_item_sk IS NOT NULL
    GROUP BY pr_item_sk
), sold AS (
    SELECT DISTINCT ws_item_sk
    FROM web_sales
    JOIN date_dim ON ws_sold_date_sk = d_date_sk
    WHERE d_date BETWEEN $from_date AND $to_date AND ws_item_sk IS NOT NULL
)
SELECT corr(reviews_count, avg_rating) AS corr
FROM reviewed
JOIN sold ON pr_item_sk = ws_item_sk
