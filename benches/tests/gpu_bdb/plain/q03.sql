-- gpu-bdb q03 in plain SQL, with the default parameters. The rows before a purchase by row numbers and a range join.
WITH clicks AS (
  SELECT wcs_user_sk AS usr, wcs_item_sk AS itm, wcs_sales_sk AS sale,
         wcs_click_date_sk * 86400 + wcs_click_time_sk AS ts
  FROM web_clickstreams WHERE wcs_user_sk IS NOT NULL AND wcs_item_sk IS NOT NULL),
ord AS (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY usr ORDER BY ts, COALESCE(sale, 0), itm) AS rn FROM clicks),
buy AS (SELECT usr, rn, ts FROM ord WHERE sale IS NOT NULL AND itm = 10001)
SELECT CAST(10001 AS BIGINT) AS purchased_item, v.itm AS lastviewed_item, COUNT(*) AS cnt
FROM buy p
JOIN ord v ON v.usr = p.usr AND v.rn BETWEEN p.rn - 5 AND p.rn - 1 AND v.ts >= p.ts - 864000
JOIN item i ON i.i_item_sk = v.itm AND i.i_category_id IN (2, 3)
GROUP BY v.itm ORDER BY cnt DESC, lastviewed_item LIMIT 100
