-- gpu-bdb q24 · How do an item's sales answer to competitors' prices?
-- Reads   item, item_marketprices, web_sales, store_sales
-- Knobs   $item
-- Ties    none: one row. Competitors' prices without an end count as no sales; a zero denominator drops its row.
WITH competitors AS (
    SELECT
        i_item_sk,
        imp_sk,
        CAST(imp_competitor_price - i_current_price AS DOUBLE) / CAST(i_current_price AS DOUBLE) AS price_change,
        imp_start_date AS start_day,
        imp_end_date - imp_start_date AS days
    FROM item
    JOIN item_marketprices ON i_item_sk = imp_item_sk
    WHERE i_item_sk = $item
), web AS (
    SELECT
        ws_item_sk AS item_sk,
        imp_sk,
        price_change,
        sum(CASE WHEN ws_sold_date_sk >= start_day AND ws_sold_date_sk < start_day + days THEN ws_quantity ELSE 0 END)
            AS current_quantity,
        sum(CASE WHEN ws_sold_date_sk >= start_day - days AND ws_sold_date_sk < start_day THEN ws_quantity ELSE 0 END)
            AS previous_quantity
    FROM web_sales
    JOIN competitors ON ws_item_sk = i_item_sk
    GROUP BY ws_item_sk, imp_sk, price_change
), store AS (
    SELECT
        ss_item_sk AS item_sk,
        imp_sk,
        price_change,
        sum(CASE WHEN ss_sold_date_sk >= start_day AND ss_sold_date_sk < start_day + days THEN ss_quantity ELSE 0 END)
            AS current_quantity,
        sum(CASE WHEN ss_sold_date_sk >= start_day - days AND ss_sold_date_sk < start_day THEN ss_quantity ELSE 0 END)
            AS previous_quantity
    FROM store_sales
    JOIN competitors ON ss_item_sk = i_item_sk
    GROUP BY ss_item_sk, imp_sk, price_change
)
SELECT
    web.item_sk AS ws_item_sk,
    avg(
        CAST(
            store.current_quantity + web.current_quantity - store.previous_quantity - web.previous_quantity AS DOUBLE
        ) / nullif((store.previous_quantity + web.previous_quantity) * web.price_change, 0.0)
    ) AS cross_price_elasticity
FROM web
JOIN store ON web.item_sk = store.item_sk AND web.imp_sk = store.imp_sk
GROUP BY web.item_sk
