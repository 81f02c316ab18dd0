-- gpu-bdb q04 · How many pages have sessions in which a cart was filled and nothing ordered afterwards?
-- Reads   web_clickstreams, web_page
-- Knobs   $session_gap, $cart, $order (page types)
-- Ties    of the last cart and order pages: the order page counts as later, so that the session is not abandoned
CREATE VIEW q04_clicks AS
SELECT wcs_user_sk AS user_sk, wp_type, wcs_click_date_sk * 86400 + wcs_click_time_sk AS clicked_at
FROM web_clickstreams
JOIN web_page ON wcs_web_page_sk = wp_web_page_sk
WHERE wcs_user_sk IS NOT NULL AND wcs_sales_sk IS NULL;

-- Twice the time, plus one for an order page: the greatest says which came last.
WITH sessions AS (
    SELECT
        user_sk,
        session_id,
        count(*) AS pages,
        max(CASE wp_type WHEN $order THEN clicked_at * 2 + 1 WHEN $cart THEN clicked_at * 2 END) AS last_mark
    FROM sessionize('q04_clicks', 'user_sk', 'clicked_at', $session_gap)
    GROUP BY user_sk, session_id
)
SELECT CAST(sum(pages) AS DOUBLE) / count(*) AS avg_pages
FROM sessions
WHERE last_mark % 2 = 0
