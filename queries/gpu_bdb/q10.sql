-- gpu-bdb q10 · Which words of praise and blame are in the reviews, and in which sentences?
-- Reads   product_reviews
-- Knobs   none
-- Ties    none: rows that tie are equal
WITH found AS (
    SELECT pr_item_sk, unnest(sentiment_hits(pr_review_content)) AS hit
    FROM product_reviews
    WHERE pr_review_content IS NOT NULL
)
SELECT
    pr_item_sk AS item_sk,
    hit['sentence'] AS review_sentence,
    hit['sentiment'] AS sentiment,
    hit['word'] AS sentiment_word
FROM found
ORDER BY item_sk, review_sentence, sentiment, sentiment_word
