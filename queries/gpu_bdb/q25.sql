-- gpu-bdb q25 · Which kinds of customers are there, by recency, frequency and amount?
-- Reads   store_sales, web_sales, date_dim
-- Knobs   $after_date (exclusive), $reference_day (key), $recent_days, $clusters, $iterations, $restarts, $seed
-- Ties    of distances: the first cluster. Later days than the reference day are recent.
CREATE TABLE q25_customers AS
WITH spent AS (
    SELECT
        ss_customer_sk AS customer_sk,
        count(DISTINCT ss_ticket_number) AS orders,
        max(ss_sold_date_sk) AS last_day,
        sum(ss_net_paid) AS amount
    FROM store_sales
    JOIN date_dim ON ss_sold_date_sk = d_date_sk
    WHERE d_date > $after_date AND ss_customer_sk IS NOT NULL
    GROUP BY ss_customer_sk
    UNION ALL
    SELECT
        ws_bill_customer_sk AS customer_sk,
        count(DISTINCT ws_order_number) AS orders,
        max(ws_sold_date_sk) AS last_day,
        sum(ws_net_paid) AS amount
    FROM web_sales
    JOIN date_dim ON ws_sold_date_sk = d_date_sk
    WHERE d_date > $after_date AND ws_bill_customer_sk IS NOT NULL
    GROUP BY ws_bill_customer_sk
)
SELECT
    customer_sk AS cid,
    CASE WHEN $reference_day - max(last_day) < $recent_days THEN 1.0 ELSE 0.0 END AS recency,
    CAST(sum(orders) AS BIGINT) AS frequency,
    CAST(sum(amount) AS DOUBLE) AS amount
FROM spent
GROUP BY customer_sk;

CREATE TABLE q25_clusters AS
SELECT *
FROM kmeans_centers(
    'q25_customers',
    'cid',
    ['recency', 'frequency', 'amount'],
    $clusters,
    $iterations,
    $restarts,
    $seed
);

SELECT cid, label
FROM kmeans_predict(
    'q25_customers',
    'cid',
    ['recency', 'frequency', 'amount'],
    'q25_clusters'
)
ORDER BY cid
