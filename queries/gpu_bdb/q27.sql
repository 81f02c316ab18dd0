-- gpu-bdb q27 · Which companies are named in the reviews of an item?
-- Reads   product_reviews
-- Knobs   $item
-- Ties    none: rows that tie are equal. One row for each name.
WITH found AS (
    SELECT pr_review_sk, pr_item_sk, unnest(company_mentions(pr_review_content)) AS hit
    FROM product_reviews
    WHERE pr_item_sk = $item
)
SELECT
    pr_review_sk AS review_sk,
    pr_item_sk AS item_sk,
    hit['company'] AS company_name,
    hit['sentence'] AS review_sentence
FROM found
ORDER BY review_sk, item_sk, company_name, review_sentence
