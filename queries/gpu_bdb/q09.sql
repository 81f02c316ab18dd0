-- gpu-bdb q09 · How much was sold in stores to customers of some groups, in some ranges of price and profit?
-- Reads   store_sales, date_dim, store, customer_demographics, customer_address
-- Knobs   $year, $marital_status, $education, $country, $states_1 … $states_3; bounds inclusive
-- Ties    none: one row
SELECT sum(ss_quantity) AS sum_ss_quantity
FROM store_sales
JOIN date_dim ON ss_sold_date_sk = d_date_sk
JOIN store ON s_store_sk = ss_store_sk
JOIN customer_demographics ON cd_demo_sk = ss_cdemo_sk
JOIN customer_address ON ca_address_sk = ss_addr_sk
WHERE d_year = $year
    AND cd_marital_status = $marital_status
    AND cd_education_status = $education
    AND (
        ss_sales_price BETWEEN 100 AND 150
        OR ss_sales_price BETWEEN 50 AND 200
        OR ss_sales_price BETWEEN 150 AND 200
    )
    AND ca_country = $country
    AND (
        (ca_state IN ($states_1) AND ss_net_profit BETWEEN 0 AND 2000)
        OR (ca_state IN ($states_2) AND ss_net_profit BETWEEN 150 AND 3000)
        OR (ca_state IN ($states_3) AND ss_net_profit BETWEEN 50 AND 25000)
    )
