-- gpu-bdb q30 · Which categories are looked at together in click sessions?
-- Reads   web_clickstreams, item
-- Knobs   $session_gap, $limit
-- Ties    broken by both category ids
CREATE VIEW q30_clicks AS
SELECT
    wcs_user_sk AS user_sk,
    i_category_id AS category_id,
    wcs_click_date_sk * 86400 + wcs_click_time_sk AS clicked_at
FROM web_clickstreams
JOIN item ON wcs_item_sk = i_item_sk
WHERE i_category_id IS NOT NULL AND wcs_user_sk IS NOT NULL;

CREATE VIEW q30_sessions AS
SELECT user_sk, session_id, category_id
FROM sessionize('q30_clicks', 'user_sk', 'clicked_at', $session_gap);

SELECT
    CAST(category_id_1 AS BIGINT) AS category_id_1,
    CAST(category_id_2 AS BIGINT) AS category_id_2,
    count(*) AS cnt
FROM basket_pairs('q30_sessions', ['user_sk', 'session_id'], 'category_id')
GROUP BY category_id_1, category_id_2
ORDER BY cnt DESC, category_id_1, category_id_2
LIMIT $limit
