-- gpu-bdb q28 · Does the text of a review tell its rating?
-- Reads   product_reviews
-- Knobs   $modulus (every so many-th review is for the test), $alpha (smoothing), $buckets (of hashed words and pairs of words)
-- Ties    of classes: NEG before NEUT before POS
CREATE VIEW q28_reviews AS
SELECT
    pr_review_sk,
    pr_review_content,
    CASE WHEN pr_review_rating <= 2 THEN 'NEG' WHEN pr_review_rating = 3 THEN 'NEUT' ELSE 'POS' END AS class
FROM product_reviews
WHERE pr_review_content IS NOT NULL;

CREATE VIEW q28_train AS SELECT * FROM q28_reviews WHERE pr_review_sk % $modulus <> 0;

CREATE VIEW q28_test AS SELECT * FROM q28_reviews WHERE pr_review_sk % $modulus = 0;

SELECT product_reviews.pr_review_sk, pr_review_rating, prediction
FROM naive_bayes('q28_train', 'q28_test', 'pr_review_sk', 'pr_review_content', 'class', $alpha, $buckets) AS judged
JOIN product_reviews ON judged.pr_review_sk = product_reviews.pr_review_sk
ORDER BY pr_review_sk
