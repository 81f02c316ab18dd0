-- gpu-bdb q12 · Who looked at things of some categories on the web and bought such things in a store later?
-- Reads   web_clickstreams, item, store_sales
-- Knobs   $first_day (key), $view_days, $purchase_days (after it, inclusive), $categories
-- Ties    none: users are distinct
WITH viewed AS (
    SELECT DISTINCT wcs_user_sk AS user_sk, wcs_click_date_sk AS day
    FROM web_clickstreams
    JOIN item ON wcs_item_sk = i_item_sk
    WHERE wcs_click_date_sk BETWEEN $first_day AND $first_day + $view_days
        AND i_category IN ($categories)
        AND wcs_user_sk IS NOT NULL
        AND wcs_sales_sk IS NULL
), bought AS (
    SELECT DISTINCT ss_customer_sk AS user_sk, ss_sold_date_sk AS day
    FROM store_sales
    JOIN item ON ss_item_sk = i_item_sk
    WHERE ss_sold_date_sk BETWEEN $first_day AND $first_day + $purchase_days
        AND i_category IN ($categories)
        AND ss_customer_sk IS NOT NULL
)
SELECT DISTINCT viewed.user_sk AS wcs_user_sk
FROM viewed
JOIN bought ON viewed.user_sk = bought.user_sk AND viewed.day < bought.day
ORDER BY wcs_user_sk
