-- gpu-bdb q30 in plain SQL, with the default parameters. Click sessions by LAG and a running sum over peers; pairs by a self join.
WITH
clicks AS (
  SELECT wcs_user_sk AS usr, i_category_id AS cat,
         wcs_click_date_sk * 86400 + wcs_click_time_sk AS ts
  FROM web_clickstreams JOIN item ON wcs_item_sk = i_item_sk WHERE i_category_id IS NOT NULL AND wcs_user_sk IS NOT NULL),
gaps AS (
  SELECT *, CASE WHEN ts - LAG(ts) OVER (PARTITION BY usr ORDER BY ts) > 3600 THEN 1 ELSE 0 END AS brk
  FROM clicks),
sess AS (
  SELECT *, SUM(brk) OVER (PARTITION BY usr ORDER BY ts RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS sid
  FROM gaps),
seen AS (SELECT DISTINCT usr, sid, cat FROM sess)
SELECT CAST(a.cat AS BIGINT) AS category_id_1, CAST(b.cat AS BIGINT) AS category_id_2, COUNT(*) AS cnt
FROM seen a JOIN seen b ON a.usr = b.usr AND a.sid = b.sid AND a.cat < b.cat
GROUP BY a.cat, b.cat ORDER BY cnt DESC, category_id_1, category_id_2 LIMIT 40
