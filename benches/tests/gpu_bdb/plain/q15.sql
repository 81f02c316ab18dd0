-- gpu-bdb q15 in plain SQL, with the default parameters. Slopes by sums.
WITH daily AS (
  SELECT i_category_id AS cat, CAST(ss_sold_date_sk AS DOUBLE) AS x, CAST(SUM(ss_net_paid) AS DOUBLE) AS y
  FROM store_sales JOIN item ON ss_item_sk = i_item_sk JOIN date_dim ON ss_sold_date_sk = d_date_sk
  WHERE ss_store_sk = 10 AND i_category_id IS NOT NULL AND d_date BETWEEN '2001-09-02' AND '2002-09-02'
  GROUP BY i_category_id, ss_sold_date_sk),
fit AS (
  SELECT cat, COUNT(*) AS n, SUM(x) AS sx, SUM(y) AS sy, SUM(x * y) AS sxy, SUM(x * x) AS sxx FROM daily GROUP BY cat),
line AS (SELECT cat, n, sx, sy, (n * sxy - sx * sy) / NULLIF(n * sxx - sx * sx, 0) AS slope FROM fit)
SELECT cat, slope, (sy - slope * sx) / n AS intercept FROM line WHERE slope <= 0 ORDER BY cat
