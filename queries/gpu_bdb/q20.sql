-- gpu-bdb q20 · Which kinds of customers are there, by how they return what they buy?
-- Reads   store_sales, store_returns
-- Knobs   $clusters, $iterations, $restarts, $seed
-- Ties    of distances: the first cluster. Customers who never bought are left out; what cannot be divided is 0.
CREATE TABLE q20_customers AS
WITH orders AS (
    SELECT
        ss_customer_sk AS user_sk,
        CAST(count(DISTINCT ss_ticket_number) AS DOUBLE) AS tickets,
        CAST(count(ss_item_sk) AS DOUBLE) AS items,
        CAST(sum(ss_net_paid) AS DOUBLE) AS money
    FROM store_sales
    GROUP BY ss_customer_sk
), returns AS (
    SELECT
        sr_customer_sk AS user_sk,
        CAST(count(DISTINCT sr_ticket_number) AS DOUBLE) AS tickets,
        CAST(count(sr_item_sk) AS DOUBLE) AS items,
        CAST(sum(sr_return_amt) AS DOUBLE) AS money
    FROM store_returns
    GROUP BY sr_customer_sk
)
SELECT
    orders.user_sk,
    round(coalesce(returns.tickets / nullif(orders.tickets, 0), 0.0), 7) AS order_ratio,
    round(coalesce(returns.items / nullif(orders.items, 0), 0.0), 7) AS items_ratio,
    round(coalesce(returns.money / nullif(orders.money, 0), 0.0), 7) AS monetary_ratio,
    round(coalesce(returns.tickets, 0.0), 0) AS frequency
FROM orders
LEFT JOIN returns ON orders.user_sk = returns.user_sk;

CREATE TABLE q20_clusters AS
SELECT *
FROM kmeans_centers(
    'q20_customers',
    'user_sk',
    ['order_ratio', 'items_ratio', 'monetary_ratio', 'frequency'],
    $clusters,
    $iterations,
    $restarts,
    $seed
);

SELECT user_sk, label
FROM kmeans_predict(
    'q20_customers',
    'user_sk',
    ['order_ratio', 'items_ratio', 'monetary_ratio', 'frequency'],
    'q20_clusters'
)
ORDER BY user_sk
