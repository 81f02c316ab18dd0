-- gpu-bdb q18 in plain SQL, with the default parameters. Slopes by sums; sentences and words by replace and string_to_array.
WITH daily AS (
  SELECT ss_store_sk, CAST(ss_sold_date_sk AS DOUBLE) AS x, CAST(SUM(ss_net_paid) AS DOUBLE) AS y
  FROM store_sales
  WHERE ss_sold_date_sk IN (SELECT d_date_sk FROM date_dim WHERE d_date BETWEEN '2001-05-02' AND '2001-09-02')
  GROUP BY ss_store_sk, ss_sold_date_sk),
slopes AS (
  SELECT ss_store_sk,
    (COUNT(*) * SUM(x * y) - SUM(x) * SUM(y)) / NULLIF(COUNT(*) * SUM(x * x) - SUM(x) * SUM(x), 0) AS slope
  FROM daily GROUP BY ss_store_sk),
bad_store AS (
  SELECT CAST(s_store_sk AS VARCHAR) || '_' || s_store_name AS store_id, lower(s_store_name) AS lname
  FROM store JOIN slopes ON s_store_sk = ss_store_sk WHERE slope <= 0),
hit AS (
  SELECT store_id, pr_review_date, pr_review_content FROM product_reviews CROSS JOIN bad_store
  WHERE pr_review_content IS NOT NULL AND strpos(lower(pr_review_content), lname) > 0),
sent AS (
  SELECT store_id, pr_review_date,
    UNNEST(string_to_array(replace(replace(replace(pr_review_content, '. ', 'è'), '? ', 'è'), '! ', 'è'), 'è')) AS sentence
  FROM hit),
wordt AS (
  SELECT store_id, pr_review_date, sentence, UNNEST(string_to_array(btrim(
      replace(replace(replace(replace(replace(sentence, '.', ''), ',', ''), ';', ''), '-', ''), '"', '')), ' ')) AS word
  FROM sent WHERE sentence <> '')
SELECT store_id AS s_name, pr_review_date AS r_date, sentence AS r_sentence, 'NEG' AS sentiment, wordt.word AS sentiment_word
FROM wordt JOIN sentiment_words l ON l.word = wordt.word AND l.sentiment = 'NEG'
ORDER BY s_name, r_date, r_sentence, sentiment_word
