-- gpu-bdb q10 in plain SQL, with the default parameters. Sentences and words by replace and string_to_array.
WITH
sent AS (
  SELECT pr_item_sk,
    UNNEST(string_to_array(replace(replace(replace(lower(pr_review_content), '.', 'è'), '?', 'è'), '!', 'è'), 'è')) AS sentence
  FROM product_reviews WHERE pr_review_content IS NOT NULL),
wordt AS (
  SELECT pr_item_sk, sentence, UNNEST(string_to_array(btrim(
      replace(replace(replace(replace(replace(sentence, '.', ''), ',', ''), ';', ''), '-', ''), '"', '')), ' ')) AS word
  FROM sent WHERE sentence <> '')
SELECT pr_item_sk AS item_sk, sentence AS review_sentence, sentiment, wordt.word AS sentiment_word
FROM wordt JOIN sentiment_words l ON l.word = wordt.word
ORDER BY item_sk, review_sentence, sentiment, sentiment_word
