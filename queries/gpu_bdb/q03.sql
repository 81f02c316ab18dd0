-- gpu-bdb q03 · What was looked at in the last clicks before an item was bought online?
-- Reads   web_clickstreams, item
-- Knobs   $item, $views (clicks before the purchase), $seconds (at most so long before), $categories, $limit
-- Ties    clicks of a user by time, then sale (none first), then item; answers by item key
CREATE VIEW q03_clicks AS
SELECT
    wcs_user_sk AS user_sk,
    wcs_click_date_sk * 86400 + wcs_click_time_sk AS clicked_at,
    coalesce(wcs_sales_sk, 0) AS sale,
    wcs_item_sk AS item_sk,
    wcs_sales_sk IS NOT NULL AND wcs_item_sk = $item AS bought
FROM web_clickstreams
WHERE wcs_user_sk IS NOT NULL AND wcs_item_sk IS NOT NULL;

SELECT CAST($item AS BIGINT) AS purchased_item, viewed.item_sk AS lastviewed_item, count(*) AS cnt
FROM last_n_before('q03_clicks', 'user_sk', ['clicked_at', 'sale', 'item_sk'], 'bought', $views, $seconds) AS viewed
JOIN item ON i_item_sk = viewed.item_sk
WHERE i_category_id IN ($categories)
GROUP BY viewed.item_sk
ORDER BY cnt DESC, lastviewed_item
LIMIT $limit
