-- gpu-bdb q17 · Which share of a month's store sales was promoted?
-- Reads   store_sales, item, store, date_dim, customer, customer_address, promotion
-- Knobs   $gmt_offset (of store and customer), $year, $month, $categories
-- Ties    none: one row; 0 percent when nothing was sold
WITH sold AS (
    SELECT
        ss_ext_sales_price AS amount,
        coalesce(p_channel_dmail = 'Y', false)
            OR coalesce(p_channel_email = 'Y', false)
            OR coalesce(p_channel_tv = 'Y', false) AS promoted
    FROM store_sales
    JOIN promotion ON ss_promo_sk = p_promo_sk
    WHERE ss_sold_date_sk IN (SELECT d_date_sk FROM date_dim WHERE d_year = $year AND d_moy = $month)
        AND ss_item_sk IN (SELECT i_item_sk FROM item WHERE i_category IN ($categories))
        AND ss_store_sk IN (SELECT s_store_sk FROM store WHERE s_gmt_offset = $gmt_offset)
        AND ss_customer_sk IN (
            SELECT c_customer_sk
            FROM customer
            JOIN customer_address ON c_current_addr_sk = ca_address_sk
            WHERE ca_gmt_offset = $gmt_offset
        )
), summed AS (
    SELECT sum(CASE WHEN promoted THEN amount ELSE 0.0 END) AS promotional, sum(amount) AS total
    FROM sold
)
SELECT promotional, total, CASE WHEN total > 0 THEN 100.0 * CAST(promotional AS DOUBLE) / CAST(total AS DOUBLE) ELSE 0.0 END AS promo_percent
FROM summed
