-- How many instructions each call of a function took, as percentiles.
-- :function  The function
SELECT count(*) AS calls, min(inclusive) AS least, percentile(inclusive, 50) AS half,
       percentile(inclusive, 90) AS p90, percentile(inclusive, 99) AS p99, max(inclusive) AS most
FROM calls
WHERE function = :function
