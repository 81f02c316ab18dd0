-- gpu-bdb q18 · What is said against stores whose sales are flat or falling?
-- Reads   store_sales, date_dim, store, product_reviews
-- Knobs   $from_date, $to_date (of sales, both inclusive)
-- Ties    none: rows that tie are equal. A review is about every store whose name is anywhere in it, also inside a word.
WITH daily AS (
    SELECT ss_store_sk, CAST(ss_sold_date_sk AS DOUBLE) AS day, CAST(sum(ss_net_paid) AS DOUBLE) AS paid
    FROM store_sales
    WHERE ss_sold_date_sk IN (SELECT d_date_sk FROM date_dim WHERE d_date BETWEEN $from_date AND $to_date)
    GROUP BY ss_store_sk, ss_sold_date_sk
), slopes AS (
    SELECT ss_store_sk, regr_slope(paid, day) AS slope
    FROM daily
    GROUP BY ss_store_sk
), falling AS (
    SELECT CAST(s_store_sk AS VARCHAR) || '_' || s_store_name AS s_name, lower(s_store_name) AS lower_name
    FROM store
    JOIN slopes ON s_store_sk = ss_store_sk
    WHERE slope <= 0
), about AS (
    SELECT s_name, pr_review_date, pr_review_content
    FROM product_reviews
    JOIN falling ON strpos(lower(pr_review_content), lower_name) > 0
    WHERE pr_review_content IS NOT NULL
), found AS (
    SELECT s_name, pr_review_date, unnest(sentiment_hits(pr_review_content, 'spaced', 'NEG')) AS hit
    FROM about
)
SELECT
    s_name,
    pr_review_date AS r_date,
    hit['sentence'] AS r_sentence,
    hit['sentiment'] AS sentiment,
    hit['word'] AS sentiment_word
FROM found
ORDER BY s_name, r_date, r_sentence, sentiment_word
