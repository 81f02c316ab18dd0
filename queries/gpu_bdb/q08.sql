-- gpu-bdb q08 · How much is sold on the web with, and without, a review read shortly before?
-- Reads   web_clickstreams, web_page, web_sales, date_dim
-- Knobs   $from_date, $to_date (both inclusive), $seconds (at most so long before), $review (page type)
-- Ties    clicks of a user by time, then sale (none first), then page type
WITH days AS (
    SELECT min(d_date_sk) AS first_day, max(d_date_sk) AS last_day
    FROM date_dim
    WHERE d_date BETWEEN $from_date AND $to_date
), clicks AS (
    SELECT
        wcs_user_sk AS user_sk,
        wcs_sales_sk AS sale,
        wp_type,
        wcs_click_date_sk * 86400 + wcs_click_time_sk AS clicked_at
    FROM web_clickstreams
    JOIN web_page ON wcs_web_page_sk = wp_web_page_sk
    CROSS JOIN days
    WHERE wcs_user_sk IS NOT NULL AND wcs_click_date_sk BETWEEN first_day AND last_day
), walked AS (
    SELECT
        sale,
        wp_type,
        clicked_at,
        max(CASE WHEN wp_type = $review THEN clicked_at END) OVER (
            PARTITION BY user_sk
            ORDER BY clicked_at, coalesce(sale, 0), wp_type
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS last_review
    FROM clicks
), reviewed AS (
    SELECT DISTINCT sale
    FROM walked
    WHERE sale IS NOT NULL AND wp_type <> $review AND clicked_at - last_review <= $seconds
), sold AS (
    SELECT sum(CASE WHEN sale IS NOT NULL THEN ws_net_paid ELSE 0 END) AS with_review, sum(ws_net_paid) AS total
    FROM web_sales
    CROSS JOIN days
    LEFT JOIN reviewed ON ws_order_number = sale
    WHERE ws_sold_date_sk BETWEEN first_day AND last_day
)
SELECT
    CAST(with_review AS BIGINT) AS q08_review_sales_amount,
    CAST(total - with_review AS BIGINT) AS no_q08_review_sales_amount
FROM sold
