-- gpu-bdb q14 · How do web sales in the morning compare with those in the evening?
-- Reads   web_sales, household_demographics, web_page, time_dim
-- Knobs   $dependents (of the household it is shipped to), $min_chars, $max_chars, $morning, $evening (hours)
-- Ties    none: one row; -1 when nothing was sold in the evening
WITH sold AS (
    SELECT t_hour
    FROM web_sales
    JOIN household_demographics ON hd_demo_sk = ws_ship_hdemo_sk
    JOIN web_page ON wp_web_page_sk = ws_web_page_sk
    JOIN time_dim ON t_time_sk = ws_sold_time_sk
    WHERE hd_dep_count = $dependents
        AND wp_char_count BETWEEN $min_chars AND $max_chars
        AND (t_hour IN ($morning) OR t_hour IN ($evening))
)
SELECT CASE WHEN evening > 0 THEN CAST(morning AS DOUBLE) / evening ELSE -1.0 END AS am_pm_ratio
FROM (
    SELECT
        count(*) FILTER (WHERE t_hour IN ($morning)) AS morning,
        count(*) FILTER (WHERE t_hour IN ($evening)) AS evening
    FROM sold
)
