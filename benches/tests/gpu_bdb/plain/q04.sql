-- gpu-bdb q04 in plain SQL, with the default parameters. Click sessions by LAG and a running sum over peers.
WITH
clicks AS (
  SELECT wcs_user_sk AS usr, wp_type,
         wcs_click_date_sk * 86400 + wcs_click_time_sk AS ts
  FROM web_clickstreams JOIN web_page ON wcs_web_page_sk = wp_web_page_sk WHERE wcs_user_sk IS NOT NULL AND wcs_sales_sk IS NULL),
gaps AS (
  SELECT *, CASE WHEN ts - LAG(ts) OVER (PARTITION BY usr ORDER BY ts) > 3600 THEN 1 ELSE 0 END AS brk
  FROM clicks),
sess AS (
  SELECT *, SUM(brk) OVER (PARTITION BY usr ORDER BY ts RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS sid
  FROM gaps),
per AS (
  SELECT usr, sid, COUNT(*) AS pages,
         MAX(CASE wp_type WHEN 'order' THEN ts * 2 + 1 WHEN 'dynamic' THEN ts * 2 END) AS last_mark
  FROM sess GROUP BY usr, sid)
SELECT CAST(SUM(pages) AS DOUBLE) / COUNT(*) AS avg_pages FROM per WHERE last_mark % 2 = 0
