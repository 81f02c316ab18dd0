-- gpu-bdb q19 · What is said against items that come back to stores and to the web alike?
-- Reads   date_dim, store_returns, web_returns, product_reviews
-- Knobs   $dates (the weeks of these days), $difference (at most, relative to the mean)
-- Ties    none: rows that tie are equal
WITH days AS (
    SELECT DISTINCT every.d_date_sk
    FROM date_dim AS every
    JOIN date_dim AS given ON every.d_week_seq = given.d_week_seq
    WHERE given.d_date IN ($dates)
), store AS (
    SELECT sr_item_sk AS item_sk, sum(sr_return_quantity) AS quantity
    FROM store_returns
    WHERE sr_returned_date_sk IN (SELECT d_date_sk FROM days)
    GROUP BY sr_item_sk
    HAVING sum(sr_return_quantity) > 0
), web AS (
    SELECT wr_item_sk AS item_sk, sum(wr_return_quantity) AS quantity
    FROM web_returns
    WHERE wr_returned_date_sk IN (SELECT d_date_sk FROM days)
    GROUP BY wr_item_sk
    HAVING sum(wr_return_quantity) > 0
), alike AS (
    SELECT store.item_sk
    FROM store
    JOIN web ON store.item_sk = web.item_sk
    WHERE abs(
        CAST(store.quantity - web.quantity AS DOUBLE) / (CAST(store.quantity + web.quantity AS DOUBLE) / 2.0)
    ) <= $difference
), found AS (
    SELECT pr_item_sk, unnest(sentiment_hits(pr_review_content, 'any_lower', 'NEG')) AS hit
    FROM product_reviews
    JOIN alike ON pr_item_sk = item_sk
    WHERE pr_review_content IS NOT NULL
)
SELECT
    pr_item_sk AS item_sk,
    hit['sentence'] AS review_sentence,
    hit['sentiment'] AS sentiment,
    hit['word'] AS sentiment_word
FROM found
ORDER BY item_sk, review_sentence, sentiment_word
