-- gpu-bdb q02 in plain SQL, with the default parameters. Click sessions by LAG and a running sum over peers.
WITH
clicks AS (
  SELECT wcs_user_sk AS usr, wcs_item_sk AS itm,
         wcs_click_date_sk * 86400 + wcs_click_time_sk AS ts
  FROM web_clickstreams  WHERE wcs_item_sk IS NOT NULL AND wcs_user_sk IS NOT NULL),
gaps AS (
  SELECT *, CASE WHEN ts - LAG(ts) OVER (PARTITION BY usr ORDER BY ts) > 3600 THEN 1 ELSE 0 END AS brk
  FROM clicks),
sess AS (
  SELECT *, SUM(brk) OVER (PARTITION BY usr ORDER BY ts RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS sid
  FROM gaps),
seen AS (SELECT DISTINCT usr, sid, itm FROM sess)
SELECT b.itm AS item_sk_1, CAST(10001 AS BIGINT) AS item_sk_2, COUNT(*) AS cnt
FROM seen a JOIN seen b ON a.usr = b.usr AND a.sid = b.sid
WHERE a.itm = 10001 AND b.itm <> 10001
GROUP BY b.itm ORDER BY cnt DESC, item_sk_1 LIMIT 30
