-- gpu-bdb q19 in plain SQL, with the default parameters. Sentences and words by replace and string_to_array.
WITH wk AS (
  SELECT DISTINCT a.d_date_sk FROM date_dim a JOIN date_dim b ON a.d_week_seq = b.d_week_seq
  WHERE b.d_date IN ('2004-03-08','2004-08-02','2004-11-15','2004-12-20')),
sr AS (
  SELECT sr_item_sk AS itm, SUM(sr_return_quantity) AS q FROM store_returns
  WHERE sr_returned_date_sk IN (SELECT d_date_sk FROM wk)
  GROUP BY sr_item_sk HAVING SUM(sr_return_quantity) > 0),
wr AS (
  SELECT wr_item_sk AS itm, SUM(wr_return_quantity) AS q FROM web_returns
  WHERE wr_returned_date_sk IN (SELECT d_date_sk FROM wk)
  GROUP BY wr_item_sk HAVING SUM(wr_return_quantity) > 0),
pick AS (
  SELECT sr.itm FROM sr JOIN wr ON sr.itm = wr.itm
  WHERE ABS(CAST(sr.q - wr.q AS DOUBLE) / (CAST(sr.q + wr.q AS DOUBLE) / 2.0)) <= 0.1),
sent AS (
  SELECT pr_item_sk,
    UNNEST(string_to_array(replace(replace(replace(lower(pr_review_content), '.', 'è'), '?', 'è'), '!', 'è'), 'è')) AS sentence
  FROM product_reviews JOIN pick ON pr_item_sk = itm WHERE pr_review_content IS NOT NULL),
wordt AS (
  SELECT pr_item_sk, sentence, UNNEST(string_to_array(btrim(
      replace(replace(replace(replace(replace(sentence, '.', ''), ',', ''), ';', ''), '-', ''), '"', '')), ' ')) AS word
  FROM sent WHERE sentence <> '')
SELECT pr_item_sk AS item_sk, sentence AS review_sentence, 'NEG' AS sentiment, wordt.word AS sentiment_word
FROM wordt JOIN sentiment_words l ON l.word = wordt.word AND l.sentiment = 'NEG'
ORDER BY item_sk, review_sentence, sentiment_word
