-- gpu-bdb q05 · Do demographics and clicks per category tell who is interested in a category?
-- Reads   web_clickstreams, item, customer, customer_demographics
-- Knobs   $category, $education, $gender, $iterations (at most), $tolerance
-- Ties    none: one row. The model is trained and judged on the same rows.
CREATE TABLE q05_users AS
WITH clicks AS (
    SELECT
        wcs_user_sk AS user_sk,
        sum(CASE WHEN i_category = $category THEN 1 ELSE 0 END) AS clicks_in_category,
        sum(CASE WHEN i_category_id = 1 THEN 1 ELSE 0 END) AS clicks_in_1,
        sum(CASE WHEN i_category_id = 2 THEN 1 ELSE 0 END) AS clicks_in_2,
        sum(CASE WHEN i_category_id = 3 THEN 1 ELSE 0 END) AS clicks_in_3,
        sum(CASE WHEN i_category_id = 4 THEN 1 ELSE 0 END) AS clicks_in_4,
        sum(CASE WHEN i_category_id = 5 THEN 1 ELSE 0 END) AS clicks_in_5,
        sum(CASE WHEN i_category_id = 6 THEN 1 ELSE 0 END) AS clicks_in_6,
        sum(CASE WHEN i_category_id = 7 THEN 1 ELSE 0 END) AS clicks_in_7
    FROM web_clickstreams
    JOIN item ON wcs_item_sk = i_item_sk
    WHERE wcs_user_sk IS NOT NULL
    GROUP BY wcs_user_sk
)
SELECT
    clicks_in_category,
    CASE WHEN cd_education_status IN ($education) THEN 1 ELSE 0 END AS college_education,
    CASE WHEN cd_gender = $gender THEN 1 ELSE 0 END AS male,
    clicks_in_1, clicks_in_2, clicks_in_3, clicks_in_4, clicks_in_5, clicks_in_6, clicks_in_7
FROM clicks
JOIN customer ON user_sk = c_customer_sk
JOIN customer_demographics ON c_current_cdemo_sk = cd_demo_sk;

CREATE VIEW q05_labelled AS
SELECT
    CASE WHEN clicks_in_category > mean_clicks THEN 1 ELSE 0 END AS interested,
    college_education,
    male,
    clicks_in_1, clicks_in_2, clicks_in_3, clicks_in_4, clicks_in_5, clicks_in_6, clicks_in_7
FROM q05_users
CROSS JOIN (SELECT avg(clicks_in_category) AS mean_clicks FROM q05_users);

SELECT size, positives, tn, fp, fn, tp, precision, auc
FROM logistic_report(
    'q05_labelled',
    'interested',
    ['college_education', 'male', 'clicks_in_1', 'clicks_in_2', 'clicks_in_3', 'clicks_in_4', 'clicks_in_5', 'clicks_in_6', 'clicks_in_7'],
    $iterations,
    $tolerance
)
