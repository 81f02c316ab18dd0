-- gpu-bdb q02 · Which items are most often seen in the same click session as a given item?
-- Reads   web_clickstreams
-- Knobs   $item, $session_gap (seconds; a longer pause starts a session), $limit
-- Ties    broken by the item key
CREATE VIEW q02_clicks AS
SELECT wcs_user_sk AS user_sk, wcs_item_sk AS item_sk, wcs_click_date_sk * 86400 + wcs_click_time_sk AS clicked_at
FROM web_clickstreams
WHERE wcs_item_sk IS NOT NULL AND wcs_user_sk IS NOT NULL;

-- Sessions are read twice below, and made once.
CREATE TABLE q02_seen AS
SELECT DISTINCT user_sk, session_id, item_sk
FROM sessionize('q02_clicks', 'user_sk', 'clicked_at', $session_gap);

SELECT other.item_sk AS item_sk_1, CAST($item AS BIGINT) AS item_sk_2, count(*) AS cnt
FROM q02_seen AS given
JOIN q02_seen AS other ON given.user_sk = other.user_sk AND given.session_id = other.session_id
WHERE given.item_sk = $item AND other.item_sk <> $item
GROUP BY other.item_sk
ORDER BY cnt DESC, item_sk_1
LIMIT $limit
