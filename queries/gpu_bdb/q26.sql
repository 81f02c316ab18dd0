-- gpu-bdb q26 · Which kinds of readers are there, by the classes of books that they buy?
-- Reads   store_sales, item
-- Knobs   $category, $min_count (more than), $clusters, $iterations, $restarts, $seed
-- Ties    of distances: the first cluster
CREATE TABLE q26_customers AS
SELECT
    ss_customer_sk AS cid,
    CAST(count(*) FILTER (WHERE i_class_id = 1) AS DOUBLE) AS id1,
    CAST(count(*) FILTER (WHERE i_class_id = 2) AS DOUBLE) AS id2,
    CAST(count(*) FILTER (WHERE i_class_id = 3) AS DOUBLE) AS id3,
    CAST(count(*) FILTER (WHERE i_class_id = 4) AS DOUBLE) AS id4,
    CAST(count(*) FILTER (WHERE i_class_id = 5) AS DOUBLE) AS id5,
    CAST(count(*) FILTER (WHERE i_class_id = 6) AS DOUBLE) AS id6,
    CAST(count(*) FILTER (WHERE i_class_id = 7) AS DOUBLE) AS id7,
    CAST(count(*) FILTER (WHERE i_class_id = 8) AS DOUBLE) AS id8,
    CAST(count(*) FILTER (WHERE i_class_id = 9) AS DOUBLE) AS id9,
    CAST(count(*) FILTER (WHERE i_class_id = 10) AS DOUBLE) AS id10,
    CAST(count(*) FILTER (WHERE i_class_id = 11) AS DOUBLE) AS id11,
    CAST(count(*) FILTER (WHERE i_class_id = 12) AS DOUBLE) AS id12,
    CAST(count(*) FILTER (WHERE i_class_id = 13) AS DOUBLE) AS id13,
    CAST(count(*) FILTER (WHERE i_class_id = 14) AS DOUBLE) AS id14,
    CAST(count(*) FILTER (WHERE i_class_id = 15) AS DOUBLE) AS id15
FROM store_sales
JOIN item ON ss_item_sk = i_item_sk
WHERE i_category = $category AND ss_customer_sk IS NOT NULL
GROUP BY ss_customer_sk
HAVING count(ss_item_sk) > $min_count;

CREATE TABLE q26_clusters AS
SELECT *
FROM kmeans_centers(
    'q26_customers',
    'cid',
    [
        'id1', 'id2', 'id3', 'id4', 'id5', 'id6', 'id7', 'id8',
        'id9', 'id10', 'id11', 'id12', 'id13', 'id14', 'id15'
    ],
    $clusters,
    $iterations,
    $restarts,
    $seed
);

SELECT cid, label
FROM kmeans_predict(
    'q26_customers',
    'cid',
    [
        'id1', 'id2', 'id3', 'id4', 'id5', 'id6', 'id7', 'id8',
        'id9', 'id10', 'id11', 'id12', 'id13', 'id14', 'id15'
    ],
    'q26_clusters'
)
ORDER BY cid
